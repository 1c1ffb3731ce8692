package vmi

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

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
