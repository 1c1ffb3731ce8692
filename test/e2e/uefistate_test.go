package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// stateClaims are the claims with the state of a VM's guest.
func (m vm) stateClaims() ([]corev1.PersistentVolumeClaim, error) {
	list, err := getObject[corev1.PersistentVolumeClaimList]("-n", m.namespace, "persistentvolumeclaims", "-l", "persistent-state-for="+m.name)
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// TestUEFIPersistent: UEFI variables outlive the VMI on a claim of the VM, which goes with the VM. A tenant who puts something
// else into the claim is told so.
func TestUEFIPersistent(t *testing.T) {
	ns := namespace(t)
	c := provision(t, ns)
	configure(t, `{"vmStateStorageClass":"e2e-none"}`, `{"vmStateStorageClass":null}`)
	m := createVM(t, ns, "uefi", v1.RunStrategyManual, uefi(v1.EFI{SecureBoot: ptr.To(false), Persistent: ptr.To(true)}))
	m.asks(startIt)
	if err := poll(func() error {
		now, err := m.instance()
		if err != nil {
			return err
		}
		if s := now.Status.Condition(v1.ConditionSynchronized); s == nil || s.Reason != "FailedBackendStorageCreate" || !strings.Contains(s.Message, "StorageClass e2e-none") {
			return fmt.Errorf("without the class: %+v", s)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	m.awaitEvents("FailedBackendStorageCreate")
	configure(t, `{"vmStateStorageClass":"e2e-dynamic"}`, `{"vmStateStorageClass":null}`)
	first := m.runs("")
	pod := m.pod().Name
	m.log().expect("tiny: up")
	run := m.runner()
	run(mounts)
	run(keep("Kept", "for the next VMI"))

	claims, err := m.stateClaims()
	if err != nil || len(claims) != 1 {
		t.Fatalf("%d claims (%v)", len(claims), err)
	}
	claim := claims[0]
	if owner := claim.OwnerReferences; len(owner) != 1 || owner[0].Kind != "VirtualMachine" || owner[0].UID != m.machine().UID || claim.Spec.Resources.Requests.Storage().String() != "10Mi" {
		t.Errorf("the claim is %+v", claim)
	}
	m.awaitCondition(v1.ConditionLiveMigratable, v1.ReasonMigratable)

	m.asks(stopIt(first), startIt)
	second := m.runs(first)
	if m.pod().Name == pod {
		t.Error("the pod is the same")
	}
	m.log().expect("tiny: up")
	run = m.runner()
	run(mounts)
	if got := run(kept("Kept")); !strings.Contains(got, "for the next VMI") {
		t.Errorf("after the restart the variable is %q", got)
	}

	file := c.nodeFolder(string(claim.UID)) + "/nvram/uefi-variables.fd"
	m.asks(stopIt(second))
	m.is(v1.VirtualMachineStatusStopped)
	if out, err := onNodeNamed(claim.Annotations[selectedNode], `mv "$1" "$1.was" && ln -s /dev/shm/elsewhere "$1"`, file); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.asks(startIt)
	if err := poll(func() error {
		now, err := m.instance()
		if err != nil {
			return err
		}
		if r := now.Status.Condition(v1.ConditionReady); r == nil || !strings.Contains(r.Message, "/nvram/uefi-variables.fd is a symbolic link") {
			return fmt.Errorf("with a link in the claim: %s, %+v", now.Status.Phase, r)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if out, err := onNodeNamed(claim.Annotations[selectedNode], `mv -T "$1.was" "$1"`, file); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.asks(startIt)
	m.runs(second)
	m.log().expect("tiny: up")
	run = m.runner()
	run(mounts)
	if got := run(kept("Kept")); !strings.Contains(got, "for the next VMI") {
		t.Errorf("when the link is gone the variable is %q", got)
	}

	kubectl(t, "-n", ns, "delete", "vm", m.name)
	if err := poll(func() error {
		if claims, err := m.stateClaims(); err != nil || len(claims) > 0 {
			return fmt.Errorf("the VM's deletion left %d claims (%v)", len(claims), err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// sharedState makes a storage class whose volumes both nodes have, and one volume of the class.
func sharedState(t *testing.T) {
	t.Helper()
	path := fmt.Sprintf("/tmp/e2e-state-%d", time.Now().UnixNano()) // the machine's, and so every node's
	if out, err := onNode(`mkdir -m 777 "$1"`, path); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	name := strings.TrimPrefix(path, "/tmp/")
	t.Cleanup(func() {
		if _, err := output("", "kubectl", "delete", "persistentvolume", name, "--wait=false"); err != nil {
			t.Error(err)
		}
		if _, err := onNode(`rm -rf --one-file-system "$1"`, path); err != nil {
			t.Error(err)
		}
	})
	// The name of NFS' driver says that the class' volumes can be shared. The driver itself is not there.
	apply(t, "", fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: e2e-shared}
provisioner: nfs.csi.k8s.io
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec:
  capacity: {storage: 10Mi}
  accessModes: [ReadWriteMany]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: e2e-shared
  hostPath: {path: %s}
`, name, path))
}

// stateStorage are the two kinds of storage for guests' state: both nodes can use a claim, or one node can.
var stateStorage = []string{"e2e-shared", "e2e-dynamic"}

// storeState has claims with guests' state be of a class.
func storeState(t *testing.T, ns, class string) {
	t.Helper()
	if class == "e2e-shared" {
		sharedState(t)
	} else {
		provision(t, ns)
	}
	configure(t, fmt.Sprintf(`{"vmStateStorageClass":%q}`, class), `{"vmStateStorageClass":null}`)
}

// stateClaim waits until the VM has a single claim with state, which is there to stay, and returns the claim.
func (m vm) stateClaim() (claim corev1.PersistentVolumeClaim) {
	m.t.Helper()
	if err := poll(func() error {
		claims, err := m.stateClaims()
		if err != nil || len(claims) != 1 || claims[0].DeletionTimestamp != nil {
			return fmt.Errorf("the claims with state are %+v (%v)", claims, err)
		}
		claim = claims[0]
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
	return claim
}

// stateMoved checks that a guest that has moved has its state on the same claim if both nodes can use it, and else on another one, of the guest's node.
func (m vm) stateMoved(before corev1.PersistentVolumeClaim, class string) {
	m.t.Helper()
	now, guest := m.stateClaim(), m.get()
	if s := guest.Status.MigrationState; s.SourcePersistentStatePVCName != before.Name || s.TargetPersistentStatePVCName != now.Name {
		m.t.Errorf("the status says that the state went from %q to %q; the claims were %s and %s", s.SourcePersistentStatePVCName, s.TargetPersistentStatePVCName, before.Name, now.Name)
	}
	if class == "e2e-shared" {
		if now.UID != before.UID {
			m.t.Errorf("the state is on claim %s, and was on %s, which both nodes can use", now.Name, before.Name)
		}
		return
	}
	if on := now.Annotations[selectedNode]; now.UID == before.UID || on != guest.Status.NodeName {
		m.t.Errorf("the state is on claim %s of node %s; the guest came from claim %s, and is on node %s", now.Name, on, before.Name, guest.Status.NodeName)
	}
}

// TestMigrationUEFIPersistent: a guest whose variables are on a claim moves, and goes on to keep its variables on a claim.
func TestMigrationUEFIPersistent(t *testing.T) {
	newSecondNode(t)
	for _, class := range stateStorage {
		t.Run(class, func(t *testing.T) { migrateVariables(t, class) })
	}
}

func migrateVariables(t *testing.T, class string) {
	ns := namespace(t)
	storeState(t, ns, class)
	m := createVM(t, ns, "uefi", v1.RunStrategyAlways, uefi(v1.EFI{SecureBoot: ptr.To(false), Persistent: ptr.To(true)}))
	first := m.runs("")
	m.log().expect("tiny: up")
	run := m.runner()
	run(mounts)
	run(keep("Source", "made before the migration"))
	m.canMove()
	source, claim := m.get().Status.NodeName, m.stateClaim()
	m.migrate("move", nil).ends(v1.MigrationSucceeded)
	if target := m.get().Status.NodeName; target == source {
		t.Fatalf("the guest is on %s still", target)
	}
	m.stateMoved(claim, class)
	run = m.runner()
	run(keep("Target", "made after the migration"))
	// A guest that is paused has its variables on the claim of its node too, although QEMU has written none there.
	claim = m.stateClaim()
	m.asked(http.StatusOK, "", "", "virtualmachineinstances", "pause", nil)
	m.awaitCondition(v1.ConditionPaused, "PausedByUser")
	m.migrate("back", nil).ends(v1.MigrationSucceeded)
	if now := m.get().Status.NodeName; now != source {
		t.Fatalf("the paused guest is on %s still", now)
	}
	m.stateMoved(claim, class)
	m.asks(stopIt(first), startIt)
	m.runs(first)
	m.log().expect("tiny: up")
	run = m.runner()
	run(mounts)
	for name, want := range map[string]string{"Source": "made before the migration", "Target": "made after the migration"} {
		if got := run(kept(name)); !strings.Contains(got, want) {
			t.Errorf("after migration and restart the variable %s is %q", name, got)
		}
	}
}
