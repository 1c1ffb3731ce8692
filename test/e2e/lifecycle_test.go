package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestVMIFromApplyToDelete follows a VMI from apply to delete, as a user sees it. What VMIs leave
// behind is looked at when all tests are done.
func TestVMIFromApplyToDelete(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	v := create(t, ns, tiny("life", grace(60), cloudInit("#cloud-config\n")))
	v.await(v1.Running)
	log := v.log()
	log.shows(`tiny: up`)
	log.shows(`hostname=life`)
	log.shows(`tiny: eth0 10\.0\.2\.2/24 via 10\.0\.2\.1`)
	lookAtRunning(t, v)
	v.awaitEvents("SuccessfulCreate", "Started")
	if out, status := v.shell().run("hostname"); status != 0 || out != "life\n" {
		t.Errorf("the guest's name is %q (%d), want life", out, status)
	}

	v.delete()
	log.shows(`tiny: ACPI power button, shutting down`)
	log.shows(`tiny: bye`)
	v.awaitEvents("SuccessfulCreate", "Started", "SuccessfulDelete", "Stopped")
	if message := v.event("Stopped"); !strings.Contains(message, "powered off after the ACPI power button") {
		t.Errorf("event Stopped says %q", message)
	}
}

func lookAtRunning(t *testing.T, v vmi) {
	t.Helper()
	status, pod := v.get().Status, v.pod()
	table := strings.Split(kubectl(t, "-n", v.namespace, "get", "vmi", v.name, "-o", "wide"), "\n")
	columns := []string{"NAME", "AGE", "PHASE", "IP", "NODENAME", "READY", "LIVE-MIGRATABLE", "PAUSED"}
	if have := strings.Fields(table[0]); !slices.Equal(have, columns) {
		t.Errorf("columns are %v, want %v", have, columns)
	}
	row := strings.Fields(table[1])
	want := []string{v.name, "", "Running", pod.Status.PodIP, pod.Spec.NodeName, "True", "True"}
	if len(row) > 1 {
		want[1] = row[1]
	}
	if !slices.Equal(row, want) {
		t.Errorf("kubectl get vmi -o wide shows %q, want %q", row, want)
	}

	var phases []v1.VirtualMachineInstancePhase
	for i, p := range status.PhaseTransitionTimestamps {
		phases = append(phases, p.Phase)
		if i > 0 && p.PhaseTransitionTimestamp.Time.Before(status.PhaseTransitionTimestamps[i-1].PhaseTransitionTimestamp.Time) {
			t.Errorf("phase %s was entered before the one before it", p.Phase)
		}
	}
	if want := []v1.VirtualMachineInstancePhase{v1.Pending, v1.Scheduling, v1.Scheduled, v1.Running}; !slices.Equal(phases, want) {
		t.Errorf("phases were %v, want %v", phases, want)
	}
	for kind, want := range map[v1.ConditionType]string{v1.ConditionReady: "True", v1.ConditionSoftwareEmulation: "True", v1.ConditionLiveMigratable: "True"} {
		if c := status.Condition(kind); c == nil || string(c.Status) != want {
			t.Errorf("condition %s is %+v, want %s", kind, c, want)
		}
	}
	for _, c := range status.Conditions {
		if c.Reason == "" || c.Message == "" || c.LastTransitionTime.IsZero() {
			t.Errorf("condition %s has no reason, message or time: %+v", c.Type, c)
		}
	}
	if status.ActivePods[pod.UID] != pod.Spec.NodeName || status.NodeName != pod.Spec.NodeName {
		t.Errorf("node is %q, active pods %v; the pod %s is on %s", status.NodeName, status.ActivePods, pod.UID, pod.Spec.NodeName)
	}
	if status.Machine == nil || !regexp.MustCompile(`^pc-q35-\d+\.\d+$`).MatchString(status.Machine.Type) {
		t.Errorf("machine is %+v, want a versioned q35", status.Machine)
	}
	if n := status.Interfaces; len(n) != 1 || n[0].Name != "default" || n[0].MAC == "" || n[0].IP != pod.Status.PodIP || n[0].PodInterfaceName != "eth0" {
		t.Errorf("interfaces are %+v, want the pod's address %s", n, pod.Status.PodIP)
	}
	described := kubectl(t, "-n", v.namespace, "describe", "vmi", v.name)
	_, events, _ := strings.Cut(described, "\nEvents:")
	if created, started := strings.Index(events, "SuccessfulCreate"), strings.Index(events, "Started"); created < 0 || started < created {
		t.Errorf("kubectl describe vmi does not show the events in order:\n%s", described)
	}
}

// deafGrace is the grace period of deaf guests, in seconds.
const deafGrace = 5

// deaf is a guest that ignores the power button, and the log that says so.
func deaf(t *testing.T, ns, name string) (vmi, *transcript) {
	t.Helper()
	v := create(t, ns, tiny(name, bootsKernel, grace(deafGrace), cloudInit(ignoreACPI)))
	v.await(v1.Running)
	log := v.log()
	log.shows(`tiny: cidata`)
	log.shows(`tiny: eth0`)
	return v, log
}

// outstays deletes a deaf guest, which is gone at the end of its grace period.
func (v vmi) outstays(log *transcript) {
	v.t.Helper()
	took := v.delete()
	log.shows(`tiny: ignoring ACPI power button`)
	if took < deafGrace*time.Second || took > (deafGrace+20)*time.Second {
		v.t.Errorf("VMI %s was gone after %s, want %d s to %d s", v.name, took, deafGrace, deafGrace+20)
	}
	v.awaitEvents("SuccessfulCreate", "Started", "Stopped")
	if message := v.event("Stopped"); !strings.Contains(message, "GracePeriodExceeded") {
		v.t.Errorf("event Stopped says %q", message)
	}
}

// TestGraceEnds: a guest that ignores the power button is gone at the end of
// its grace period; without virt-handler too, which TestVMsDoNotNoticeAKilledHandler shows.
func TestGraceEnds(t *testing.T) {
	t.Parallel()
	v, log := deaf(t, namespace(t), "deaf")
	v.outstays(log)
	// A guest that obeys may be gone before virt-handler can tell.
	v.awaitEvents("Started", "ShuttingDown", "Deleted", "Stopped")
}

// TestDeletionShortensTheGracePeriod: a guest ends at once when the VirtualMachine is deleted with a grace period of 0, though the guest
// has an hour, and a deletion before named no grace period.
func TestDeletionShortensTheGracePeriod(t *testing.T) {
	t.Parallel()
	m := createVM(t, namespace(t), "deaf", v1.RunStrategyAlways, bootsKernel, grace(3600), cloudInit(ignoreACPI))
	m.runs("")
	log := m.log()
	log.shows(`tiny: cidata`) // from then on the guest ignores the power button
	log.shows(`tiny: eth0`)
	kubectl(t, "-n", m.namespace, "delete", "vm", m.name, "--wait=false")
	log.shows(`tiny: ignoring ACPI power button`)
	kubectl(t, "-n", m.namespace, "delete", "vm", m.name, "--force", "--grace-period=0", "--wait=false")
	err := poll(func() error {
		if left := kubectl(t, "-n", m.namespace, "get", "vm,vmi", "-o", "name"); left != "" {
			return fmt.Errorf("left are %s", left)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if message := m.event("Stopped"); !strings.Contains(message, "GracePeriodExceeded") {
		t.Errorf("event Stopped says %q", message)
	}
}

// TestGuestPowersOff: poweroff in the guest ends the VMI as Succeeded.
func TestGuestPowersOff(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	v := create(t, ns, tiny("off", bootsKernel))
	v.await(v1.Running)
	v.shell().send("poweroff\n")
	status := v.await(v1.Succeeded).Status
	if ready := status.Condition(v1.ConditionReady); ready == nil || ready.Status != "False" || ready.Reason != "GuestShutdown" || ready.Message == "" {
		t.Errorf("condition Ready is %+v, want GuestShutdown", ready)
	}
	if status.Reason != "" {
		t.Errorf("reason is %q, want none", status.Reason)
	}
	v.awaitEvents("SuccessfulCreate", "Started", "Stopped")
	if took := v.delete(); took > 10*time.Second {
		t.Errorf("deletion took %s, want 10 s at most", took)
	}
}
