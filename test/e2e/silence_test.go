package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// noticed is how long it takes at most until somebody who does not answer is
// said to be silent: the interval between two questions, and the patience with
// the launcher and QEMU.
const noticed = 60 * time.Second

// awaitReady waits until Ready has the reason, and fails if the VMI leaves the
// phase Running meanwhile.
func (v vmi) awaitReady(reason string) {
	v.t.Helper()
	v.awaitReadyThat("the reason "+reason, func(ready *v1.VirtualMachineInstanceCondition) bool { return ready.Reason == reason })
}

// awaitReadySays waits until the condition Ready of a running VMI says something. While the pod is being deleted, the
// message says what the guest does meanwhile.
func (v vmi) awaitReadySays(text string) {
	v.t.Helper()
	v.awaitReadyThat(text, func(ready *v1.VirtualMachineInstanceCondition) bool { return strings.Contains(ready.Message, text) })
}

func (v vmi) awaitReadyThat(what string, holds func(*v1.VirtualMachineInstanceCondition) bool) {
	v.t.Helper()
	err := poll(func() error {
		status := v.get().Status
		ready := status.Condition(v1.ConditionReady)
		if status.Phase != v1.Running {
			v.t.Fatalf("VMI %s is %s: %+v", v.name, status.Phase, ready)
		}
		if ready == nil || !holds(ready) {
			return fmt.Errorf("Ready of VMI %s is %+v, want %s", v.name, ready, what)
		}
		return nil
	})
	if err != nil {
		v.t.Fatal(err)
	}
}

// TestStoppedQEMUOrLauncherIsSaidSilent: a QEMU, or a launcher, that does not run is said not to answer,
// until it does again; its neighbour does not notice; and it can be deleted.
func TestStoppedQEMUOrLauncherIsSaidSilent(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		process func(vmi) nodeProcess
		reason  string
	}{
		"qemu":     {vmi.qemu, "QEMUNotResponding"},
		"launcher": {vmi.launcher, "LauncherNotResponding"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			const graceSeconds = 5
			ns := namespace(t)
			neighbour, v := create(t, ns, tiny("neighbour")), create(t, ns, tiny("stopped", grace(graceSeconds)))
			neighbour.await(v1.Running)
			v.await(v1.Running)
			neighbour.log().shows("tiny: up")
			shell := neighbour.shell()
			stopped, qemu := c.process(v), v.qemu()

			signal(t, "STOP", stopped)
			v.awaitReady(c.reason)
			v.awaitEvents("Started", c.reason)
			begin := time.Now()
			if out, _ := shell.run("echo $((6 * 7))"); out != "42\n" {
				t.Errorf("the neighbour's console answers %q", out)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("the neighbour took %s to answer", took)
			}
			neighbour.awaitReady("GuestRunning")

			signal(t, "CONT", stopped)
			v.awaitReady("GuestRunning")
			if now := v.qemu(); now.PID != qemu.PID || now.Start != qemu.Start {
				t.Errorf("QEMU is %d, was %d", now.PID, qemu.PID)
			}

			signal(t, "STOP", stopped)
			other := create(t, ns, tiny("later"))
			other.await(v1.Running) // virt-handler serves others meanwhile
			if took := v.delete(); took > (graceSeconds+20)*time.Second {
				t.Errorf("deletion took %s, want the grace period of %d s and 20 s at most", took, graceSeconds)
			} else {
				t.Logf("deleted after %s", took)
			}
			all, err := nodeProcesses()
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range all {
				if p.PID == qemu.PID && p.Start == qemu.Start {
					t.Errorf("QEMU %d is still there", p.PID)
				}
			}
		})
	}
}
