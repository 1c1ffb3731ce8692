package launcher

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/launcher/life"
)

// holding is a launcher with a guest, and a job of a test's that wants the guest to stand.
type holding struct {
	*vm
	ctx      context.Context
	launcher *launcher
}

func newHolding(t *testing.T) *holding {
	t.Helper()
	v := prepareVM(t)
	h := &holding{vm: v}
	h.ctx, v.cancel = context.WithCancel(context.Background())
	h.launcher = newLauncher(h.ctx, v.Config)
	go func() {
		defer close(v.ended)
		v.end = h.launcher.run(h.ctx)
	}()
	v.conn = launchertest.Accept(t, v.handler)
	v.boot()
	return h
}

// onLoop runs something on the loop, and waits until it was done.
func (h *holding) onLoop(do func()) {
	h.Helper()
	done := make(chan struct{})
	h.launcher.hand(h.ctx, func() { do(); close(done) })
	testkit.Receive(h.T, done, "the loop")
}

// begin begins a job that does nothing.
func (h *holding) begin() (job uint64, working context.Context) {
	h.Helper()
	h.onLoop(func() {
		var cancel context.CancelFunc
		working, cancel = context.WithCancel(h.ctx)
		begun, err := h.launcher.jobs.begin(control.JobBecome, "target", 0, cancel)
		if err != nil {
			h.Error(err)
			return
		}
		job = begun.ID
	})
	return job, working
}

// stands reports whether QEMU says that the guest stands.
func (h *holding) stands() bool {
	h.Helper()
	status, err := h.launcher.qmp.QueryStatus(h.ctx)
	h.must(err)
	return !status.Running
}

// free waits until no job holds the guest.
func (h *holding) free() {
	h.Helper()
	testkit.Eventually(h.T, "the guest is free", func() error {
		var held life.Hold
		h.onLoop(func() { held = h.launcher.life.Hold })
		if held != (life.Hold{}) {
			return errors.New("a job holds the guest")
		}
		return nil
	})
}

// unreported fails the test if virt-handler has heard of a state that is not want.
func (h *holding) unreported(want control.State) {
	h.Helper()
	var state control.StateReport
	h.must(h.call(control.CommandQueryState, nil, &state))
	if state.State != want {
		h.Errorf("virt-handler sees a guest that is %s, want %s", state.State, want)
	}
	select {
	case told := <-h.conn.States:
		h.Errorf("virt-handler was told that the guest is %s", told.State)
	default:
	}
}

// TestGuestStandsForAJob: while a job holds the guest, QEMU has stopped it, nobody else may pause it, and virt-handler
// sees a guest that runs.
func TestGuestStandsForAJob(t *testing.T) {
	t.Parallel()
	h := newHolding(t)
	for range 20 { // STOP and RESUME in quick succession are the job's too
		job, working := h.begin()
		over, err := h.launcher.hold(h.ctx, working, job, patience)
		h.must(err)
		if !h.stands() {
			t.Fatal("the guest runs while a job holds it")
		}
		err = h.call(control.CommandPause, nil, nil)
		if err == nil || !strings.Contains(err.Error(), "holds the guest for a moment") {
			t.Errorf("a user pauses a guest that is held: %v", err)
		}
		h.unreported(control.StateRunning)
		over()
		h.free()
		if h.stands() {
			t.Fatal("the guest stands after the job")
		}
		h.unreported(control.StateRunning)
		h.onLoop(func() {
			ended, err := h.launcher.jobs.find(job)
			h.must(err)
			h.launcher.jobs.end(ended, 0, nil)
		})
	}
	h.must(h.call(control.CommandPause, nil, nil))
	h.expectState(control.StatePaused)
	h.must(h.call(control.CommandUnpause, nil, nil))
	h.expectState(control.StateRunning)
}

// TestJobThatHoldsTooLongIsEnded: after its bound a job is canceled, and the guest runs on.
func TestJobThatHoldsTooLongIsEnded(t *testing.T) {
	t.Parallel()
	h := newHolding(t)
	job, working := h.begin()
	over, err := h.launcher.hold(h.ctx, working, job, 50*time.Millisecond)
	if err != nil { // QEMU took longer to stop the guest
		over = func() {}
	}
	testkit.Receive(t, working.Done(), "the job's end")
	h.free()
	if h.stands() {
		t.Error("the guest stands after its job was canceled")
	}
	over() // as the job does when it hears that
	h.unreported(control.StateRunning)
}

// TestPausedGuestStaysPausedAfterAJob: a guest that a user has paused stands for the job as it is.
func TestPausedGuestStaysPausedAfterAJob(t *testing.T) {
	t.Parallel()
	h := newHolding(t)
	h.must(h.call(control.CommandPause, nil, nil))
	h.expectState(control.StatePaused)
	job, working := h.begin()
	over, err := h.launcher.hold(h.ctx, working, job, patience)
	h.must(err)
	over()
	h.free()
	if !h.stands() {
		t.Error("the guest runs, which a user had paused")
	}
	h.unreported(control.StatePaused)
}

// TestHoldOfAJobThatIsCanceled: a job that is canceled before the guest stands leaves a guest that runs.
func TestHoldOfAJobThatIsCanceled(t *testing.T) {
	t.Parallel()
	h := newHolding(t)
	job, working := h.begin()
	h.onLoop(func() { h.launcher.endJob(job) })
	if over, err := h.launcher.hold(h.ctx, working, job, patience); err == nil {
		over() // it stood before the cancel was seen
	}
	h.free()
	if h.stands() {
		t.Error("the guest stands for a job that was canceled")
	}
	h.unreported(control.StateRunning)
}

// TestHeldGuestShutsDown: a guest that stands when it is asked to shut down hears the power button once it runs on.
func TestHeldGuestShutsDown(t *testing.T) {
	t.Parallel()
	h := newHolding(t)
	obey(h.vm)
	job, working := h.begin()
	over, err := h.launcher.hold(h.ctx, working, job, patience)
	h.must(err, h.call(control.CommandShutdown, nil, nil))
	over()
	h.expectState(control.StateShuttingDown)
	h.expectEnd(control.ReasonShutdown, "power button")
}

// TestEventsAreHeardBeforeTheAnswer: once QEMU has answered that it stops the guest, the launcher knows that the guest
// stands. Else a job could hold a guest that a user has just paused, and let it run on.
func TestEventsAreHeardBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	h := newHolding(t)
	go func() {
		for h.ctx.Err() == nil { // nobody else takes them
			select {
			case <-h.conn.States:
			case <-h.ctx.Done():
			}
		}
	}()
	for range 10 {
		for _, c := range []struct {
			do   func(context.Context) error
			want life.Phase
		}{{h.launcher.qmp.Stop, life.Paused}, {h.launcher.qmp.Cont, life.Running}} {
			answered := make(chan life.Phase, 1)
			h.onLoop(func() {
				h.launcher.withQEMU(h.ctx, c.do, func(err error) {
					h.must(err)
					answered <- h.launcher.life.Phase
				})
				time.Sleep(10 * time.Millisecond) // meanwhile both the event and the answer come
			})
			if got := testkit.Receive(t, answered, "QEMU's answer"); got != c.want {
				t.Errorf("QEMU has answered, and the launcher is in phase %v, want %v", got, c.want)
			}
		}
	}
}
