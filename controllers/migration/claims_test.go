package migration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kubeqemu/kubeqemu/api/migrations/v1alpha1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// onClaim makes a VM whose guest has its disk on a claim that a policy lets migrations copy.
func (c *cluster) onClaim() {
	c.t.Helper()
	policy := &v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "copies"}, Spec: v1alpha1.MigrationPolicySpec{Selectors: &v1alpha1.Selectors{}, AllowClaimCopy: ptr.To(true)}}
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "vm"}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "root-0", Annotations: map[string]string{"a": "b"}}}
	claim.Spec = corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To("local"), VolumeName: "pv", DataSource: &corev1.TypedLocalObjectReference{Kind: "VolumeSnapshot", Name: "s"},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}
	c.make(policy, vm, claim, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	vmi := c.vm("a", "node1")
	vmi.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}
	vmi.Spec.Volumes = []v1.Volume{{Name: "disk", DataVolume: &v1.DataVolumeSource{Name: "root"}}}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "disk"}}
	if err := c.client.Update(context.Background(), vmi); err != nil {
		c.t.Fatal(err)
	}
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "disk", Moves: true, PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "root-0", AccessModes: claim.Spec.AccessModes,
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
	if err := c.client.Status().Update(context.Background(), vmi); err != nil {
		c.t.Fatal(err)
	}
}

// claims are the names of the claims but for that of the source.
func (c *cluster) claims() (list []corev1.PersistentVolumeClaim) {
	c.t.Helper()
	var all corev1.PersistentVolumeClaimList
	if err := c.client.List(context.Background(), &all); err != nil {
		c.t.Fatal(err)
	}
	for _, claim := range all.Items {
		if claim.Name != "root-0" {
			list = append(list, claim)
		}
	}
	return list
}

// TestTargetGetsAnEmptyClaim: the target gets an empty claim like the source's, which is the VM's. The claim stays if the guest moves.
func TestTargetGetsAnEmptyClaim(t *testing.T) {
	c := newCluster(t)
	c.onClaim()
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	made := c.claims()
	if len(made) != 1 {
		t.Fatalf("claims %v", made)
	}
	want := corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To("local"),
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}
	if diff := cmp.Diff(want, made[0].Spec); diff != "" || made[0].Name != v1.CopyName("root", "m") || made[0].Labels[v1.CopyOfLabel] != "m" || made[0].Annotations[v1.CopyOfAnnotation] != "root" || metav1.GetControllerOf(&made[0]).UID != "vm" {
		t.Errorf("%+v: %s", made[0].ObjectMeta, diff)
	}
	_, vmi := c.steps(m)
	if got := vmi.Status.MigratedVolumes; len(got) != 1 || got[0].VolumeName != "disk" || got[0].SourcePVCInfo.ClaimName != "root-0" || got[0].DestinationPVCInfo.ClaimName != made[0].Name || got[0].DestinationPVCInfo.IsBound() {
		t.Errorf("the status says %+v", got)
	}
	c.arrives(m)
	now, vmi := c.steps(m)
	if now.Status.Phase != v1.MigrationSucceeded || vmi.Status.MigratedVolumes != nil || vmi.Claim(&vmi.Spec.Volumes[0]).Name != made[0].Name || len(c.claims()) != 1 {
		t.Errorf("%s, copies %v, the disk is on %s, claims %v", now.Status.Phase, vmi.Status.MigratedVolumes, vmi.Claim(&vmi.Spec.Volumes[0]).Name, c.claims())
	}
}

// TestEndedSourcePodFreesTheLeftClaim: a source pod that has ended goes if it names a claim that the guest has left, and stays otherwise.
func TestEndedSourcePodFreesTheLeftClaim(t *testing.T) {
	for claim, stays := range map[string]bool{"root-0": false, "shared": true} {
		c := newCluster(t)
		c.onClaim()
		m := c.migration("m", "a")
		c.comes(m, v1.MigrationRunning)
		key := client.ObjectKey{Namespace: "default", Name: v1.LauncherPodName("a", "a-uid", v1.FirstPod)}
		pod, vmi := &corev1.Pod{}, &v1.VirtualMachineInstance{}
		if err := c.client.Get(t.Context(), key, pod); err != nil {
			t.Fatal(err)
		}
		pod.Spec.Volumes = []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
		if err := c.client.Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "a"}, vmi); err != nil {
			t.Fatal(err)
		}
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "shared", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "shared"}})
		if err := c.client.Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		c.arrives(m)
		c.steps(m)
		if err := c.client.Get(t.Context(), key, pod); err != nil {
			t.Fatalf("claim %s: before its end the pod is gone: %v", claim, err)
		}
		pod.Status.Phase = corev1.PodSucceeded
		if err := c.client.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if now, _ := c.steps(m); hasFinalizer(now) || (c.client.Get(t.Context(), key, pod) == nil) != stays {
			t.Errorf("claim %s: the pod is there: %t", claim, !stays)
		}
	}
}

// TestFailedMigrationLeavesNoClaim: a migration that fails leaves no claim, and the disk where it was.
func TestFailedMigrationLeavesNoClaim(t *testing.T) {
	for _, stage := range stages {
		c := newCluster(t)
		c.onClaim()
		m := c.migration("m", "a")
		c.comes(m, stage.phase)
		if len(c.claims()) != 1 {
			t.Fatalf("%s: claims %v", stage.phase, c.claims())
		}
		if err := c.client.Delete(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		_, vmi := c.steps(m)
		if len(c.claims()) != 0 || vmi.Status.MigratedVolumes != nil || vmi.Claim(&vmi.Spec.Volumes[0]).Name != "root-0" {
			t.Errorf("%s: claims %v, copies %v, the disk is on %s", stage.phase, c.claims(), vmi.Status.MigratedVolumes, vmi.Claim(&vmi.Spec.Volumes[0]).Name)
		}
		c.comes(c.migration("n", "a"), v1.MigrationRunning)
	}
}

// TestClaimOfTheGuestsDiskIsKept: the claim of a guest that has ended on the target is kept.
func TestClaimOfTheGuestsDiskIsKept(t *testing.T) {
	c := newCluster(t)
	c.onClaim()
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) { s.Decision = v1.DecisionTarget })
	vmi := &v1.VirtualMachineInstance{}
	if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "a"}, vmi); err != nil {
		t.Fatal(err)
	}
	vmi.Status.Settle() // as the VMI's controller does
	vmi.Status.Phase = v1.Failed
	if err := c.client.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	if now, vmi := c.steps(m); now.Status.Phase != v1.MigrationFailed || len(c.claims()) != 1 || vmi.Claim(&vmi.Spec.Volumes[0]).Name != c.claims()[0].Name {
		t.Errorf("%s, claims %v", now.Status.Phase, c.claims())
	}
}

// TestRefusedClaimHoldsUpOrEndsTheMigration: a quota holds a migration up, and anything else ends it with the reason.
func TestRefusedClaimHoldsUpOrEndsTheMigration(t *testing.T) {
	refuse := func(c *cluster, err error) {
		c.Client = interceptor.NewClient(c.client, interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if _, claim := o.(*corev1.PersistentVolumeClaim); claim && err != nil {
				return err
			}
			return w.Create(ctx, o, options...)
		}})
	}
	c := newCluster(t)
	c.onClaim()
	refuse(c, apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, "x", context.DeadlineExceeded))
	m := c.migration("m", "a")
	now, _ := c.steps(m)
	if condition := now.Status.Condition(v1.MigrationRejectedByResourceQuota); now.Status.Phase != v1.MigrationPending || condition == nil || !strings.Contains(condition.Message, "create claim root-") {
		t.Errorf("%s, condition %+v", now.Status.Phase, condition)
	}
	refuse(c, nil)
	c.comes(m, v1.MigrationRunning)

	c = newCluster(t)
	c.onClaim()
	refuse(c, apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolumeClaim"}, "x", nil))
	if now, _ := c.steps(c.migration("m", "a")); now.Status.Phase != v1.MigrationFailed || !strings.Contains(now.Status.MigrationState.FailureReason, "a claim for the target cannot be made") {
		t.Errorf("%+v", now.Status)
	}

	c = newCluster(t)
	c.onClaim()
	c.make(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: v1.CopyName("root", "m")}})
	if now, _ := c.steps(c.migration("m", "a")); now.Status.Phase != v1.MigrationFailed || !strings.Contains(now.Status.MigrationState.FailureReason, "is in the way") || len(c.claims()) != 1 {
		t.Errorf("%+v, claims %v", now.Status, c.claims())
	}
}

// TestWithdrawnPolicyPreventsACopy: a migration begins only if the policy still permits to copy claims.
func TestWithdrawnPolicyPreventsACopy(t *testing.T) {
	c := newCluster(t)
	c.onClaim()
	if err := c.client.Delete(t.Context(), &v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "copies"}}); err != nil {
		t.Fatal(err)
	}
	if now, vmi := c.steps(c.migration("m", "a")); now.Status.Phase != v1.MigrationPending || vmi.Status.MigrationState != nil || len(c.claims()) != 0 {
		t.Errorf("%+v", now.Status)
	}
}

// TestRecentlyReadPoliciesCount: what was read a moment ago counts, and later it is read anew.
func TestRecentlyReadPoliciesCount(t *testing.T) {
	c := newCluster(t)
	c.onClaim()
	reads := 0
	p := &Policies{Clock: c.clock, Live: interceptor.NewClient(c.client, interceptor.Funcs{List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		reads++
		return w.List(ctx, list, options...)
	}})}
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}
	for _, wait := range []time.Duration{0, policiesAge / 2, 2 * policiesAge, -time.Hour} {
		c.clock.SetTime(c.clock.Now().Add(wait))
		if policy, err := p.Recent(t.Context(), vmi); err != nil || !policy.CopiesClaims() {
			t.Errorf("after %s: %+v, %v", wait, policy, err)
		}
	}
	if reads != 3 {
		t.Errorf("read %d times, want 3", reads)
	}
}

// TestClaimOfGuestThatEndedThereStays: the guest has ended on the target's claim, and then it was decided for the source. The claim stays, and so
// does a claim that is not the VM's any more.
func TestClaimOfGuestThatEndedThereStays(t *testing.T) {
	c := newCluster(t)
	c.onClaim()
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	c.make(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nobodys", Labels: map[string]string{v1.CopyOfLabel: "m"}}})
	vmi := &v1.VirtualMachineInstance{}
	if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "a"}, vmi); err != nil {
		t.Fatal(err)
	}
	vmi.Status.MigrationState.Decision = v1.DecisionTarget
	vmi.Status.Settle()
	vmi.Status.MigrationState.Decision, vmi.Status.Phase = v1.DecisionSource, v1.Failed
	if err := c.client.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	now, vmi := c.steps(m)
	if now.Status.Phase != v1.MigrationFailed || hasFinalizer(now) || len(c.claims()) != 2 || vmi.Claim(&vmi.Spec.Volumes[0]).Name != v1.CopyName("root", "m") {
		t.Errorf("%s, claims %v, the disk is on %s", now.Status.Phase, c.claims(), vmi.Claim(&vmi.Spec.Volumes[0]).Name)
	}
}

// TestMigrationWithoutFinalizerLeavesNoClaim: somebody has removed the finalizer of a migration that is under way.
func TestMigrationWithoutFinalizerLeavesNoClaim(t *testing.T) {
	c := newCluster(t)
	c.onClaim()
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationRunning)
	now, _ := c.steps(m)
	now.Finalizers = nil
	if err := c.client.Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Delete(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if now, vmi := c.steps(m); now != nil || vmi.Migration() != nil || len(c.claims()) != 0 {
		t.Errorf("%+v, claims %v", vmi.Status.MigrationState, c.claims())
	}
}

// TestGuestThatMayHaveRunKeepsTheNewClaim: a guest that may have written to its new claim does not come back to the old one. It does if the target's
// launcher says that the guest never ran.
func TestGuestThatMayHaveRunKeepsTheNewClaim(t *testing.T) {
	for reason, back := range map[string]bool{"GuestShutdown": false, "QEMUExited": false, "StartFailed": true, "NeverStarted": true} {
		c := newCluster(t)
		c.onClaim()
		m := c.migration("m", "a")
		c.comes(m, v1.MigrationRunning)
		c.handlers(m, func(s *v1.VirtualMachineInstanceMigrationState) { s.Decision = v1.DecisionTarget })
		c.target(m, func(pod *corev1.Pod) {
			pod.Status.Phase = corev1.PodFailed
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: `{"reason":"` + reason + `"}`}}}}
		})
		_, vmi := c.steps(m)
		if got := vmi.Status.MigrationState.Decision == v1.DecisionSource; got != back || (len(c.claims()) == 0) != back {
			t.Errorf("%s: decided for %s, claims %v", reason, vmi.Status.MigrationState.Decision, c.claims())
		}
	}
}
