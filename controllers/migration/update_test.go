package migration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const newImage, oldImage = "launcher:2", "launcher:1"

// outdated makes a VMI on node1 whose launcher is of the old image, after edit.
func (c *cluster) outdated(name string, edit func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	c.t.Helper()
	vmi := c.vm(name, "node1")
	vmi.Status.LauncherContainerImageVersion = oldImage
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

// mover is a Mover of a cluster with two nodes, whose KubeVirt object has the methods.
func (c *cluster) mover(methods ...v1.WorkloadUpdateMethod) (*Mover, *v1.KubeVirtSpec) {
	c.t.Helper()
	for _, name := range []string{"node1", "node2"} {
		c.make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.SchedulableLabel: "true", corev1.LabelHostname: "host-of-" + name}}})
	}
	spec := &v1.KubeVirtSpec{WorkloadUpdateStrategy: &v1.WorkloadUpdateStrategy{WorkloadUpdateMethods: methods}}
	return &Mover{Client: c.client, Live: c.client, Events: c.events, Clock: c.clock, LauncherImage: newImage,
		KubeVirt:  func(context.Context) (*v1.KubeVirtSpec, error) { return spec, nil },
		RolledOut: func(context.Context) (bool, error) { return true, nil }}, spec
}

// updates reconciles a VMI twice, as two events do, and returns all migrations.
func (c *cluster) updates(m *Mover, vmi *v1.VirtualMachineInstance) ([]v1.VirtualMachineInstanceMigration, time.Duration) {
	c.t.Helper()
	var after time.Duration
	for range 2 {
		result, err := m.Reconcile(c.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(vmi)})
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

// TestOutdatedLauncherMakesOneMigration: a guest whose launcher is of another image gets one migration, after those of users, if the strategy says so.
func TestOutdatedLauncherMakesOneMigration(t *testing.T) {
	both := []v1.WorkloadUpdateMethod{v1.WorkloadUpdateEvict, v1.WorkloadUpdateLiveMigrate}
	for name, n := range map[string]struct {
		edit    func(*v1.VirtualMachineInstance)
		methods []v1.WorkloadUpdateMethod
		want    int
	}{
		"LiveMigrate":       {func(*v1.VirtualMachineInstance) {}, both, 1},
		"Evict":             {func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Scheduled }, both[:1], 0},
		"no method":         {func(*v1.VirtualMachineInstance) {}, nil, 0},
		"the present image": {func(vmi *v1.VirtualMachineInstance) { vmi.Status.LauncherContainerImageVersion = newImage }, both, 0},
		"no known image":    {func(vmi *v1.VirtualMachineInstance) { vmi.Status.LauncherContainerImageVersion = "" }, both, 0},
		"it has ended":      {func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Failed }, both, 0},
		"it cannot move": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Bridge: &v1.InterfaceBridge{}}}
		}, both, 0},
		"it moves": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}
		}, both, 0},
		"no node has its labels": {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.NodeSelector = map[string]string{"rack": "7"} }, both, 0},
	} {
		c := newCluster(t)
		m, _ := c.mover(n.methods...)
		vmi := c.outdated("a", n.edit)
		made, _ := c.updates(m, vmi)
		if len(made) != n.want {
			t.Errorf("%s: %d migrations", name, len(made))
			continue
		}
		for _, made := range made {
			if !strings.HasPrefix(made.Name, "kubevirt-workload-update-") || made.Spec.VMIName != "a" || made.EffectivePriority() != v1.PrioritySystemMaintenance ||
				made.Annotations[v1.WorkloadUpdateMigrationAnnotation] != vmi.LauncherPod() || made.StaysOnNode() || !made.UpdatesLauncher() || len(made.OwnerReferences) != 1 || made.OwnerReferences[0].UID != vmi.UID {
				t.Errorf("%s: %+v", name, made)
			}
		}
	}
}

// TestUpdatesWaitForHandlersAndPlaces: no guest moves while virt-handlers are being replaced, to a node that is cordoned, or while others have the places
// of updates.
func TestUpdatesWaitForHandlersAndPlaces(t *testing.T) {
	c := newCluster(t)
	c.onTwoNodes()
	m, _ := c.mover(v1.WorkloadUpdateLiveMigrate)
	vmi := c.outdated("a", func(*v1.VirtualMachineInstance) {})
	m.RolledOut = func(context.Context) (bool, error) { return false, nil }
	if made, after := c.updates(m, vmi); len(made) != 0 || after != turnDelay {
		t.Errorf("during a roll-out: %d migrations, looked at again after %s", len(made), after)
	}
	m.RolledOut = func(context.Context) (bool, error) { return true, nil }
	c.cordon("node1", true)
	c.cordon("node2", true)
	if made, after := c.updates(m, vmi); len(made) != 0 || after != aloneDelay {
		t.Errorf("with both nodes cordoned: %d migrations, looked at again after %s", len(made), after)
	}
	c.cordon("node1", false)
	c.cordon("node2", false)
	second := c.outdated("b", func(*v1.VirtualMachineInstance) {})
	if made, _ := c.updates(m, vmi); len(made) != 1 {
		t.Fatalf("%d migrations", len(made))
	}
	// Both leave node1, from which two guests may go at a time.
	if made, after := c.updates(m, second); len(made) != 1 || after != turnDelay {
		t.Errorf("beside another update of the node: %d migrations, looked at again after %s", len(made), after)
	}
}

func (c *cluster) cordon(name string, cordoned bool) {
	c.t.Helper()
	node := &corev1.Node{}
	if err := c.client.Get(c.t.Context(), client.ObjectKey{Name: name}, node); err != nil {
		c.t.Fatal(err)
	}
	node.Spec.Unschedulable = cordoned
	if err := c.client.Update(c.t.Context(), node); err != nil {
		c.t.Fatal(err)
	}
}

// TestGuestGoesToAnotherNodeIfThereIsOne: a guest goes to any other node that takes it, and to another pod on its own node only if there is none.
func TestGuestGoesToAnotherNodeIfThereIsOne(t *testing.T) {
	node := func(name string, edit func(*corev1.Node)) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.SchedulableLabel: "true", corev1.LabelHostname: name + "-host"}}}
		edit(&n)
		return n
	}
	fine := func(*corev1.Node) {}
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	away := func(n *corev1.Node) { n.Labels[v1.SchedulableLabel] = "false" }
	tainted := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "own", Effect: corev1.TaintEffectNoSchedule}}
	}
	tolerates := []corev1.Toleration{{Key: "own", Operator: corev1.TolerationOpExists}}
	for name, c := range map[string]struct {
		pages       [][]corev1.Node
		tolerations []corev1.Toleration
		want        destination
	}{
		"no node":                          {},
		"its own node":                     {pages: [][]corev1.Node{{node("own", fine)}}, want: destination{hostname: "own-host"}},
		"another":                          {pages: [][]corev1.Node{{node("own", fine), node("b", fine)}}, want: destination{true, "own-host"}},
		"another on a later page":          {pages: [][]corev1.Node{{node("own", fine)}, {node("b", fine)}}, want: destination{true, "own-host"}},
		"another that is cordoned":         {pages: [][]corev1.Node{{node("own", fine), node("b", cordoned)}}, want: destination{hostname: "own-host"}},
		"another without virt-handler":     {pages: [][]corev1.Node{{node("own", fine), node("b", away)}}, want: destination{hostname: "own-host"}},
		"another that is tainted":          {pages: [][]corev1.Node{{node("own", fine), node("b", tainted)}}, want: destination{hostname: "own-host"}},
		"another whose taint it tolerates": {pages: [][]corev1.Node{{node("own", fine), node("b", tainted)}}, tolerations: tolerates, want: destination{true, "own-host"}},
		"its own is cordoned":              {pages: [][]corev1.Node{{node("own", cordoned)}}},
		"its own has no virt-handler":      {pages: [][]corev1.Node{{node("own", away)}}},
		"its own is tainted":               {pages: [][]corev1.Node{{node("own", tainted)}}},
		"its own has no hostname":          {pages: [][]corev1.Node{{node("own", func(n *corev1.Node) { delete(n.Labels, corev1.LabelHostname) })}}},
		"another, and its own is cordoned": {pages: [][]corev1.Node{{node("own", cordoned), node("b", fine)}}, want: destination{other: true}},
	} {
		var got destination
		for _, page := range c.pages {
			got.look(page, "own", c.tolerations)
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestUpdateOnOwnNode: where only the guest's own node takes the guest, its update names that node.
func TestUpdateOnOwnNode(t *testing.T) {
	c := newCluster(t)
	c.onTwoNodes()
	m, _ := c.mover(v1.WorkloadUpdateLiveMigrate)
	vmi := c.outdated("a", func(*v1.VirtualMachineInstance) {})
	c.cordon("node2", true)
	made, _ := c.updates(m, vmi)
	if len(made) != 1 || !made[0].StaysOnNode() || made[0].Spec.AddedNodeSelector[corev1.LabelHostname] != "host-of-node1" {
		t.Errorf("the migrations are %+v", made)
	}
}

// TestDeletedUpdateDoesNotComeBackAtOnce: an update that somebody deletes does not come back at once, and one that is not wanted any more goes.
func TestDeletedUpdateDoesNotComeBackAtOnce(t *testing.T) {
	c := newCluster(t)
	m, spec := c.mover(v1.WorkloadUpdateLiveMigrate)
	vmi := c.outdated("a", func(*v1.VirtualMachineInstance) {})
	gone := func() {
		t.Helper()
		made, _ := c.updates(m, vmi)
		if len(made) != 1 {
			t.Fatalf("%d migrations", len(made))
		}
		made[0].Finalizers = nil
		if err := errors.Join(c.client.Update(t.Context(), &made[0]), client.IgnoreNotFound(c.client.Delete(t.Context(), &made[0]))); err != nil {
			t.Fatal(err)
		}
	}
	gone()
	if made, after := c.updates(m, vmi); len(made) != 0 || after != againDelay {
		t.Errorf("%d migrations, looked at again after %s", len(made), after)
	}
	c.clock.SetTime(c.clock.Now().Add(againDelay))
	if made, _ := c.updates(m, vmi); len(made) != 1 {
		t.Errorf("after the pause: %d migrations", len(made))
	}
	spec.WorkloadUpdateStrategy = nil
	if made, _ := c.updates(m, vmi); len(made) != 1 || made[0].DeletionTimestamp == nil {
		t.Errorf("without the strategy there are %+v", made)
	}
}

// TestEndlessUpdatesBecomeSeldom: a guest whose launcher has another image after each update, because a webhook changes the images of new pods, is not moved
// without a pause, and more and more seldom. So is one whose updates fail.
func TestEndlessUpdatesBecomeSeldom(t *testing.T) {
	c := newCluster(t)
	m, _ := c.mover(v1.WorkloadUpdateLiveMigrate)
	vmi := c.outdated("a", func(*v1.VirtualMachineInstance) {})
	for i, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 32} {
		made, _ := c.updates(m, vmi)
		if len(made) != 1 {
			t.Fatalf("update %d: %d migrations", i, len(made))
		}
		made[0].Finalizers = nil
		if err := errors.Join(c.client.Update(t.Context(), &made[0]), c.client.Delete(t.Context(), &made[0])); err != nil {
			t.Fatal(err)
		}
		vmi.Status.LauncherPod = fmt.Sprint("pod-", i)
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		if made, after := c.updates(m, vmi); len(made) != 0 || after != pause*againDelay {
			t.Fatalf("after update %d: %d migrations, looked at again after %s", i, len(made), after)
		}
		c.clock.SetTime(c.clock.Now().Add(pause * againDelay))
	}
}

// TestFailedUpdateIsRetriedLater: an update that fails is tried again after longer and longer pauses, also by a virt-controller that did not make it.
func TestFailedUpdateIsRetriedLater(t *testing.T) {
	c := newCluster(t)
	vmi := c.outdated("a", func(*v1.VirtualMachineInstance) {})
	first, _ := c.mover(v1.WorkloadUpdateLiveMigrate)
	for i, pause := range []time.Duration{1, 2, 4, 8} {
		m := &Mover{Client: first.Client, Live: first.Live, Events: first.Events, Clock: first.Clock, LauncherImage: newImage, KubeVirt: first.KubeVirt, RolledOut: first.RolledOut}
		made, _ := c.updates(m, vmi)
		at := slices.IndexFunc(made, func(m v1.VirtualMachineInstanceMigration) bool { return !m.IsFinal() })
		if at < 0 {
			t.Fatalf("after %d failures there is no other migration", i)
		}
		open := &made[at]
		open.UID, open.CreationTimestamp = types.UID(open.Name), metav1.NewTime(c.clock.Now()) // as the API server does
		open.Status.SetPhase(v1.MigrationFailed, metav1.NewTime(c.clock.Now()))
		status := open.Status
		if err := c.client.Update(t.Context(), open); err != nil {
			t.Fatal(err)
		}
		open.Status = status
		if err := c.client.Status().Update(t.Context(), open); err != nil {
			t.Fatal(err)
		}
		other := &Mover{Client: m.Client, Live: m.Live, Events: m.Events, Clock: m.Clock, LauncherImage: newImage, KubeVirt: m.KubeVirt, RolledOut: m.RolledOut}
		if made, after := c.updates(other, vmi); len(made) != i+1 || after != pause*againDelay {
			t.Fatalf("after %d failures: %d migrations, looked at again after %s", i+1, len(made), after)
		}
		c.clock.SetTime(c.clock.Now().Add(pause * againDelay))
	}
}

// TestFailingNamespaceLetsOthersUpdateFirst: a namespace whose updates fail comes after namespaces that wait and whose updates do not. It waits for no namespace that does not
// wait any more.
func TestFailingNamespaceLetsOthersUpdateFirst(t *testing.T) {
	vmi := func(namespace, name string) *v1.VirtualMachineInstance {
		return &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	u, now, failed := &updates{}, time.Unix(1000, 0), map[string]int{"bad": 2, "unlucky": 1}
	turn := func(namespace, name string, room bool) bool {
		return u.hasTurn(vmi(namespace, name), room, failed, now)
	}
	if !turn("bad", "a", true) {
		t.Error("nobody waits, and a guest has no turn")
	}
	if turn("good", "a", false) || turn("unlucky", "a", false) || turn("bad", "b", false) {
		t.Error("without room a guest has its turn")
	}
	if turn("bad", "b", true) || turn("unlucky", "a", true) || !turn("good", "a", true) {
		t.Error("the order of the first turn is wrong")
	}
	if turn("bad", "b", true) || !turn("unlucky", "a", true) || !turn("bad", "b", true) {
		t.Error("the order of the later turns is wrong")
	}
	if turn("good", "b", false) || turn("bad", "b", true) {
		t.Error("a guest that waits is passed over")
	}
	if now = now.Add(2*turnDelay + 1); !turn("bad", "b", true) {
		t.Error("a guest waits for one that does not wait any more")
	}
	turn("good", "b", false)
	if u.forget(client.ObjectKeyFromObject(vmi("good", "b"))); !turn("bad", "b", true) || len(u.turns) != 0 {
		t.Errorf("a guest that is gone waits: %v", u.turns)
	}
}

// TestGuestThatHasMovedNeedsNoUpdate: a guest that has left the launcher by another migration needs no update.
func TestGuestThatHasMovedNeedsNoUpdate(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Status.LauncherPod = "new"
	for pod, want := range map[string]bool{"old": true, "new": false, "": false} {
		m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1.WorkloadUpdateMigrationAnnotation: pod}}}
		if got := moot(m, vmi, false); (got != "") != want {
			t.Errorf("pod %q: %q", pod, got)
		}
	}
}

// TestUpdateOnOwnNodeMakesWayForEviction: an update that keeps a guest on its node holds up no eviction and no taint, unless the guest is being copied already. A target
// pod that finds no room on the node would wait for minutes.
func TestUpdateOnOwnNodeMakesWayForEviction(t *testing.T) {
	evicted := func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = "node1" }
	tainted := func(*v1.VirtualMachineInstance) {}
	for name, n := range map[string]struct {
		asked  func(*v1.VirtualMachineInstance)
		taints []string
		edit   func(*v1.VirtualMachineInstanceMigration)
		copies bool
		goes   bool
	}{
		"evicted":               {asked: evicted},
		"tainted":               {asked: tainted, taints: []string{"kubevirt.io/drain"}},
		"nobody asks":           {asked: tainted, goes: true},
		"it is copied already":  {asked: evicted, copies: true, goes: true},
		"it goes anywhere else": {asked: evicted, edit: func(m *v1.VirtualMachineInstanceMigration) { m.Spec.AddedNodeSelector = nil }, goes: true},
		"a strategy that has the guest stay": {asked: func(vmi *v1.VirtualMachineInstance) {
			evicted(vmi)
			vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyExternal)
		}, goes: true},
	} {
		c := newCluster(t)
		c.mover()
		vmi := c.leaver("a", func(vmi *v1.VirtualMachineInstance) {
			n.asked(vmi)
			vmi.Status.EvacuationNodeName = ""
		})
		m := c.migration("m", "a")
		m.Annotations = map[string]string{v1.WorkloadUpdateMigrationAnnotation: vmi.LauncherPod()}
		m.Spec.Priority, m.Spec.AddedNodeSelector = ptr.To(v1.PrioritySystemMaintenance), map[string]string{corev1.LabelHostname: "host-of-node1"}
		if n.edit != nil {
			n.edit(m)
		}
		if err := c.client.Update(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if _, vmi = c.steps(m); c.targets() != 1 {
			t.Fatalf("%s: there is no target pod", name)
		}
		n.asked(vmi)
		if n.copies {
			vmi.Status.MigrationState.StartTimestamp = &metav1.Time{Time: c.clock.Now()}
		}
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		c.taint("node1", n.taints...)
		now, vmi := c.steps(m)
		if goes := !now.IsFinal() && vmi.Migration() != nil; goes != n.goes || c.targets() != map[bool]int{true: 1}[n.goes] {
			t.Errorf("%s: the migration is %s, there are %d target pods: %+v", name, now.Status.Phase, c.targets(), vmi.Status.MigrationState)
		} else if !goes && !strings.Contains(now.Status.MigrationState.FailureReason, "is to leave node") {
			t.Errorf("%s: the reason is %q", name, now.Status.MigrationState.FailureReason)
		}
	}
}

// TestWaitingUpdateIsDeletedForEviction: an update that keeps a guest on its node and has not begun is deleted once the guest is to leave the node.
func TestWaitingUpdateIsDeletedForEviction(t *testing.T) {
	c := newCluster(t)
	vmi := c.leaver("a", func(*v1.VirtualMachineInstance) {})
	m := c.migration("m", "a")
	m.Annotations = map[string]string{v1.WorkloadUpdateMigrationAnnotation: vmi.LauncherPod()}
	m.Spec.Priority, m.Spec.AddedNodeSelector = ptr.To(v1.PrioritySystemMaintenance), map[string]string{corev1.LabelHostname: "host-of-node1"}
	if err := c.client.Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if now, vmi := c.steps(m); now != nil && !now.IsFinal() || vmi.Migration() != nil {
		t.Errorf("the migration is %+v", now)
	}
}
