package accelerator

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// judged runs a Judge, with permission to emulate, against checks that come out
// like this, one after the other; the last one for ever. It returns the choice
// after each, and how much time they took.
func judged(t *testing.T, path string, checks ...kvmcheck.Result) (choices []qemuargs.Accelerator, took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := New(kvmcheck.Result{Reason: "the check goes on"})
		a.PermitEmulation(true)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		at := 0
		j := &Judge{Kept: kvmcheck.Kept{Path: path}, Clock: clock.RealClock{}, Log: logr.Discard(), Chooser: a,
			Ready: func() error { return nil }, Changed: func(context.Context) error { return nil },
			Check: func(context.Context) kvmcheck.Result {
				if at > 0 {
					choice, _ := a.Choice()
					choices = append(choices, choice.Accelerator)
				}
				at++
				return checks[min(at, len(checks))-1]
			}}
		begin := time.Now()
		if err := j.Start(ctx); err != nil {
			t.Error(err)
		}
		choice, _ := a.Choice()
		choices, took = append(choices, choice.Accelerator), time.Since(begin)
	})
	return choices, took
}

func TestVerdictFollowsTheChecks(t *testing.T) {
	const none, tcg, kvm = "", qemuargs.TCG, qemuargs.KVM
	tests := []struct {
		name   string
		checks []kvmcheck.Result
		want   []qemuargs.Accelerator
		took   time.Duration
	}{
		{"works", []kvmcheck.Result{works}, []qemuargs.Accelerator{kvm}, 0},
		{"no time for a check", []kvmcheck.Result{unknown, unknown, works}, []qemuargs.Accelerator{none, none, kvm}, 45 * time.Second},
		{"broken once", []kvmcheck.Result{broken, works}, []qemuargs.Accelerator{tcg, kvm}, 15 * time.Second},
		{"broken for certain", []kvmcheck.Result{broken}, []qemuargs.Accelerator{tcg, tcg, tcg}, 45 * time.Second},
		{"broken, and no time", []kvmcheck.Result{broken, unknown, broken, unknown, broken}, []qemuargs.Accelerator{tcg, tcg, tcg, tcg, tcg}, 225 * time.Second},
	}
	for _, tt := range tests {
		path := filepath.Join(t.TempDir(), "kvm.json")
		got, took := judged(t, path, tt.checks...)
		if len(got) != len(tt.want) || took != tt.took {
			t.Errorf("%s: %q within %v, want %q within %v", tt.name, got, took, tt.want, tt.took)
			continue
		}
		for i := range got {
			if got[i] != tt.want[i] {
				t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
			}
		}
		// The next virt-handler knows it at once, and checks nothing.
		unwanted := kvmcheck.Result{Verdict: kvmcheck.Unknown, Reason: "a check"}
		if again, took := judged(t, path, unwanted); took != 0 || len(again) != 1 || again[0] != got[len(got)-1] {
			t.Errorf("%s: restarted: %q after %v", tt.name, again, took)
		}
	}
}

// TestUnknownVerdictIsAskedForAgain: a node where the check never gets to an answer is asked again and again, ever
// less often, and has no slots until then.
func TestUnknownVerdictIsAskedForAgain(t *testing.T) {
	got, took := judged(t, filepath.Join(t.TempDir(), "kvm.json"), unknown)
	if took != time.Hour || len(got) < 15 || len(got) > 20 {
		t.Errorf("%d checks within %v", len(got), took)
	}
	for _, choice := range got {
		if choice != "" {
			t.Errorf("guests run by %q", choice)
		}
	}
}

func TestMissingDeviceOffersNothing(t *testing.T) {
	missing := errors.New("no device")
	j := &Judge{Kept: kvmcheck.Kept{Path: filepath.Join(t.TempDir(), "kvm.json")}, Clock: clock.RealClock{}, Log: logr.Discard(), Chooser: New(unknown),
		Ready: func() error { return missing }, Check: func(context.Context) kvmcheck.Result { return works }}
	if err := j.Start(context.Background()); !errors.Is(err, missing) {
		t.Errorf("the device node cannot be made: %v", err)
	}
	if choice, _ := j.Chooser.Choice(); choice.Accelerator != "" {
		t.Errorf("pods would get a device that is not there: %v", choice)
	}
}
