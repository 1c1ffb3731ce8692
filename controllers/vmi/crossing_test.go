package vmi

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

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
