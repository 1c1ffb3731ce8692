package migration

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// undecided writes where the source may connect, and decides once the launcher has all of the guest.
func (a *Arrivals) undecided(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session) error {
	state := launcher.State()
	vmi, err := a.Node.amend(ctx, vmi, func(vmi *v1.VirtualMachineInstance,
		s *v1.VirtualMachineInstanceMigrationState) bool {
		// A guest that comes by post-copy can shut down in order only here.
		if s.Decision != "" || vmi.DeletionTimestamp != nil && !s.PostCopy() || vmi.IsFinal() {
			return false
		}
		before := targetState(s)
		now := *before
		now.NodeAddress = a.Address
		switch state.State {
		case control.StateReceiving:
			now.DomainDetected = true
		case control.StateReceived:
			now.DomainDetected, s.Decision = true, v1.DecisionTarget
		case control.StateExited:
			now.Failure = "the target's QEMU has ended"
			if state.Failure != "" {
				now.Failure += ": " + control.Printable(state.Failure, maxMessage)
			}
		}
		s.TargetState = &now
		return now != *before || s.Decision != ""
	})
	if err != nil {
		return err
	}
	if vmi.Status.MigrationState.Decision == v1.DecisionTarget {
		return a.decided(ctx, vmi, launcher)
	}
	return nil
}

func targetState(s *v1.VirtualMachineInstanceMigrationState) *v1.MigrationTargetState {
	if s.TargetState == nil {
		return &v1.MigrationTargetState{}
	}
	return s.TargetState
}

// decided lets the guest run, and says so.
func (a *Arrivals) decided(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session) error {
	if targetState(vmi.Status.MigrationState).DomainReadyTimestamp != nil {
		return nil
	}
	switch launcher.State().State {
	case control.StateReceived:
		if refused, err := a.run(ctx, vmi, launcher); err != nil {
			return errors.Join(err, a.endSilent(ctx, vmi, launcher))
		} else if refused != "" && receiving(launcher.State()) {
			// The source can take the guest back once it has sent all of the memory. QEMU may let the guest run before.
			return fmt.Errorf("let the guest run that has come before its memory: %s", refused)
		} else if refused != "" {
			a.refuse(vmi, launcher, refused)
			return a.giveBack(ctx, vmi, refused)
		}
	case control.StateRunning, control.StatePaused:
	case control.StateExited:
		// A launcher that is kept after the failure would hold the migration, and its place, until somebody deletes its pod.
		return launcher.EndAtOnce(ctx)
	default:
		return nil
	}
	if receiving(launcher.State()) {
		return nil // the launcher says when its memory is here
	}
	now := metav1.NewTime(a.Node.Clock.Now())
	_, err := a.Node.amend(ctx, vmi, func(_ *v1.VirtualMachineInstance, s *v1.VirtualMachineInstanceMigrationState) bool {
		if s.Decision != v1.DecisionTarget || targetState(s).DomainReadyTimestamp != nil {
			return false
		}
		state := *targetState(s)
		state.DomainReadyTimestamp = &now
		s.TargetState = &state
		return true
	})
	return err
}

// run lets the guest run. refused is why QEMU did not.
func (a *Arrivals) run(ctx context.Context, vmi *v1.VirtualMachineInstance,
	launcher *sessions.Session) (refused string, err error) {
	var reply control.RunReply
	if err := launcher.Call(ctx, control.CommandRun, control.RunRequest{Paused: pausedByUser(vmi)}, &reply); err != nil {
		return "", fmt.Errorf("let the guest run that has come: %w", err)
	}
	return control.Short(reply.Refused), nil
}

// refuse keeps why QEMU did not let a guest run, until that is written: the launcher ends, and says it once.
func (a *Arrivals) refuse(vmi *v1.VirtualMachineInstance, launcher *sessions.Session, why string) {
	a.remember(vmi.Status.MigrationState.MigrationUID, &arrival{launcher: launcher, refused: why})
}

func (a *Arrivals) refusal(vmi *v1.VirtualMachineInstance) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.offered[vmi.Status.MigrationState.MigrationUID]; known != nil {
		return known.refused
	}
	return ""
}

// giveBack decides for the source, because QEMU did not let the guest run here.
func (a *Arrivals) giveBack(ctx context.Context, vmi *v1.VirtualMachineInstance, why string) error {
	_, err := a.Node.amend(ctx, vmi, func(now *v1.VirtualMachineInstance,
		s *v1.VirtualMachineInstanceMigrationState) bool {
		if s.Decision != v1.DecisionTarget || targetState(s).DomainReadyTimestamp != nil || now.IsFinal() {
			return false
		}
		state := *targetState(s)
		state.Failure = "the target's QEMU did not let the guest run: " + why
		s.TargetState, s.Decision = &state, v1.DecisionSource
		return true
	})
	return err
}

// runPatience is how long QEMU has to say whether it lets a guest run that has come, virt-controller's time for a
// guest that left by post-copy and runs nowhere.
const runPatience = 10 * time.Minute

// endSilent ends a guest that has come with all of its memory, if QEMU does not say for runPatience whether it lets
// the guest run. The guest may have run here. So virt-controller decides whether the source may have it back.
func (a *Arrivals) endSilent(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session) error {
	m, state, now := vmi.Status.MigrationState, launcher.State(), a.Node.Clock.Now()
	if state.State != control.StateReceived || receiving(state) {
		return nil
	}
	a.mu.Lock()
	known := a.offered[m.MigrationUID]
	a.mu.Unlock()
	if known == nil { // by the virt-handler before
		known = &arrival{launcher: launcher}
		a.remember(m.MigrationUID, known)
	}
	a.mu.Lock()
	if known.silent.IsZero() {
		known.silent = now
	}
	since := known.silent
	a.mu.Unlock()
	if now.Sub(since) < runPatience {
		return nil
	}
	return launcher.EndAtOnce(ctx)
}
