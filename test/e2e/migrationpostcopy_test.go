package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// churning has the guest change 24 MiB of its memory all the time.
const churning = `(while :; do dd if=/dev/urandom of=/tmp/churn bs=1M count=24 conv=notrunc 2>/dev/null; done) & echo started`

// trailing begins a migration, and waits until the guest has left and its memory has not.
func (v vmi) trailing(name string) (migration, *v1.VirtualMachineInstanceMigrationState) {
	v.t.Helper()
	m := v.migrate(name, nil)
	var s *v1.VirtualMachineInstanceMigrationState
	err := poll(func() error {
		s = v.get().Status.MigrationState
		if s == nil || s.MigrationName != name || s.Mode != v1.MigrationPostCopy || s.Decision != v1.DecisionTarget {
			return fmt.Errorf("the guest has not left: %+v", s)
		}
		if said := m.get().Status.MigrationState; said.Mode != v1.MigrationPostCopy {
			return fmt.Errorf("the migration says %+v", said)
		}
		return nil
	})
	if err != nil {
		v.t.Fatal(err)
	}
	if s.Ended() {
		v.t.Fatalf("the migration is over too soon: %+v", s)
	}
	return m, s
}

// stays checks that nobody cancels a migration whose guest has left.
func (m migration) stays() {
	m.t.Helper()
	out, err := output("", "kubectl", "-n", m.namespace, "delete", "vmim", m.name, "--wait=false")
	if err == nil || !strings.Contains(err.Error()+out, "cannot be cancelled") {
		m.t.Errorf("a migration in post-copy is cancelled: %s, %v", out, err)
	}
}

// TestMigrationPostCopy: a guest that changes memory faster than it is copied goes on at the target, and its memory follows. Then nobody
// cancels the migration, and the end of a QEMU is the end of the guest.
func TestMigrationPostCopy(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	policy(t, ns, "bandwidthPerMigration: 6Mi, completionTimeoutPerGiB: 12, allowPostCopy: true")
	t.Cleanup(func() { output("", "kubectl", "delete", "migrationpolicy", ns) })
	v := create(t, ns, tiny("goes"))
	v.await(v1.Running)
	v.log().shows("tiny: eth0")
	shell := v.shell()
	must := func(command string) string {
		t.Helper()
		out, status := shell.run(command)
		if status != 0 {
			t.Fatalf("%s: %q (%d)", command, out, status)
		}
		return strings.TrimSpace(out)
	}
	sum := must("mkdir -p /tmp; dd if=/dev/urandom of=/tmp/fixed bs=1M count=8 2>/dev/null; md5sum </tmp/fixed")
	must(counts)
	must(churning)
	from, booted := v.get().Status.NodeName, seconds(t, must("cut -d' ' -f1 /proc/uptime"))
	count := int(seconds(t, must("while [ ! -e /tmp/count ]; do usleep 100000; done; cat /tmp/count")))
	guests := guestsOn(t, string(v.get().Spec.Domain.Firmware.UUID))
	begun := time.Now()
	m, s := v.trailing("goes")
	t.Logf("the guest has left after %.1f s: %+v", time.Since(begun).Seconds(), s.SourceState.Progress)
	target := v.pod()
	if _, asks := target.Spec.Containers[0].Resources.Limits["devices.kubevirt.io/userfaultfd"]; !asks || target.Name != s.TargetPod {
		t.Errorf("pod %s asks for %v", target.Name, target.Spec.Containers[0].Resources.Limits)
	}
	m.stays()
	// The guest runs there meanwhile.
	shell = v.shell()
	early := int(seconds(t, must("cat /tmp/count")))
	if ended := v.get().Status.MigrationState.Ended(); early <= count || ended {
		t.Errorf("the guest counted to %d, and now is at %d; the migration has ended: %t", count, early, ended)
	}
	err := poll(func() error {
		if s = v.get().Status.MigrationState; !s.Completed {
			return fmt.Errorf("the migration has not ended: %+v", s)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the migration ended after %.1f s: %+v", time.Since(begun).Seconds(), s.SourceState.Progress)
	if s.Failed || s.Mode != v1.MigrationPostCopy || s.AbortRequested || s.TargetNodeDomainReadyTimestamp == nil || v.get().Status.NodeName == from {
		t.Errorf("%+v", s)
	}
	if told, up := int(seconds(t, must("cat /tmp/count"))), seconds(t, must("cut -d' ' -f1 /proc/uptime")); told <= early || up < booted {
		t.Errorf("the guest counted to %d, and now is at %d; it was up for %.1f s, and now for %.1f s", early, told, booted, up)
	}
	if got := must("md5sum </tmp/fixed"); got != sum {
		t.Errorf("the guest's memory has %s, and had %s", got, sum)
	}
	v.awaitEvents("PostCopy", "SuccessfulMigration")
	m.ends(v1.MigrationSucceeded)
	err = poll(func() error {
		if n := guests(); n != 1 {
			return fmt.Errorf("%d QEMUs have the guest", n)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	// The source dies as the memory follows.
	_, s = v.trailing("dies")
	killIn(t, get[corev1.Pod](t, "-n", ns, "pod", s.SourcePod), "qemu-system-")
	v.await(v1.Failed)
	if c := v.condition(v1.ConditionReady); c.Reason != "PostCopyFailed" {
		t.Errorf("the guest has ended: %+v", c)
	}
	err = poll(func() error {
		if n := guests(); n != 0 {
			return fmt.Errorf("%d QEMUs have the guest", n)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
