package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// emptyClaim makes a claim that becomes bound at its first consumer.
func emptyClaim(t *testing.T, ns, name, size string) {
	t.Helper()
	apply(t, ns, fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec: {accessModes: [ReadWriteOnce], storageClassName: e2e-dynamic, resources: {requests: {storage: %s}}}
`, name, size))
}

// names has the VM's template name claims for its two disks. As in KubeVirt, a volume must name each of the dataVolumeTemplates.
func (m vm) names(root, data string) {
	m.t.Helper()
	m.patch(fmt.Sprintf(`{"spec":{"updateVolumesStrategy":"Migration","dataVolumeTemplates":null,"template":{"spec":{"volumes":[{"name":"root","persistentVolumeClaim":{"claimName":%q}},{"name":"data","persistentVolumeClaim":{"claimName":%q}}]}}}}`, root, data))
}

// usesClaims waits until the guest has its disks on claims, and the VMI's spec says so.
func (m vm) usesClaims(root, data string) {
	m.t.Helper()
	if err := poll(func() error {
		now, err := m.instance()
		if err != nil {
			return err
		}
		for name, claim := range map[string]string{"root": root, "data": data} {
			for i := range now.Spec.Volumes {
				if v := &now.Spec.Volumes[i]; v.Name == name && (v.Claim() == nil || v.Claim().Name != claim || now.Claim(v).Name != claim) {
					state, _ := json.Marshal(now.Status.MigrationState)
					return fmt.Errorf("volume %s is on claim %+v, and the spec says %+v; migration %s", name, now.Claim(v), v.Claim(), state)
				}
			}
		}
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
}

// vmSays waits for a condition of the VM with words in its message; no words stand for no condition.
func (m vm) vmSays(kind v1.ConditionType, words string) {
	m.t.Helper()
	if err := poll(func() error {
		c := m.machine().Status.Condition(kind)
		if (c == nil) != (words == "") || c != nil && !strings.Contains(c.Message, words) {
			return fmt.Errorf("the condition %s is %+v, want %q", kind, c, words)
		}
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
}

// TestVolumeUpdate: a user names other claims in the template of a VM whose guest runs. A migration copies the disks to them, the guest
// goes on, and later starts use the new claims. Whatever the user names, no disk is lost.
func TestVolumeUpdate(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	provision(t, ns)
	m := onClaims(t, ns, "update")
	uid := m.uid()
	shell := m.shell()
	boot := m.in(shell, firstSum)
	m.in(shell, "mkdir -p /tmp")
	m.in(shell, counting)

	// A claim that is not there yet, and one that is too small.
	emptyClaim(t, ns, "next-data", "64Mi")
	m.names("next-root", "next-data")
	m.vmSays(v1.ConditionVolumesChange, "there is no claim next-root")
	m.vmSays(v1.ConditionVolumesChange, "claim next-data asks for 64Mi")
	m.vmSays(v1.ConditionRestartRequired, "")
	kubectl(t, "-n", ns, "delete", "pvc", "next-data")
	emptyClaim(t, ns, "next-root", kubectl(t, "-n", ns, "get", "pvc", "update-root", "-o", "jsonpath={.spec.resources.requests.storage}"))
	emptyClaim(t, ns, "next-data", kubectl(t, "-n", ns, "get", "pvc", "update-data", "-o", "jsonpath={.spec.resources.requests.storage}"))
	m.usesClaims("next-root", "next-data")
	m.vmSays(v1.ConditionVolumesChange, "")
	m.whole(boot)
	if m.uid() != uid {
		t.Error("the guest was restarted")
	}
	if now, err := m.instance(); err != nil || now.Status.NodeName != secondName {
		t.Errorf("the guest is on node %s, want %s (%v)", now.Status.NodeName, secondName, err)
	}
	if left := kubectl(t, "-n", ns, "get", "datavolumes", "-o", "name"); strings.Count(left, "datavolume") != 2 {
		t.Errorf("of the old disks there are %q", left)
	}

	// A start before the disks were copied would have other disks. A claim that has data is not overwritten.
	m.names("update-root", "update-data") // the old disks
	m.vmSays(v1.ConditionVolumesChange, "has a disk already")
	m.whole(boot)
	told := int(seconds(t, m.in(m.shell(), "cat /tmp/count")))
	kubectl(t, "-n", ns, "delete", "vmi", m.name, "--timeout=600s")
	m.vmSays(v1.ConditionManualRecoveryRequired, "from claim next-root to claim update-root")
	if vmis := kubectl(t, "-n", ns, "get", "vmi", "-o", "name"); vmis != "" {
		t.Errorf("the VM was started all the same: %s", vmis)
	}
	m.names("next-root", "next-data")
	m.runs(uid)
	m.vmSays(v1.ConditionManualRecoveryRequired, "")
	shell = m.shell()
	m.has(shell, told)
	if got := m.in(shell, firstSum); got != boot {
		t.Errorf("the root disk has %s, and had %s", got, boot)
	}
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
	nothingLeft(t, ns, m.name)
	if left := get[corev1.PersistentVolumeClaimList](t, "-n", ns, "persistentvolumeclaims").Items; len(left) != 2 {
		t.Errorf("the claims of the user that are left: %d", len(left))
	}
}
