package migration

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const oldState = "persistent-state-for-a-old"

// withState makes a guest with state on a claim. Without a VM the claim is the VMI's.
func (c *cluster) withState(mode corev1.PersistentVolumeAccessMode, alone bool) {
	c.t.Helper()
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "vm"}}
	c.make(vm, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	vmi := c.vm("a", "node1")
	of := metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)
	if !alone {
		of = metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)
		vmi.OwnerReferences = []metav1.OwnerReference{*of}
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: oldState, UID: "old", Labels: map[string]string{v1.StateClaimLabel: "a"}, OwnerReferences: []metav1.OwnerReference{*of}}}
	claim.Spec = corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: ptr.To("local"), VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem), VolumeName: "pv",
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}}}
	c.make(claim)
	vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
	if err := c.client.Update(context.Background(), vmi); err != nil {
		c.t.Fatal(err)
	}
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: oldState, PersistentVolumeClaimInfo: v1.InfoOfClaim(claim)}}
	if err := c.client.Status().Update(context.Background(), vmi); err != nil {
		c.t.Fatal(err)
	}
}

// states are the names of the claims with state.
func (c *cluster) states() string {
	c.t.Helper()
	var list corev1.PersistentVolumeClaimList
	if err := c.client.List(context.Background(), &list, client.HasLabels{v1.StateClaimLabel}); err != nil {
		c.t.Fatal(err)
	}
	var names []string
	for _, claim := range list.Items {
		names = append(names, claim.Name)
	}
	return strings.Join(names, " ")
}

// sourceEnds has the source's pod end, which has a claim.
func (c *cluster) sourceEnds(claim string) {
	c.t.Helper()
	pod := &corev1.Pod{}
	if err := c.client.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: v1.LauncherPodName("a", "a-uid", v1.FirstPod)}, pod); err != nil {
		c.t.Fatal(err)
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: "state", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	if err := c.client.Update(context.Background(), pod); err != nil {
		c.t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodSucceeded
	if err := c.client.Status().Update(context.Background(), pod); err != nil {
		c.t.Fatal(err)
	}
}

// TestStateGetsAClaimAtTheTarget: state on a claim that one node can use gets a claim at the target, and the old claim goes when the guest has moved.
func TestStateGetsAClaimAtTheTarget(t *testing.T) {
	for alone, owner := range map[bool]string{false: "VirtualMachine", true: "VirtualMachineInstance"} {
		c := newCluster(t)
		c.withState(corev1.ReadWriteOnce, alone)
		m := c.migration("m", "a")
		c.comes(m, v1.MigrationRunning)
		_, vmi := c.steps(m)
		s := vmi.Status.MigrationState
		name := s.TargetPersistentStatePVCName
		if s.SourcePersistentStatePVCName != oldState || !strings.HasPrefix(name, "persistent-state-for-a-") || c.states() != oldState+" "+name && c.states() != name+" "+oldState {
			t.Fatalf("of a %s: from %s to %s, claims %s", owner, s.SourcePersistentStatePVCName, name, c.states())
		}
		made := &corev1.PersistentVolumeClaim{}
		if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, made); err != nil {
			t.Fatal(err)
		}
		if of := metav1.GetControllerOf(made); of == nil || of.Kind != owner || *made.Spec.StorageClassName != "local" || made.Spec.VolumeName != "" || made.Spec.Resources.Requests.Storage().String() != "10Mi" ||
			made.Annotations[v1.CopyOfAnnotation] != oldState || made.Labels[v1.StateClaimLabel] != "a" {
			t.Errorf("of a %s: %+v", owner, made)
		}
		c.arrives(m)
		if c.steps(m); !strings.Contains(c.states(), oldState) {
			t.Errorf("of a %s: the claim goes before the source's pod has ended", owner)
		}
		c.sourceEnds(oldState)
		if now, _ := c.steps(m); now.Status.Phase != v1.MigrationSucceeded || hasFinalizer(now) || c.states() != name || now.Status.MigrationState.TargetPersistentStatePVCName != name {
			t.Errorf("of a %s: %s, claims %s", owner, now.Status.Phase, c.states())
		}
	}
}

// TestOldStateClaimNeedsTheSourcesWord: a target's node that says alone that it has the guest does not have the claim deleted that the guest's state is on. The user
// hears of it, and the next migration does not take the copy for the state.
func TestOldStateClaimNeedsTheSourcesWord(t *testing.T) {
	c := newCluster(t)
	c.withState(corev1.ReadWriteOnce, false)
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationTargetReady)
	c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) { s.SourceState = &v1.MigrationSourceState{} })
	c.arrives(m)
	c.steps(m)
	c.sourceEnds(oldState)
	c.said()
	if now, _ := c.steps(m); now.Status.Phase != v1.MigrationSucceeded || hasFinalizer(now) || !strings.Contains(c.states(), oldState) {
		t.Fatalf("%s, claims %s", now.Status.Phase, c.states())
	}
	if said := c.said(); !strings.Contains(said, v1.ReasonStateLeft) {
		t.Errorf("the events are %s", said)
	}
	c.takesState()
	const want = `Delete the claim "` + oldState + `", and migrate the guest again`
	if now, _ := c.steps(c.migration("n", "a")); now.Status.Phase != v1.MigrationFailed || !strings.Contains(now.Status.MigrationState.FailureReason, want) || !strings.Contains(c.states(), oldState) {
		t.Errorf("%+v, want %q; claims %s", now.Status.MigrationState, want, c.states())
	}
}

// TestSharedStateClaimIsTheTargetsToo: a claim that both nodes can use is the target's, too.
func TestSharedStateClaimIsTheTargetsToo(t *testing.T) {
	c := newCluster(t)
	c.withState(corev1.ReadWriteMany, false)
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	c.arrives(m)
	c.steps(m)
	c.sourceEnds(oldState)
	pod := &corev1.Pod{}
	if now, vmi := c.steps(m); hasFinalizer(now) || c.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: v1.LauncherPodName("a", "a-uid", v1.FirstPod)}, pod) != nil || now.Status.Phase != v1.MigrationSucceeded || c.states() != oldState || vmi.Status.MigrationState.TargetPersistentStatePVCName != oldState {
		t.Errorf("%s, %+v, claims %s", now.Status.Phase, vmi.Status.MigrationState, c.states())
	}
}

// TestFailedMigrationKeepsTheOldStateClaim: a migration that fails leaves the old claim, and no other. The next migration begins anew.
func TestFailedMigrationKeepsTheOldStateClaim(t *testing.T) {
	for _, alone := range []bool{false, true} {
		for _, stage := range stages {
			c := newCluster(t)
			c.withState(corev1.ReadWriteOnce, alone)
			m := c.migration("m", "a")
			c.comes(m, stage.phase)
			if c.states() == oldState {
				t.Fatalf("%s: claims %s", stage.phase, c.states())
			}
			if err := c.client.Delete(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			if c.steps(m); c.states() != oldState {
				t.Errorf("%s: claims %s", stage.phase, c.states())
			}
			c.comes(c.migration("n", "a"), v1.MigrationRunning)
		}
	}
}

// TestStateOfGuestThatEnded: a guest that has ended at the target keeps its state there. A guest that never ran there has its state at the source.
func TestStateOfGuestThatEnded(t *testing.T) {
	for reason, kept := range map[string]bool{"GuestShutdown": true, v1.ReasonPodDeleted: true, "StartFailed": false, "NeverStarted": false} {
		c := newCluster(t)
		c.withState(corev1.ReadWriteOnce, false)
		m := c.migration("m", "a")
		c.comes(m, v1.MigrationRunning)
		vmi := &v1.VirtualMachineInstance{}
		if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "a"}, vmi); err != nil {
			t.Fatal(err)
		}
		vmi.Status.MigrationState.Decision = v1.DecisionTarget
		vmi.Status.Settle() // as the VMI's controller does
		vmi.Status.Phase = v1.Failed
		vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason}, metav1.Now())
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		now, _ := c.steps(m)
		if got := c.states() != oldState; now.Status.Phase != v1.MigrationFailed || hasFinalizer(now) || got != kept || !strings.Contains(c.states(), oldState) {
			t.Errorf("%s: %s, claims %s", reason, now.Status.Phase, c.states())
		}
	}
}

// removed has somebody remove a migration's object by force.
func (c *cluster) removed(m *v1.VirtualMachineInstanceMigration) {
	c.t.Helper()
	now := &v1.VirtualMachineInstanceMigration{}
	if err := c.client.Get(context.Background(), client.ObjectKeyFromObject(m), now); err != nil {
		c.t.Fatal(err)
	}
	now.Finalizers = nil
	if err := c.client.Update(context.Background(), now); err != nil {
		c.t.Fatal(err)
	}
	if err := c.client.Delete(context.Background(), now); err != nil {
		c.t.Fatal(err)
	}
}

// takesState has the status say which claim the guest's state is on, as the VMI's controller does.
func (c *cluster) takesState() {
	c.t.Helper()
	vmi := mustGet(c.t, c)
	vmi.TakeState()
	if err := c.client.Status().Update(context.Background(), vmi); err != nil {
		c.t.Fatal(err)
	}
}

// TestStateOfForceRemovedMigrationIsHandedOver: a migration whose object was removed by force hands the state over all the same, before its guest has arrived and after.
func TestStateOfForceRemovedMigrationIsHandedOver(t *testing.T) {
	for name, ends := range map[string]func(c *cluster, m *v1.VirtualMachineInstanceMigration){
		"before the guest arrives": func(c *cluster, m *v1.VirtualMachineInstanceMigration) {
			c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) { s.Decision = v1.DecisionTarget })
			c.removed(m)
			c.arrives(m)
		},
		"after the guest has arrived": func(c *cluster, m *v1.VirtualMachineInstanceMigration) { c.arrives(m); c.removed(m) },
	} {
		c := newCluster(t)
		c.withState(corev1.ReadWriteOnce, false)
		m := c.migration("m", "a")
		c.comes(m, v1.MigrationRunning)
		copied := mustGet(t, c).Status.MigrationState.TargetPersistentStatePVCName
		ends(c, m)
		if c.steps(m); !mustGet(t, c).Status.MigrationState.Completed || c.states() != copied {
			t.Errorf("%s: claims %s, want %s; %+v", name, c.states(), copied, mustGet(t, c).Status.MigrationState)
		}
	}
}

// TestNextMigrationHandsTheStateOver: where nobody has handed the state over, because the migration's object was removed right after the migration's end, the next
// migration does so before the status forgets the last one.
func TestNextMigrationHandsTheStateOver(t *testing.T) {
	c := newCluster(t)
	c.withState(corev1.ReadWriteOnce, false)
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	c.arrives(m)
	c.steps(m)
	first := mustGet(t, c).Status.MigrationState.TargetPersistentStatePVCName
	c.takesState()
	c.removed(m)
	if c.steps(m); !strings.Contains(c.states(), oldState) {
		t.Fatalf("claims %s: nothing is tested", c.states())
	}
	c.comes(c.migration("n", "a"), v1.MigrationScheduling)
	s := mustGet(t, c).Status.MigrationState
	if names := strings.Fields(c.states()); s.SourcePersistentStatePVCName != first || len(names) != 2 || strings.Contains(c.states(), oldState) {
		t.Errorf("the state moves from %s to %s; claims %s", s.SourcePersistentStatePVCName, s.TargetPersistentStatePVCName, c.states())
	}
}

// TestSharedStateComesBackOnlyIfNeverRun: a guest whose state is on a claim that both nodes use goes on at the source only if the guest surely never ran at the target:
// variables and a TPM that the guest wrote there would be newer than its memory. A copy of the claim is deleted, with all that the guest wrote to the copy.
func TestSharedStateComesBackOnlyIfNeverRun(t *testing.T) {
	for _, mode := range []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany} {
		for reason, back := range map[string]bool{"QEMUExited": mode == corev1.ReadWriteOnce, "StartFailed": true, "NeverStarted": true} {
			c := newCluster(t)
			c.withState(mode, false)
			m := c.migration("m", "a")
			c.comes(m, v1.MigrationRunning)
			c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) { s.Decision = v1.DecisionTarget })
			c.target(m, func(pod *corev1.Pod) {
				pod.Status.Phase = corev1.PodFailed
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: `{"reason":"` + reason + `"}`}}}}
			})
			if _, vmi := c.steps(m); (vmi.Status.MigrationState.Decision == v1.DecisionSource) != back || !strings.Contains(c.states(), oldState) {
				t.Errorf("%s, %s: decided for %s, claims %s", mode, reason, vmi.Status.MigrationState.Decision, c.states())
			}
		}
	}
}
