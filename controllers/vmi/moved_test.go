package vmi

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func testMigration() *v1.VirtualMachineInstanceMigration {
	m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Name: "move", UID: "m"}}
	m.Spec.AddedNodeSelector = map[string]string{"rack": "2", corev1.LabelArchStable: "other"}
	return m
}

// TestTargetPodIsTheGuestsPodElsewhere: the target pod is the guest's pod, under another name, on another node.
func TestTargetPodIsTheGuestsPodElsewhere(t *testing.T) {
	for _, dir := range cases(t) {
		vmi := load(t, dir)
		vmi.Status.NodeName, vmi.Status.ActivePods = "a", map[types.UID]string{"1": "a", "2": "b", "3": ""}
		first, target := Pod(vmi, testConfig), targetPod(vmi, testMigration(), testConfig)
		if target.Name == first.Name || target.Labels[v1.MigrationJobLabel] != "m" ||
			target.Annotations[v1.MigrationJobNameAnnotation] != "move" {
			t.Errorf("%s: %s %v %v", dir, target.Name, target.Labels, target.Annotations)
		}
		if s := target.Spec.NodeSelector; s["rack"] != "2" || s[corev1.LabelArchStable] != "amd64" {
			t.Errorf("%s: node selector %v", dir, s)
		}
		if diff := cmp.Diff([]corev1.NodeSelectorTerm{{MatchFields: off("a", "b")}},
			target.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms); diff != "" {
			t.Errorf("%s: node affinity: %s", dir, diff)
		}
		if first.Labels[v1.CreatedByLabel] != string(vmi.UID) {
			t.Errorf("%s: the first pod's labels are %v", dir, first.Labels)
		}
		// Nothing else differs.
		leaveFilesOut(first, vmi) // see TestTargetPodHasNoConfigVolumes
		target.Name = first.Name
		delete(target.Labels, v1.MigrationJobLabel)
		delete(target.Annotations, v1.MigrationJobNameAnnotation)
		target.Spec.NodeSelector = first.Spec.NodeSelector
		if target.Spec.Affinity.NodeAffinity = nil; first.Spec.Affinity == nil &&
			*target.Spec.Affinity == (corev1.Affinity{}) {
			target.Spec.Affinity = nil
		}
		if diff := cmp.Diff(first, target); diff != "" {
			t.Errorf("%s: the target pod differs from the first: %s", dir, diff)
		}
	}
}

// off returns the requirements that keep a pod off nodes.
func off(nodes ...string) []corev1.NodeSelectorRequirement {
	var out []corev1.NodeSelectorRequirement
	for _, node := range nodes {
		out = append(out, corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn,
			Values: []string{node}})
	}
	return out
}

// TestTargetPodIsKeptOffTheSourcesNode: a target pod that must be on another node is kept off by each
// alternative that the VMI's own affinity has, and by no pod. The target of an update that stays on the guest's
// node has the VMI's own affinity.
func TestTargetPodIsKeptOffTheSourcesNode(t *testing.T) {
	rack := corev1.NodeSelectorRequirement{Key: "rack", Operator: corev1.NodeSelectorOpExists}
	terms := func(t ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: t}}}
	}
	update := testMigration()
	update.Annotations, update.Spec.Priority = map[string]string{v1.WorkloadUpdateMigrationAnnotation: "old"},
		ptr.To(v1.PrioritySystemMaintenance)
	elsewhere := update.DeepCopy()
	update.Spec.AddedNodeSelector = map[string]string{corev1.LabelHostname: "a"}
	users := testMigration()
	users.Annotations, users.Spec.AddedNodeSelector = update.Annotations, update.Spec.AddedNodeSelector
	for name, c := range map[string]struct {
		migration *v1.VirtualMachineInstanceMigration
		own, want *corev1.Affinity
	}{
		"no affinity": {testMigration(), nil, terms(corev1.NodeSelectorTerm{MatchFields: off("a")})},
		"a preference": {testMigration(), &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}},
			terms(corev1.NodeSelectorTerm{MatchFields: off("a")})},
		"two alternatives": {testMigration(),
			terms(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{rack}},
				corev1.NodeSelectorTerm{MatchFields: off("b")}),
			terms(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{rack}, MatchFields: off("a")},
				corev1.NodeSelectorTerm{MatchFields: off("b", "a")})},
		"a term that fits no node": {testMigration(), terms(corev1.NodeSelectorTerm{}), terms(corev1.NodeSelectorTerm{})},
		"an update to another":     {elsewhere, nil, terms(corev1.NodeSelectorTerm{MatchFields: off("a")})},
		"an update that stays":     {update, nil, nil},
		"a user's to its own node": {users, nil, terms(corev1.NodeSelectorTerm{MatchFields: off("a")})},
	} {
		vmi := load(t, "testdata/minimal")
		vmi.Spec.Affinity, vmi.Status.NodeName = c.own, "a"
		pod := targetPod(vmi, c.migration, testConfig)
		if diff := cmp.Diff(c.want, pod.Spec.Affinity); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if c.migration == update && pod.Spec.NodeSelector[corev1.LabelHostname] != "a" {
			t.Errorf("%s: node selector %v", name, pod.Spec.NodeSelector)
		}
	}
}

// TestGuestMayGoBackToTheNodeItLeft: a guest may go back to the node that it has just left. A pod that has
// ended there may still be in the VMI's status.
func TestGuestMayGoBackToTheNodeItLeft(t *testing.T) {
	for name, c := range map[string]struct {
		leave func(*move)
		want  []corev1.NodeSelectorRequirement
	}{
		"its pod there has ended":  {func(m *move) { m.ends(m.source, "Migrated") }, off("node2")},
		"its pod there is gone":    {func(m *move) { m.client.Delete(t.Context(), m.source) }, off("node2")},
		"its pod there is running": {func(*move) {}, off("node1", "node2")},
	} {
		m := newMove(t)
		m.change(func(s *v1.VirtualMachineInstanceStatus) {
			s.MigrationState.Decision, s.MigrationState.Completed = v1.DecisionTarget, true
		})
		stale := m.get()
		c.leave(m)
		again := testMigration()
		again.UID = "again"
		pod, _, err := m.TargetPod(t.Context(), stale, again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]corev1.NodeSelectorTerm{{MatchFields: c.want}},
			pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestOnlyAPostCopyPodAsksForUserfaultfd: only the target pod of a migration that may go on by post-copy asks
// for userfaultfd, and only once every node that takes guests offers it. It is as restricted as any other.
func TestOnlyAPostCopyPodAsksForUserfaultfd(t *testing.T) {
	quantity := func(n string) corev1.ResourceList {
		return corev1.ResourceList{SlotResource: resource.MustParse("110"), FaultResource: resource.MustParse(n)}
	}
	for name, c := range map[string]struct {
		allows bool
		nodes  map[string]corev1.ResourceList
		want   bool
	}{
		"allowed": {true,
			map[string]corev1.ResourceList{"a": quantity("110"), "b": quantity("110"), "takes no guests": {}}, true},
		"not allowed": {false, map[string]corev1.ResourceList{"a": quantity("110")}, false},
		"it cannot be handed out": {true,
			map[string]corev1.ResourceList{"a": quantity("110"), "b": {SlotResource: resource.MustParse("110")}}, false},
		"a virt-handler that is away": {true, map[string]corev1.ResourceList{"a": quantity("110"), "b": quantity("0")},
			false},
	} {
		m := newMove(t)
		for node, allocatable := range c.nodes {
			if err := m.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: corev1.NodeStatus{Allocatable: allocatable}}); err != nil {
				t.Fatal(err)
			}
		}
		vmi := load(t, "testdata/minimal")
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m",
			MigrationConfiguration: &v1.MigrationConfiguration{AllowPostCopy: &c.allows}}
		pod, _, err := m.TargetPod(t.Context(), vmi, testMigration())
		if err != nil {
			t.Fatal(err)
		}
		if _, got := pod.Spec.Containers[0].Resources.Limits[FaultResource]; got != c.want {
			t.Errorf("%s: the pod asks for userfaultfd: %t", name, got)
		}
		if s := pod.Spec.Containers[0].SecurityContext; *s.AllowPrivilegeEscalation || len(s.Capabilities.Add) != 0 ||
			pod.Spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: the pod is less restricted: %+v", name, s)
		}
	}
}

// move is a VMI whose guest runs on node1 and moves to node2.
type move struct {
	*cluster
	source, target *corev1.Pod
}

func newMove(t *testing.T) *move {
	t.Helper()
	vmi := load(t, "testdata/minimal")
	m := &move{source: Pod(vmi, testConfig), target: targetPod(vmi, testMigration(), testConfig)}
	for pod, node := range map[*corev1.Pod]string{m.source: "node1", m.target: "node2"} {
		pod.UID, pod.Spec.NodeName, pod.CreationTimestamp = types.UID("on-"+node), node, metav1.Unix(900, 0)
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning,
			PodIPs: []corev1.PodIP{{IP: map[string]string{"node1": "10.0.1.1", "node2": "10.0.2.1"}[node]}},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: ContainerName, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	}
	m.cluster = newCluster(t, v1.Running, interceptor.Funcs{}, m.source, m.target)
	m.change(func(s *v1.VirtualMachineInstanceStatus) {
		s.NodeName = "node1"
		s.LauncherPods = []v1.LauncherPod{{Name: m.source.Name, UID: m.source.UID}, {Name: m.target.Name}}
		s.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", SourceNode: "node1",
			SourcePod: m.source.Name, TargetNode: "node2", TargetPod: m.target.Name}
	})
	return m
}

// change writes into the VMI's status, as virt-handler or the migration's controller would, and reconciles.
func (m *move) change(change func(*v1.VirtualMachineInstanceStatus)) {
	m.t.Helper()
	vmi := m.get()
	change(&vmi.Status)
	if err := m.client.Status().Update(context.Background(), vmi); err != nil {
		m.t.Fatal(err)
	}
	m.steps()
}

// steps reconciles until nothing changes any more.
func (m *move) steps() {
	m.t.Helper()
	for range 4 {
		if err := m.reconcile(); err != nil {
			m.t.Fatal(err)
		}
	}
}

// ends makes a pod end with a word of its launcher.
func (m *move) ends(pod *corev1.Pod, reason string) {
	m.t.Helper()
	now := &corev1.Pod{}
	if err := m.client.Get(context.Background(), client.ObjectKeyFromObject(pod), now); err != nil {
		m.t.Fatal(err)
	}
	now.Status.Phase = corev1.PodSucceeded
	now.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(m.Clock.Now()), Message: `{"reason":"` + reason + `"}`}}
	if err := m.client.Status().Update(context.Background(), now); err != nil {
		m.t.Fatal(err)
	}
	m.steps()
}

// is checks where the guest is, and which pods the status names.
func (m *move) is(phase v1.VirtualMachineInstancePhase, node string, in *corev1.Pod, pods ...*corev1.Pod) {
	m.t.Helper()
	vmi := m.get()
	s := vmi.Status
	if s.Phase != phase || s.NodeName != node || vmi.LauncherPod() != in.Name {
		m.t.Errorf("%s on %q in %s, want %s on %q in %s", s.Phase, s.NodeName, vmi.LauncherPod(), phase, node, in.Name)
	}
	if len(s.LauncherPods) != len(pods) || len(s.ActivePods) != len(pods) {
		m.t.Errorf("pods %+v, active %v, want %d", s.LauncherPods, s.ActivePods, len(pods))
	}
	for _, pod := range pods {
		if ips := s.LauncherPodIPs(pod.Name); len(ips) != 1 || ips[0] != pod.Status.PodIPs[0].IP ||
			s.ActivePods[pod.UID] != pod.Spec.NodeName {
			m.t.Errorf("pod %s has %v on %q", pod.Name, ips, s.ActivePods[pod.UID])
		}
	}
}

// TestVMIIsWhereTheDecisionSays: a VMI is where the decision says, from the decision on, and the end of the pod
// that the guest has left is not the guest's.
func TestVMIIsWhereTheDecisionSays(t *testing.T) {
	m := newMove(t)
	m.is(v1.Running, "node1", m.source, m.source, m.target)
	m.change(func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.Decision = v1.DecisionTarget })
	m.is(v1.Running, "node2", m.target, m.source, m.target)
	m.ends(m.source, "Migrated")
	m.is(v1.Running, "node2", m.target, m.target)
	m.change(func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.Completed = true })
	m.is(v1.Running, "node2", m.target, m.target)
	m.ends(m.target, "GuestShutdown")
	if s := m.get().Status; s.Phase != v1.Succeeded || s.NodeName != "node2" {
		t.Errorf("after the guest's end: %s on %s", s.Phase, s.NodeName)
	}
}

// TestGuestThatTheTargetRefusesIsGivenBack: a guest that the target's QEMU did not let run is given back to its
// source.
func TestGuestThatTheTargetRefusesIsGivenBack(t *testing.T) {
	m := newMove(t)
	m.change(func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.Decision = v1.DecisionTarget })
	m.is(v1.Running, "node2", m.target, m.source, m.target)
	m.change(func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.Decision = v1.DecisionSource })
	m.is(v1.Running, "node1", m.source, m.source, m.target)
	m.ends(m.target, "QEMUExited")
	m.is(v1.Running, "node1", m.source, m.source)
}

// TestEndedSourceDoesNotEndAnUndecidedVMI: a source that was ended after it had sent everything does not end
// its VMI before it is decided whether the guest has arrived.
func TestEndedSourceDoesNotEndAnUndecidedVMI(t *testing.T) {
	for decision, want := range map[v1.MigrationDecision]v1.VirtualMachineInstancePhase{v1.DecisionTarget: v1.Running,
		v1.DecisionSource: v1.Failed} {
		m := newMove(t)
		m.ends(m.source, "Migrated")
		if got := m.get().Status.Phase; got != v1.Running {
			t.Errorf("undecided, the VMI is %s", got)
		}
		m.change(func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.Decision = decision })
		if s := m.get().Status; s.Phase != want || want == v1.Failed && s.Reason != "Migrated" {
			t.Errorf("decided for %s, the VMI is %s, %s", decision, s.Phase, s.Reason)
		}
	}
	m := newMove(t)
	m.ends(m.source, "QEMUExited")
	if s := m.get().Status; s.Phase != v1.Failed {
		t.Errorf("a guest that crashed as it was copied is %s", s.Phase)
	}
}

// TestTargetRefusingPostCopyDoesNotEndTheVMI: the end of a target whose QEMU did not let a guest run that had
// all of its memory there is not the guest's end. Its source is about to get the guest back. Any other end of a
// target is the guest's end.
func TestTargetRefusingPostCopyDoesNotEndTheVMI(t *testing.T) {
	for reason, want := range map[string]v1.VirtualMachineInstancePhase{"StartFailed": v1.Running,
		"PostCopyFailed": v1.Failed, "QEMUExited": v1.Failed} {
		m := newMove(t)
		m.change(func(s *v1.VirtualMachineInstanceStatus) {
			now := metav1.Unix(1, 0)
			s.MigrationState.Decision, s.MigrationState.MigrationConfiguration = v1.DecisionTarget,
				&v1.MigrationConfiguration{AllowPostCopy: ptr.To(true)}
			s.MigrationState.SourceState = &v1.MigrationSourceState{PostCopyTimestamp: &now}
		})
		m.ends(m.target, reason)
		if got := m.get().Status.Phase; got != want {
			t.Errorf("%s: the VMI is %s, want %s", reason, got, want)
		}
	}
}

// TestDeletedSourceDoesNotEndAnUndecidedVMI: a source that is gone before anybody looks does not end its VMI
// before it is decided whether the guest has arrived.
func TestDeletedSourceDoesNotEndAnUndecidedVMI(t *testing.T) {
	m := newMove(t)
	ended := m.source.DeepCopy()
	ended.Status.Phase = corev1.PodSucceeded
	ended.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: `{"reason":"Migrated"}`}}
	m.takeDown(t.Context(), ended)
	if err := m.client.Delete(t.Context(), m.source); err != nil {
		t.Fatal(err)
	}
	m.steps()
	if got := m.get().Status.Phase; got != v1.Running {
		t.Errorf("undecided, the VMI is %s", got)
	}
	m.change(func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.Decision = v1.DecisionTarget })
	m.is(v1.Running, "node2", m.target, m.target)
	// How the guest left its first pod is not how it ended.
	if err := m.client.Delete(t.Context(), m.target); err != nil {
		t.Fatal(err)
	}
	m.steps()
	if s := m.get().Status; s.Phase != v1.Failed || s.Reason != v1.ReasonPodDeleted {
		t.Errorf("without its pod, the VMI is %s, %s", s.Phase, s.Reason)
	}
}

// TestDeletedVMIStaysUntilBothPodsAreGone: a VMI stays until both its pods are gone.
func TestDeletedVMIStaysUntilBothPodsAreGone(t *testing.T) {
	m := newMove(t)
	if err := m.client.Delete(t.Context(), m.get()); err != nil {
		t.Fatal(err)
	}
	if err := m.reconcile(); err != nil {
		t.Fatal(err)
	}
	if m.get() == nil {
		t.Fatal("the VMI is gone with its pods still there")
	}
	for range 4 {
		if err := m.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
	if m.pods() != 0 {
		t.Errorf("%d pods are left", m.pods())
	}
	if err := m.client.Get(t.Context(), client.ObjectKeyFromObject(m.vmi), &v1.VirtualMachineInstance{}); err == nil {
		t.Error("the VMI is still there")
	}
}
