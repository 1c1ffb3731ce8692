package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestHandlerAwayForHalfAnHour: for half an hour there is no virt-handler, because its image
// cannot be pulled, say. Guests run and write; how others end is said at once, by
// their pods, and still after its return; what is deleted goes; what is started
// waits. It is long enough for all that counts the time meanwhile: the kubelet
// gives up the device plugin after 5 minutes, virt-controller the node.
// TestVMsDoNotNoticeAKilledHandler has shorter outages, and what comes and goes within them.
func TestHandlerAwayForHalfAnHour(t *testing.T) {
	outage := 90 * time.Second
	if long() {
		outage = 30 * time.Minute
	}
	c := claims{t, namespace(t)}
	c.folder("data", "100Mi", "true")
	writes := create(t, c.namespace, tiny("writes", bridged, onClaim("data")))
	machine := createVM(t, c.namespace, "machine", v1.RunStrategyAlways)
	orphan, orphanLog := deaf(t, c.namespace, "orphan")
	first := machine.runs("")
	// How each ends, early and late.
	type ending struct {
		vmi    vmi
		end    func(vmi)
		phase  v1.VirtualMachineInstancePhase
		reason string
	}
	killQEMU := func(v vmi) { signal(t, "KILL", v.qemu()) }
	killLauncher := func(v vmi) { signal(t, "KILL", v.launcher()) }
	powerOff := func(v vmi) { v.shell().send("poweroff\n") }
	endings := []ending{
		{create(t, c.namespace, tiny("dies-early")), killQEMU, v1.Failed, "QEMUExited"},
		{create(t, c.namespace, tiny("off-early")), powerOff, v1.Succeeded, "GuestShutdown"},
		{create(t, c.namespace, tiny("dies-late")), killQEMU, v1.Failed, "QEMUExited"},
		{create(t, c.namespace, tiny("orphaned-late")), killLauncher, v1.Failed, "LauncherKilled"},
	}
	early, late := endings[:2], endings[2:]
	for _, e := range endings {
		e.vmi.await(v1.Running)
	}
	writes.await(v1.Running)
	qemu := writes.qemu()
	address := writes.get().Status.Interfaces[0].IP
	lease := regexp.QuoteMeta("tiny: eth0 " + address + "/32 via ")
	writes.log().shows(lease)
	shell := writes.shell()
	// Some ten a second: for half an hour the node has other tests' guests too.
	shell.send(strings.Replace(writeRecords, "; done", "; usleep 100000; done", 1) + "\n")
	shell.shows(`synced:30\r?\n`)

	start := stopHandler(t)
	begin := time.Now()
	ends := func(all []ending) {
		t.Helper()
		for _, e := range all {
			e.end(e.vmi)
			e.vmi.await(e.phase)
			e.vmi.awaitCondition(v1.ConditionReady, e.reason)
		}
	}
	ends(early)
	machine.crash()
	waits := create(t, c.namespace, tiny("waits"))
	waits.awaitCondition(v1.ConditionPodScheduled, "Unschedulable", "Insufficient devices.kubevirt.io/vm")
	for time.Since(begin) < outage {
		n := lastSynced(shell)
		time.Sleep(10 * time.Second)
		if now := writes.qemu(); now.PID != qemu.PID || now.Start != qemu.Start {
			t.Fatalf("%s without virt-handler, QEMU is %d, was %d", time.Since(begin), now.PID, qemu.PID)
		}
		if now := lastSynced(shell); now == n {
			t.Fatalf("%s without virt-handler, the guest has not written for 10 s: %d records", time.Since(begin), n)
		}
		if err := nodeEchoes(address, 7); err != nil {
			t.Errorf("%s without virt-handler: %v", time.Since(begin), err)
		}
	}
	if outage > 6*time.Minute {
		if got := theNode(t).Labels[schedulableLabel]; got != "false" {
			t.Errorf("after %s without virt-handler the node has %s=%q", outage, schedulableLabel, got)
		}
	}
	ends(late)
	orphan.outstays(orphanLog)
	start()
	t.Logf("virt-handler is back after %s", time.Since(begin))

	for _, e := range endings {
		status := e.vmi.get().Status
		if ready := status.Condition(v1.ConditionReady); status.Phase != e.phase || ready == nil || ready.Reason != e.reason {
			t.Errorf("VMI %s is %s after virt-handler is back, Ready %+v; want %s, %s", e.vmi.name, status.Phase, ready, e.phase, e.reason)
		}
	}
	waits.await(v1.Running)
	machine.runs(first)
	machine.qemu() // fails if there are two
	writes.awaitReady("GuestRunning")
	err := poll(func() error {
		if got := theNode(t).Labels[schedulableLabel]; got != "true" {
			return fmt.Errorf("the node has %s=%q", schedulableLabel, got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	n := lastSynced(shell)
	shell.interrupt()
	writes.holdsRecords(n)
	t.Logf("%d records were synced", n)
	if _, status := writes.shell().run("killall -USR1 udhcpc"); status != 0 { // renew
		t.Error("the guest has no DHCP client")
	}
	writes.log().shows("(?s)" + lease + ".*" + lease)
	kubectl(t, "-n", c.namespace, "delete", "vm,vmi", "--all", "--timeout=600s")
}
