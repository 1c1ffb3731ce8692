package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// copyPolicy lets migrations of a namespace copy the disks of claims.
func copyPolicy(t *testing.T, namespace string) {
	t.Helper()
	apply(t, "", fmt.Sprintf(`apiVersion: migrations.kubevirt.io/v1alpha1
kind: MigrationPolicy
metadata: {name: %[1]s}
spec:
  selectors: {namespaceSelector: {kubernetes.io/metadata.name: %[1]s}}
  allowClaimCopy: true
`, namespace))
	t.Cleanup(func() { kubectl(t, "delete", "migrationpolicy", namespace) })
}

// disksOn waits until the VM's two disks, and no others, are on claims of the namespace, and returns the claims' names.
func (m vm) disksOn(node string) []string {
	m.t.Helper()
	var names []string
	err := poll(func() error {
		names = nil
		all, err := getObject[corev1.PersistentVolumeClaimList]("-n", m.namespace, "persistentvolumeclaims")
		if err != nil {
			return err
		}
		for _, claim := range all.Items {
			names = append(names, claim.Name)
			if on := claim.Annotations[selectedNode]; claim.DeletionTimestamp != nil || on != node {
				return fmt.Errorf("claim %s is of node %s, being deleted: %t", claim.Name, on, claim.DeletionTimestamp != nil)
			}
		}
		if len(names) != 2 {
			return fmt.Errorf("there are the claims %v, want two", names)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return names
}

// onClaims makes a VM whose two disks are on claims of the first node, and waits until its guest runs there and can move.
func onClaims(t *testing.T, ns, name string) vm {
	t.Helper()
	kubectl(t, "cordon", secondName)
	m := withTemplates(t, ns, name, map[string]string{"root": `{"registry":{"url":"docker://` + tinyImage + `"}}`, "data": `{"blank":{}}`}, "root", "data")
	if err := poll(func() error {
		now, err := m.instance()
		if err == nil && now.Status.Phase != v1.Running {
			err = fmt.Errorf("the VMI is %s", now.Status.Phase)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "uncordon", secondName)
	return m
}

// canMove waits until the guest can move to another node.
func (m vm) canMove() {
	m.t.Helper()
	if err := poll(func() error {
		if c := m.condition(v1.ConditionLiveMigratable); c.Status != metav1.ConditionTrue {
			return fmt.Errorf("LiveMigratable is %+v", c)
		}
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
}

// whole checks that the guest's second disk has every number that the guest counted, and that its first disk is as it was.
func (m vm) whole(boot string) {
	m.t.Helper()
	shell := m.shell()
	told := int(seconds(m.t, m.in(shell, "cat /tmp/count")))
	m.has(shell, told)
	if got := m.in(shell, firstSum); got != boot {
		m.t.Errorf("the root disk has %s, and had %s", got, boot)
	}
}

// has checks that the guest's second disk has the first numbers that the guest counted.
func (m vm) has(shell *transcript, count int) {
	m.t.Helper()
	if got := m.in(shell, fmt.Sprintf("echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vdb bs=512 skip=%d count=%d 2>/dev/null | tr -d '\\000' | md5sum", firstSector+1, count)); got != numbers(count) {
		m.t.Errorf("of %d numbers that the guest wrote, some are lost", count)
	}
}

// placed has the VM's template select a node, or none, and waits until the running guest follows.
func (m vm) placed(node string) {
	m.t.Helper()
	selector := "null"
	if node != "" {
		selector = fmt.Sprintf(`{"kubernetes.io/hostname":%q}`, node)
	}
	m.patch(`{"spec":{"template":{"spec":{"nodeSelector":` + selector + `}}}}`)
	if err := poll(func() error {
		now, err := m.instance()
		if err == nil && now.Spec.NodeSelector[corev1.LabelHostname] != node {
			err = fmt.Errorf("the VMI has the node selector %v, want %q", now.Spec.NodeSelector, node)
		}
		if c := m.machine().Status.Condition(v1.ConditionRestartRequired); c != nil {
			err = fmt.Errorf("the VM says %+v", c)
		}
		return err
	}); err != nil {
		m.t.Fatal(err)
	}
}

// firstSum is a command that prints a sum of the guest's first disk.
const firstSum = "head -c 8388608 /dev/vda | md5sum"

// TestMigrationClaims: a guest whose disks are on claims that one node can use moves with its disks, back and forth, and by a
// drain. Its next start has the same disks. A migration that fails leaves no claim. Each migration heeds the node selector that the
// VM's template has by then.
func TestMigrationClaims(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	provision(t, ns)
	copyPolicy(t, ns)
	m := onClaims(t, ns, "claims")
	uid := m.uid()
	m.canMove()
	first := m.disksOn(firstName)
	shell := m.shell()
	boot := m.in(shell, firstSum)
	m.in(shell, "mkdir -p /tmp")
	m.in(shell, counting)

	// The only node that the guest may go to takes no pod, for now.
	m.placed(secondName)
	release := full(t, ns, secondName)
	cancelled := m.migrate("cancelled", nil)
	if err := poll(func() error {
		if n := len(get[corev1.PersistentVolumeClaimList](t, "-n", ns, "persistentvolumeclaims").Items); n != 4 {
			return fmt.Errorf("there are %d claims, want 4", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	kubectl(t, "-n", ns, "delete", "vmim", cancelled.name, "--timeout=600s")
	if now := m.disksOn(firstName); !slices.Equal(now, first) {
		t.Errorf("after a cancelled migration there are %v", now)
	}
	release()

	for i, to := range []string{secondName, firstName} {
		m.placed(to)
		begun := time.Now()
		s := m.migrate(fmt.Sprint("move-", i), nil).ends(v1.MigrationSucceeded)
		downtime, sent := cost(s)
		t.Logf("to %s in %.1f s; QEMU's downtime is %d ms, %d MiB were sent", to, time.Since(begun).Seconds(), downtime, sent>>20)
		m.whole(boot)
		if names := m.disksOn(to); slices.ContainsFunc(names, func(name string) bool { return slices.Contains(first, name) }) {
			t.Errorf("on %s there are the claims %v, and at first there were %v", to, names, first)
		}
		if left := kubectl(t, "-n", ns, "get", "datavolumes", "-o", "name"); left != "" {
			t.Errorf("there are %s", left)
		}
	}
	m.placed("")
	t.Cleanup(func() { kubectl(t, "uncordon", firstName) })
	if err := drain(firstName, "kubevirt.io=virt-launcher", 3*time.Minute); err != nil {
		t.Errorf("kubectl drain: %v", err)
	}
	kubectl(t, "uncordon", firstName)
	m.whole(boot)
	if m.uid() != uid {
		t.Error("the guest was restarted")
	}
	told := int(seconds(t, m.in(m.shell(), "cat /tmp/count")))
	names := m.disksOn(secondName)
	kubectl(t, "-n", ns, "delete", "vmi", m.name, "--timeout=600s")
	m.runs(uid)
	if now := m.disksOn(secondName); !slices.Equal(now, names) {
		t.Errorf("the next start has the claims %v, and before there were %v", now, names)
	}
	m.has(m.shell(), told)
	if left := kubectl(t, "-n", ns, "get", "datavolumes", "-o", "name"); strings.TrimSpace(left) != "" {
		t.Errorf("after a restart there are %s", left)
	}
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
	nothingLeft(t, ns, m.name)
}
