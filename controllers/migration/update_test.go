package migration

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const newImage, oldImage = "launcher:2", "launcher:1"

// outdated makes a VMI on node1 whose launcher is of the old image, after edit.
func (c *cluster) outdated(name string, edit func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	c.t.Helper()
	vmi := c.vm(name, "node1")
	vmi.Status.LauncherPods[0].Image = oldImage
	edit(vmi)
	status := vmi.Status
	if err := c.client.Update(c.t.Context(), vmi); err != nil {
		c.t.Fatal(err)
	}
	vmi.Status = status
	if err := c.client.Status().Update(c.t.Context(), vmi); err != nil {
		c.t.Fatal(err)
	}
	return vmi
}

func (c *cluster) updater(methods ...v1.WorkloadUpdateMethod) *Updater {
	return &Updater{Client: c.client, Live: c.client, Events: c.events, Clock: c.clock, LauncherImage: newImage,
		KubeVirt: func(context.Context) (*v1.KubeVirtSpec, error) {
			return &v1.KubeVirtSpec{WorkloadUpdateStrategy: v1.WorkloadUpdateStrategy{WorkloadUpdateMethods: methods}}, nil
		}}
}

// updates reconciles a VMI twice, as two events do, and returns all migrations.
func (c *cluster) updates(u *Updater, vmi *v1.VirtualMachineInstance) ([]v1.VirtualMachineInstanceMigration, time.Duration) {
	c.t.Helper()
	var after time.Duration
	for range 2 {
		result, err := u.Reconcile(c.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(vmi)})
		if err != nil {
			c.t.Fatal(err)
		}
		after = result.RequeueAfter
	}
	var all v1.VirtualMachineInstanceMigrationList
	if err := c.client.List(c.t.Context(), &all); err != nil {
		c.t.Fatal(err)
	}
	return all.Items, after
}

// node makes a node with a virt-handler.
func (c *cluster) node(name string) {
	c.t.Helper()
	c.make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.SchedulableLabel: "true"}}})
}

// TestUpdates: a guest whose launcher is of another image gets one migration, after those of users, if the strategy says so.
func TestUpdates(t *testing.T) {
	for name, n := range map[string]struct {
		edit    func(*v1.VirtualMachineInstance)
		methods []v1.WorkloadUpdateMethod
		want    int
	}{
		"LiveMigrate":       {func(*v1.VirtualMachineInstance) {}, []v1.WorkloadUpdateMethod{v1.WorkloadUpdateEvict, v1.WorkloadUpdateLiveMigrate}, 1},
		"Evict":             {func(*v1.VirtualMachineInstance) {}, []v1.WorkloadUpdateMethod{v1.WorkloadUpdateEvict}, 0},
		"no method":         {func(*v1.VirtualMachineInstance) {}, nil, 0},
		"the present image": {func(vmi *v1.VirtualMachineInstance) { vmi.Status.LauncherPods[0].Image = newImage }, []v1.WorkloadUpdateMethod{v1.WorkloadUpdateLiveMigrate}, 0},
		"it has ended":      {func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Failed }, []v1.WorkloadUpdateMethod{v1.WorkloadUpdateLiveMigrate}, 0},
		"it cannot move": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Bridge: &v1.InterfaceBridge{}}}
		}, []v1.WorkloadUpdateMethod{v1.WorkloadUpdateLiveMigrate}, 0},
		"it moves": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}
		}, []v1.WorkloadUpdateMethod{v1.WorkloadUpdateLiveMigrate}, 0},
	} {
		c := newCluster(t)
		c.node("node1")
		c.node("node2")
		vmi := c.outdated("a", n.edit)
		made, _ := c.updates(c.updater(n.methods...), vmi)
		if len(made) != n.want {
			t.Errorf("%s: %d migrations", name, len(made))
			continue
		}
		for _, m := range made {
			if !strings.HasPrefix(m.Name, "kubevirt-workload-update-") || m.Spec.VMIName != "a" || m.EffectivePriority() != v1.PrioritySystemMaintenance ||
				m.Annotations[v1.WorkloadUpdateMigrationAnnotation] != vmi.LauncherPod() || len(m.OwnerReferences) != 1 || m.OwnerReferences[0].UID != vmi.UID {
				t.Errorf("%s: %+v", name, m)
			}
		}
	}
}

// TestUpdateOfUnknownImage: of a pod of an earlier version the pod itself says which image it has.
func TestUpdateOfUnknownImage(t *testing.T) {
	for image, want := range map[string]int{oldImage: 1, newImage: 0} {
		c := newCluster(t)
		c.node("node2")
		vmi := c.outdated("a", func(vmi *v1.VirtualMachineInstance) { vmi.Status.LauncherPods[0].Image = "" })
		pod := &corev1.Pod{}
		if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: vmi.LauncherPod()}, pod); err != nil {
			t.Fatal(err)
		}
		pod.Spec.Containers = []corev1.Container{{Name: "compute", Image: image}}
		if err := c.client.Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if made, _ := c.updates(c.updater(v1.WorkloadUpdateLiveMigrate), vmi); len(made) != want {
			t.Errorf("%s: %d migrations", image, len(made))
		}
	}
}

// TestUpdateWaits: no migration is made for a guest that has no other node, while as many updates as may run are under way, or right after a failure.
func TestUpdateWaits(t *testing.T) {
	c := newCluster(t)
	c.node("node1")
	u := c.updater(v1.WorkloadUpdateLiveMigrate)
	vmi := c.outdated("a", func(*v1.VirtualMachineInstance) {})
	if made, after := c.updates(u, vmi); len(made) != 0 || after != aloneDelay {
		t.Errorf("on the only node: %d migrations, again after %s", len(made), after)
	}
	c.node("node2")
	for _, name := range []string{"b", "c", "d", "e", "f"} { // the cluster's limit
		c.updates(u, c.outdated(name, func(*v1.VirtualMachineInstance) {}))
	}
	made, after := c.updates(u, vmi)
	if len(made) != 5 || after != updateDelay {
		t.Fatalf("beside five updates: %d migrations, again after %s", len(made), after)
	}
	for i := range made {
		made[i].Status.SetPhase(v1.MigrationSucceeded, metav1.NewTime(c.clock.Now()))
		if err := c.client.Status().Update(t.Context(), &made[i]); err != nil {
			t.Fatal(err)
		}
	}
	if made, _ = c.updates(u, vmi); len(made) != 6 {
		t.Fatalf("after the five: %d migrations", len(made))
	}
	for i := range made {
		if m := &made[i]; m.Spec.VMIName == "a" {
			m.Status.SetPhase(v1.MigrationFailed, metav1.NewTime(c.clock.Now()))
			if err := c.client.Status().Update(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	if made, after := c.updates(u, vmi); len(made) != 6 || after != firstBackOff {
		t.Errorf("after a failure: %d migrations, again after %s", len(made), after)
	}
	c.clock.SetTime(c.clock.Now().Add(firstBackOff))
	if made, _ := c.updates(u, vmi); len(made) != 7 {
		t.Errorf("some time after a failure: %d migrations", len(made))
	}
}

// TestUpdateMoot: a migration to a new launcher is not needed once the guest has left the old one.
func TestUpdateMoot(t *testing.T) {
	c := newCluster(t)
	c.node("node2")
	vmi := c.outdated("a", func(*v1.VirtualMachineInstance) {})
	made, _ := c.updates(c.updater(v1.WorkloadUpdateLiveMigrate), vmi)
	if len(made) != 1 || moot(&made[0], vmi) != "" {
		t.Fatalf("%d migrations", len(made))
	}
	vmi.Status.LauncherPod = "another"
	if moot(&made[0], vmi) == "" {
		t.Error("a guest that has left the old launcher moves again")
	}
}
