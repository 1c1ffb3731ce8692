package node

import (
	"errors"
	"fmt"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// step is what is done next for a VMI.
type step struct {
	// leaves: a launcher of this node that the guest has left may have to end.
	leaves bool
	// serves: the launcher is asked and told things.
	serves bool
	begin  beginning
	tell   telling
	// after is when the VMI is looked at again, even if nothing changes. 0 is never.
	after time.Duration
	// failure is why the guest does not start, or nil.
	failure error
}

// beginning is how a guest begins to run; empty if it does not.
type beginning string

const (
	// beginStart has the launcher start QEMU, and the guest runs.
	beginStart beginning = "start"
	// beginHeld has the launcher start QEMU. The guest's CPUs stay stopped, until it has waited for others.
	beginHeld beginning = "start, held"
	// beginRelease lets a guest run that was held.
	beginRelease beginning = "release"
)

// telling is what the VMI's status is to say.
type telling string

const (
	tellNothing telling = ""
	// tellGone: it is not known whether the guest runs.
	tellGone telling = "gone"
	// tellForeign: virt-handler does not serve the launcher.
	tellForeign telling = "foreign"
	// tellGuest: what the launcher reports of the guest.
	tellGuest telling = "guest"
)

// outcome returns when the VMI is looked at again, or the failure. The failure goes to the log, and a launcher may make
// it as long as it likes.
func (s *step) outcome() (time.Duration, error) {
	switch {
	case s.failure == nil:
		return s.after, nil
	case errors.Is(s.failure, control.ErrClosed):
		return 0, nil // the launcher's next hello brings us back
	}
	return 0, errors.New(control.Printable(s.failure.Error(), maxMessage))
}

// decide returns what is done next for a VMI. It is pure. Where no launcher is connected, the status says so after a
// while, and no more is done: absence of information is never death.
func decide(w world) step {
	switch {
	case w.vmi == nil:
		return step{}
	case w.behind:
		return step{after: kit.WriteDelay}
	case w.vmi.IsFinal():
		return step{}
	case w.launcher == nil:
		return absent(w)
	case w.foreign != nil:
		return step{leaves: true, tell: tellForeign}
	}
	return serve(w)
}

// absent decides for a VMI whose launcher is not connected.
func absent(w world) step {
	s := step{leaves: true}
	switch left := gonePatience - w.gone; {
	case !w.here || w.vmi.Status.Phase != v1.Running: // nobody expects a guest that runs
	case left > 0:
		s.after = left
	default:
		s.tell = tellGone
	}
	return s
}

// serve decides for a VMI whose launcher is connected. Nothing is told of a guest that waits for others, nor before
// the pod's addresses are known: their change brings the VMI back.
func serve(w world) step {
	s := step{leaves: true, serves: true}
	waits, held := toStart(w.vmi, w.state), heldBack(w.vmi, w.state)
	switch {
	case !waits && !held:
	case w.unknown != nil:
		s.failure = fmt.Errorf("look for other guests: %w", w.unknown)
	case waits && w.wait > 0:
		s.begin, s.after = beginHeld, w.wait
	case waits:
		s.begin = beginStart
	case w.wait > 0:
		s.after = w.wait
	default:
		s.begin = beginRelease
	}
	if s.failure != nil || s.after == 0 && len(w.ips) > 0 {
		s.tell = tellGuest
	}
	return s
}
