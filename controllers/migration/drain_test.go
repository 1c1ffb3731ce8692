package migration

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// taint has a node have taints of keys, with the effect NoSchedule.
func (c *cluster) taint(name string, keys ...string) *corev1.Node {
	c.t.Helper()
	node := &corev1.Node{}
	if err := c.client.Get(c.t.Context(), client.ObjectKey{Name: name}, node); err != nil {
		c.t.Fatal(err)
	}
	node.Spec.Taints = nil
	for _, key := range keys {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	if err := c.client.Update(c.t.Context(), node); err != nil {
		c.t.Fatal(err)
	}
	return node
}

// TestGuestLeavesNodeWithDrainTaint: a guest leaves a node that has the taint of nodeDrainTaintKey as if its pod was evicted, but the taint ends no guest.
func TestGuestLeavesNodeWithDrainTaint(t *testing.T) {
	const other = "example.com/maintenance"
	fine := func(*v1.VirtualMachineInstance) {}
	bridged := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Bridge: &v1.InterfaceBridge{}}}
	}
	is := func(s v1.EvictionStrategy) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.EvictionStrategy = &s }
	}
	for name, n := range map[string]struct {
		key    *string
		taints []string
		edit   func(*v1.VirtualMachineInstance)
		want   int
		warns  bool
	}{
		"by default":            {nil, []string{"a", "kubevirt.io/drain"}, fine, 1, false},
		"no taint":              {nil, nil, fine, 0, false},
		"another taint":         {nil, []string{other}, fine, 0, false},
		"the configured one":    {ptr.To(other), []string{other}, fine, 1, false},
		"no more the default":   {ptr.To(other), []string{"kubevirt.io/drain"}, fine, 0, false},
		"LiveMigrateIfPossible": {nil, []string{"kubevirt.io/drain"}, is(v1.EvictionStrategyLiveMigrateIfPossible), 1, false},
		"External":              {nil, []string{"kubevirt.io/drain"}, is(v1.EvictionStrategyExternal), 0, false},
		"None":                  {nil, []string{"kubevirt.io/drain"}, is(v1.EvictionStrategyNone), 0, false},
		"no strategy":           {nil, []string{"kubevirt.io/drain"}, func(vmi *v1.VirtualMachineInstance) { vmi.Spec.EvictionStrategy = nil }, 0, false},
		"it is on another node": {nil, []string{"kubevirt.io/drain"}, func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = "node2" }, 0, false},
		"it cannot move":        {nil, []string{"kubevirt.io/drain"}, bridged, 0, true},
		"it cannot move, and need not": {nil, []string{"kubevirt.io/drain"}, func(vmi *v1.VirtualMachineInstance) {
			bridged(vmi)
			is(v1.EvictionStrategyLiveMigrateIfPossible)(vmi)
		}, 0, false},
		"it tolerates the taint": {nil, []string{"kubevirt.io/drain"}, func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}, 0, false},
		"its VM names other claims": {nil, []string{"kubevirt.io/drain"}, func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "root", MovesTo: &v1.PersistentVolumeClaimInfo{ClaimName: "next"}}}
		}, 1, false},
	} {
		c := newCluster(t)
		m, spec := c.mover()
		spec.Configuration.MigrationConfiguration = &v1.ClusterMigrationConfiguration{NodeDrainTaintKey: n.key}
		c.taint("node1", n.taints...)
		vmi := c.leaver("a", func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = ""; n.edit(vmi) })
		made, _ := c.updates(m, vmi)
		if len(made) != n.want {
			t.Errorf("%s: %d migrations", name, len(made))
		}
		for _, m := range made {
			if !strings.HasPrefix(m.Name, "kubevirt-evacuation-") || m.EffectivePriority() != v1.PrioritySystemCritical || m.Annotations[v1.EvacuationMigrationAnnotation] != "node1" {
				t.Errorf("%s: %+v", name, m)
			}
		}
		if passes := m.toMove(t.Context(), vmi); passes != (n.want > 0) {
			t.Errorf("%s: an event of the VMI counts: %v", name, passes)
		}
		var warned []string
		for len(c.events.Events) > 0 {
			warned = append(warned, <-c.events.Events)
		}
		if slices.ContainsFunc(warned, func(e string) bool { return strings.Contains(e, "is to leave node node1") }) != n.warns {
			t.Errorf("%s: the events are %q", name, warned)
		}
	}
}

// TestTaintedGuestStaysWithoutAnotherNode: a guest stays that no other node takes, and an event says so. It moves once a node takes it.
func TestTaintedGuestStaysWithoutAnotherNode(t *testing.T) {
	c := newCluster(t)
	c.onTwoNodes()
	m, _ := c.mover()
	c.taint("node1", "kubevirt.io/drain")
	c.taint("node2", "example.com/full")
	vmi := c.leaver("a", func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = "" })
	if made, wait := c.updates(m, vmi); len(made) != 0 || wait != aloneDelay {
		t.Errorf("%d migrations, and another look after %s", len(made), wait)
	}
	if said := c.said(); !strings.Contains(said, v1.ReasonFailedCreate) {
		t.Errorf("the events are %q", said)
	}
	c.taint("node2")
	if made, _ := c.updates(m, vmi); len(made) != 1 {
		t.Errorf("%d migrations with another node", len(made))
	}
}

// TestMigrationIsDroppedWithItsTaint: a migration that a taint caused is dropped with the taint if it waits, and goes on if it has begun.
func TestMigrationIsDroppedWithItsTaint(t *testing.T) {
	for _, begun := range []bool{false, true} {
		c := newCluster(t)
		c.mover()
		c.taint("node1", "kubevirt.io/drain")
		c.leaver("a", func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = "" })
		m := c.migration("m", "a")
		m.Annotations = map[string]string{v1.EvacuationMigrationAnnotation: "node1"}
		if err := c.client.Update(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if begun {
			c.steps(m)
		}
		c.taint("node1")
		now, vmi := c.steps(m)
		if going := now != nil && now.IsUnderway(); going != begun || (vmi.Migration() != nil) != begun {
			t.Errorf("begun %v: the migration is %+v", begun, now)
		}
	}
}

// TestChangedTaintHasGuestsLookedAt: the guests of a node are looked at when its taints change, and all when the KubeVirt object does.
func TestChangedTaintHasGuestsLookedAt(t *testing.T) {
	c := newCluster(t)
	m, _ := c.mover()
	vmi := c.leaver("a", func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = "" })
	c.leaver("stays", func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.EvacuationNodeName, vmi.Spec.EvictionStrategy = "", nil
	})
	c.leaver("elsewhere", func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.EvacuationNodeName, vmi.Status.NodeName = "", "node2"
	})
	if all := m.all(t.Context(), nil); len(all) != 0 {
		t.Errorf("without a taint %v are looked at", all)
	}
	node := c.taint("node1", "kubevirt.io/drain")
	if some := m.itsGuests(t.Context(), node); len(some) != 1 || some[0].NamespacedName != client.ObjectKeyFromObject(vmi) {
		t.Errorf("%v are looked at", some)
	}
	if all := m.all(t.Context(), nil); len(all) != 1 || all[0].NamespacedName != client.ObjectKeyFromObject(vmi) {
		t.Errorf("when the KubeVirt object changes, %v are looked at", all)
	}
	plain := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	p := getsTaints()
	if p.Create(event.CreateEvent{Object: plain}) || !p.Create(event.CreateEvent{Object: node}) || !p.Update(event.UpdateEvent{ObjectOld: plain, ObjectNew: node}) ||
		p.Update(event.UpdateEvent{ObjectOld: node, ObjectNew: node}) || p.Update(event.UpdateEvent{ObjectOld: node, ObjectNew: plain}) || p.Delete(event.DeleteEvent{Object: node}) {
		t.Error("the wrong events of nodes count")
	}
}
