package cpus

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/hostcpu"
)

// finder is a Finder whose QEMU answers what a test says.
type finder struct {
	*Finder
	clock   *clocktesting.FakeClock
	asked   chan qemuargs.Accelerator
	answers chan error
}

func start(t *testing.T, kvm kvmcheck.Verdict) *finder {
	f := &finder{clock: clocktesting.NewFakeClock(time.Unix(1000, 0)), asked: make(chan qemuargs.Accelerator, 10), answers: make(chan error, 10)}
	f.Finder = &Finder{Chooser: accelerator.New(kvmcheck.Result{Verdict: kvm}), Clock: f.clock, Log: logr.Discard(),
		Ask: func(_ context.Context, a qemuargs.Accelerator) (hostcpu.CPU, error) {
			f.asked <- a
			err := <-f.answers
			return hostcpu.CPU{QEMUVersion: "11.1.0", Flags: []string{string(a) + "=on"}, Told: hostcpu.Told{Vendor: "AMD", Models: []string{string(a)}}}, err
		}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		close(f.answers)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *finder) told(t *testing.T) string {
	t.Helper()
	text, _, err := f.Told()
	if err != nil {
		t.Error(err)
	}
	return text
}

// TestQEMUIsAskedOncePerAccelerator: a node without a choice is asked nothing; then once for each accelerator.
func TestQEMUIsAskedOncePerAccelerator(t *testing.T) {
	f := start(t, kvmcheck.Broken)
	if got := f.told(t); got != "" {
		t.Errorf("nothing is known, but %s", got)
	}
	_, changed, _ := f.Told()
	f.Chooser.PermitEmulation(true)
	if a := <-f.asked; a != qemuargs.TCG {
		t.Errorf("asked about %s", a)
	}
	f.answers <- nil
	<-changed
	if got := f.told(t); !strings.Contains(got, `"accelerator":"tcg"`) || !strings.Contains(got, `"models":["tcg"]`) || strings.Contains(got, "=on") {
		t.Errorf("told %s", got)
	}
	if got := f.HostModel(t.Context(), qemuargs.TCG, "11.1.0"); !slices.Equal(got, []string{"tcg=on"}) {
		t.Errorf("flags %q", got)
	}
	if got := f.HostModel(t.Context(), qemuargs.TCG, "7.2.22"); got != nil {
		t.Errorf("flags for another QEMU: %q", got)
	}
	f.Chooser.LimitSlots(3)
	f.Chooser.PermitEmulation(false)
	if got := f.told(t); got != "" {
		t.Errorf("a node that cannot run guests tells %s", got)
	}
	f.Chooser.PermitEmulation(true)
	if got := f.told(t); got == "" || len(f.asked) > 0 {
		t.Errorf("told %q, asked %d times more", got, len(f.asked))
	}
}

// TestStartDoesNotWaitForFailedQEMU: the start of a guest does not wait for a QEMU that has failed, which is asked
// again.
func TestStartDoesNotWaitForFailedQEMU(t *testing.T) {
	f := start(t, kvmcheck.Works)
	waits := make(chan []string, 1)
	go func() { waits <- f.HostModel(t.Context(), qemuargs.KVM, "11.1.0") }()
	<-f.asked
	select {
	case got := <-waits:
		t.Errorf("a guest starts before QEMU has answered, with %q", got)
	case <-time.After(20 * time.Millisecond):
	}
	f.answers <- errors.New("no QEMU")
	if got := <-waits; got != nil {
		t.Errorf("flags %q", got)
	}
	testkit.Until(t, "the wait", f.clock.HasWaiters)
	f.clock.Step(firstRetry)
	<-f.asked
	_, changed, _ := f.Told()
	f.answers <- nil
	<-changed
	if got := f.HostModel(t.Context(), qemuargs.KVM, "11.1.0"); got == nil {
		t.Error("no flags after the second answer")
	}
	if got := (*Finder)(nil).HostModel(t.Context(), qemuargs.KVM, "11.1.0"); got != nil {
		t.Errorf("a node that asks nothing has %q", got)
	}
}
