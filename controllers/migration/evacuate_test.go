package migration

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// leaver makes a VMI whose guest an eviction asks to leave node1.
func (c *cluster) leaver(name string, edit func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	c.t.Helper()
	vmi := c.vm(name, "node1")
	vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate)
	vmi.Status.EvacuationNodeName = "node1"
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

// evacuates reconciles a VMI twice, as two events do, and returns its migrations.
func (c *cluster) evacuates(vmi *v1.VirtualMachineInstance) ([]v1.VirtualMachineInstanceMigration, time.Duration) {
	c.t.Helper()
	e := &Evacuator{Client: c.client, Live: c.client, Events: c.events, Clock: c.clock}
	var after time.Duration
	for range 2 {
		result, err := e.Reconcile(c.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(vmi)})
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

// TestEvacuation: a guest that an eviction asks to leave its node gets one migration, before those of users.
func TestEvacuation(t *testing.T) {
	for name, n := range map[string]struct {
		edit func(*v1.VirtualMachineInstance)
		want int
	}{
		"LiveMigrate": {func(*v1.VirtualMachineInstance) {}, 1},
		"LiveMigrateIfPossible": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrateIfPossible)
		}, 1},
		"External":     {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyExternal) }, 0},
		"no strategy":  {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.EvictionStrategy = nil }, 0},
		"not asked":    {func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = "" }, 0},
		"it has left":  {func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = "node2" }, 0},
		"it has ended": {func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Succeeded }, 0},
		"it cannot move": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Bridge: &v1.InterfaceBridge{}}}
		}, 0},
		"it moves": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}
		}, 0},
	} {
		c := newCluster(t)
		vmi := c.leaver("a", n.edit)
		made, _ := c.evacuates(vmi)
		if len(made) != n.want {
			t.Errorf("%s: %d migrations", name, len(made))
			continue
		}
		for _, m := range made {
			if !strings.HasPrefix(m.Name, "kubevirt-evacuation-") || m.Namespace != vmi.Namespace || m.Spec.VMIName != "a" || m.EffectivePriority() != v1.PrioritySystemCritical ||
				m.Annotations[v1.EvacuationMigrationAnnotation] != "node1" || len(m.OwnerReferences) != 1 || m.OwnerReferences[0].UID != vmi.UID {
				t.Errorf("%s: %+v", name, m)
			}
		}
	}
	c := newCluster(t)
	vmi := c.leaver("a", func(*v1.VirtualMachineInstance) {})
	c.migration("of-a-user", "a")
	if made, _ := c.evacuates(vmi); len(made) != 2 {
		t.Errorf("beside a user's migration that waits: %d migrations", len(made))
	}
	c = newCluster(t)
	vmi = c.leaver("a", func(*v1.VirtualMachineInstance) {})
	own := c.migration("of-a-user", "a")
	own.Status.SetPhase(v1.MigrationScheduling, metav1.NewTime(c.clock.Now()))
	if err := c.client.Status().Update(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	if made, _ := c.evacuates(vmi); len(made) != 1 {
		t.Errorf("beside a user's migration that has begun: %d migrations", len(made))
	}
}

// TestEvacuationName: a migration that has the name already, and is not the one that is to be made, holds up nothing.
func TestEvacuationName(t *testing.T) {
	for name, n := range map[string]struct {
		edit func(*v1.VirtualMachineInstanceMigration)
		want int
	}{
		"of another VMI": {func(m *v1.VirtualMachineInstanceMigration) { m.Spec.VMIName = "b" }, 2},
		"which has ended": {func(m *v1.VirtualMachineInstanceMigration) {
			m.Status.SetPhase(v1.MigrationFailed, metav1.Unix(1000, 0))
			m.Annotations, m.OwnerReferences = nil, nil
		}, 2},
		"the same": {func(*v1.VirtualMachineInstanceMigration) {}, 1},
	} {
		c := newCluster(t)
		vmi := c.leaver("a", func(*v1.VirtualMachineInstance) {})
		taken := evacuationOf(vmi, nil)
		n.edit(taken)
		status := taken.Status
		c.make(taken)
		taken.Status = status
		if err := c.client.Status().Update(t.Context(), taken); err != nil {
			t.Fatal(err)
		}
		e := &Evacuator{Client: c.client, Live: c.client, Events: c.events, Clock: c.clock}
		behind, err := e.create(t.Context(), vmi, evacuationOf(vmi, nil))
		if err != nil || behind != (n.want == 1) {
			t.Errorf("%s: behind %v, %v", name, behind, err)
		}
		var all v1.VirtualMachineInstanceMigrationList
		if err := c.client.List(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		if len(all.Items) != n.want {
			t.Errorf("%s: %d migrations", name, len(all.Items))
		}
	}
}

// TestBackOffClock: the clock of an earlier virt-controller may be ahead.
func TestBackOffClock(t *testing.T) {
	now := time.Unix(1000, 0)
	m := &v1.VirtualMachineInstanceMigration{}
	m.Status.SetPhase(v1.MigrationFailed, metav1.NewTime(now.Add(time.Hour)))
	if wait := backOff([]*v1.VirtualMachineInstanceMigration{m}, now); wait != 0 {
		t.Errorf("after a failure an hour from now it waits for %v", wait)
	}
}

// TestEvacuationAgain: an evacuation that has failed is tried again, later each time.
func TestEvacuationAgain(t *testing.T) {
	c := newCluster(t)
	vmi := c.leaver("a", func(*v1.VirtualMachineInstance) {})
	var waits []time.Duration
	for i := range 7 {
		made, _ := c.evacuates(vmi)
		var open *v1.VirtualMachineInstanceMigration
		for j := range made {
			if !made[j].IsFinal() {
				open = &made[j]
			}
		}
		if open == nil {
			t.Fatalf("after %d failures there is no other migration", i)
		}
		open.UID, open.CreationTimestamp = types.UID(open.Name), metav1.NewTime(c.clock.Now()) // as the API server does
		open.Status.SetPhase(v1.MigrationFailed, metav1.NewTime(c.clock.Now()))
		if err := c.client.Update(t.Context(), open.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		now := &v1.VirtualMachineInstanceMigration{}
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(open), now); err != nil {
			t.Fatal(err)
		}
		now.Status = open.Status
		if err := c.client.Status().Update(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		after, wait := c.evacuates(vmi)
		if len(after) != len(made) {
			t.Fatalf("after %d failures another migration is made at once", i+1)
		}
		waits = append(waits, wait)
		c.clock.SetTime(c.clock.Now().Add(wait))
	}
	want := []time.Duration{20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute, 5 * time.Minute}
	for i := range want {
		if waits[i] != want[i] {
			t.Errorf("waits of %v, want %v", waits, want)
			break
		}
	}
}

// TestMoot: an evacuation that has not begun goes when nobody asks for it any more.
func TestMoot(t *testing.T) {
	for name, n := range map[string]struct {
		edit func(*v1.VirtualMachineInstance)
		goes bool
	}{
		"asked":           {func(*v1.VirtualMachineInstance) {}, false},
		"taken back":      {func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = "" }, true},
		"it left already": {func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = "node2" }, true},
	} {
		c := newCluster(t)
		vmi := c.leaver("a", func(*v1.VirtualMachineInstance) {})
		made, _ := c.evacuates(vmi)
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi); err != nil {
			t.Fatal(err)
		}
		n.edit(vmi)
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		now, after := c.steps(&made[0])
		if n.goes != (now == nil) || n.goes && after.Status.MigrationState != nil || !n.goes && now.Status.Phase != v1.MigrationScheduling {
			t.Errorf("%s: %+v, %+v", name, now, after.Status.MigrationState)
		}
	}
}
