package vmi

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kubeqemu/kubeqemu/api/migrations/v1alpha1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestWhichDisksAMigrationMayCopy: which disks a migration may copy to claims of its own.
func TestWhichDisksAMigrationMayCopy(t *testing.T) {
	template := v1.Volume{Name: "disk", DataVolume: &v1.DataVolumeSource{Name: "root"}}
	writable := v1.Disk{Name: "disk", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}
	info := v1.PersistentVolumeClaimInfo{ClaimName: "root",
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}
	edited := func(edit func(*v1.PersistentVolumeClaimInfo)) *v1.PersistentVolumeClaimInfo {
		out := info
		edit(&out)
		return &out
	}
	for name, c := range map[string]struct {
		volume v1.Volume
		disk   v1.Disk
		info   *v1.PersistentVolumeClaimInfo
		want   bool
	}{
		"of a template": {template, writable, &info, true},
		"of a template, after a move": {template, writable,
			edited(func(i *v1.PersistentVolumeClaimInfo) { i.ClaimName = "root-1" }), true},
		"a template's claim": {v1.Volume{Name: "disk",
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "root"}}, writable, &info, true},
		"of no template": {v1.Volume{Name: "disk", DataVolume: &v1.DataVolumeSource{Name: "shared"}}, writable, &info, false},
		"only read":      {template, v1.Disk{Name: "disk", CDRom: &v1.CDRomTarget{}}, &info, false},
		"no disk":        {template, v1.Disk{Name: "other"}, &info, false},
		"an overlay's": {v1.Volume{Name: "disk",
			Ephemeral: &v1.EphemeralVolumeSource{PersistentVolumeClaim: &v1.EphemeralClaim{ClaimName: "root"}}}, writable, &info,
			false},
		"on all nodes": {template, writable,
			edited(func(i *v1.PersistentVolumeClaimInfo) { i.AccessModes = append(i.AccessModes, corev1.ReadWriteMany) }),
			false},
		"a device": {template, writable,
			edited(func(i *v1.PersistentVolumeClaimInfo) { i.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }), false},
		"nothing known": {template, writable, nil, false},
	} {
		vm := &v1.VirtualMachine{}
		vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplate{{ObjectMeta: v1.DataVolumeTemplateMeta{Name: "root"}}}
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Volumes, vmi.Spec.Domain.Devices.Disks = []v1.Volume{c.volume}, []v1.Disk{c.disk}
		vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "disk", PersistentVolumeClaimInfo: c.info}}
		if got := copyable(vmi, vm); (len(got) == 1) != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if got := copyable(vmi, nil); got != nil {
			t.Errorf("%s, without a VM: %v", name, got)
		}
	}
}

// withTemplate gives the VMI a VM whose template made its disk, and a policy.
func (c *cluster) withTemplate(policy *v1alpha1.MigrationPolicy) *v1.VirtualMachine {
	c.t.Helper()
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: c.vmi.Name, UID: "vm"}}
	vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplate{{ObjectMeta: v1.DataVolumeTemplateMeta{Name: "root"}}}
	for _, o := range []client.Object{vm, claimOf("root", nil), claimOf("root-1", nil)} {
		if err := c.client.Create(context.Background(), o); err != nil {
			c.t.Fatal(err)
		}
	}
	c.Policy = func(context.Context, *v1.VirtualMachineInstance) (*v1alpha1.MigrationPolicy, error) {
		return policy, nil
	}
	vmi := c.get()
	vmi.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}
	vmi.Spec.Volumes = []v1.Volume{{Name: "disk", DataVolume: &v1.DataVolumeSource{Name: "root"}}}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "disk", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}
	if err := c.client.Update(context.Background(), vmi); err != nil {
		c.t.Fatal(err)
	}
	return vm
}

// TestDiskMovesWhileAPolicyPermits: the status says that the disk moves while a policy permits it, and not
// during a migration that began without.
func TestDiskMovesWhileAPolicyPermits(t *testing.T) {
	policy := &v1alpha1.MigrationPolicy{}
	m := newMove(t)
	m.withTemplate(policy)
	says := func(when string, want bool) {
		t.Helper()
		m.steps()
		s := m.get().Status
		if len(s.VolumeStatus) != 1 || s.VolumeStatus[0].Moves != want {
			t.Errorf("%s: %+v", when, s.VolumeStatus)
		}
	}
	policy.Spec.AllowClaimCopy = ptr.To(true)
	says("during a migration", false)
	m.change(func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.Completed = true })
	says("afterwards", true)
	if c := m.get().Status.Condition(v1.ConditionLiveMigratable); c.Status != metav1.ConditionTrue ||
		m.get().Status.MigrationMethod != v1.MethodBlockMigration {
		t.Errorf("%+v", c)
	}
	if after := m.later(); after != policyDelay {
		t.Errorf("policies are looked at again after %s", after)
	}
	policy.Spec.AllowClaimCopy = nil
	says("without the permission", false)
	if c := m.get().Status.Condition(v1.ConditionLiveMigratable); c.Status != metav1.ConditionFalse {
		t.Errorf("%+v", c)
	}
}

// TestTargetHasItsOwnClaim: the target pod has the claim to which the disk is copied, and the guest's present
// pod keeps its own.
func TestTargetHasItsOwnClaim(t *testing.T) {
	vmi := load(t, "testdata/minimal")
	vmi.Spec.Volumes = []v1.Volume{{Name: "disk", DataVolume: &v1.DataVolumeSource{Name: "root"}}}
	info := func(claim string) *v1.PersistentVolumeClaimInfo {
		return &v1.PersistentVolumeClaimInfo{ClaimName: claim}
	}
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "disk", PersistentVolumeClaimInfo: info("root-1")}}
	vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{
		{VolumeName: "disk", SourcePVCInfo: info("root-1"), DestinationPVCInfo: info("root-2")}}
	claims := func(pod *corev1.Pod) (names []string) {
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				names = append(names, v.Name+" "+v.PersistentVolumeClaim.ClaimName)
			}
		}
		return names
	}
	if diff := cmp.Diff([]string{"claim-disk root-1"}, claims(Pod(vmi, testConfig))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"claim-disk root-2"}, claims(targetPod(vmi, testMigration(), testConfig))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"root-1"}, indexByClaim(vmi)); diff != "" {
		t.Error(diff)
	}
}

// TestFirstPodHasTheMovedClaim: a VMI whose VM's disk has moved starts with the claim that has the disk.
func TestFirstPodHasTheMovedClaim(t *testing.T) {
	c := newCluster(t, "", interceptor.Funcs{})
	c.withTemplate(nil)
	vmi := c.get()
	vmi.Annotations = map[string]string{v1.ClaimsAnnotation: `{"root":"root-1"}`}
	if err := c.client.Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Delete(t.Context(), claimOf("root", nil)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.get().Status.ClaimInfo("disk"); c.pods() != 1 || got == nil || got.ClaimName != "root-1" {
		t.Errorf("%d pods, claim %+v", c.pods(), got)
	}
}

// TestVMIStaysUntilItsVMHasNotedTheClaim: a VMI stays until its VM has noted which claim has its disk, after a
// move and after a move that was taken back.
func TestVMIStaysUntilItsVMHasNotedTheClaim(t *testing.T) {
	notes := func(claim string) func(*v1.VirtualMachine) {
		return func(vm *v1.VirtualMachine) {
			vm.Status.MovedClaims = []v1.MovedClaim{{ClaimName: "root", HeldBy: claim}}
		}
	}
	for name, c := range map[string]struct {
		has  string
		vm   func(*v1.VirtualMachine)
		stay bool
	}{
		"nothing has moved":         {"root", func(*v1.VirtualMachine) {}, false},
		"not noted":                 {"root-1", func(*v1.VirtualMachine) {}, true},
		"another is noted":          {"root-1", notes("root-0"), true},
		"noted":                     {"root-1", notes("root-1"), false},
		"another VM":                {"root-1", func(vm *v1.VirtualMachine) { vm.UID = "other" }, false},
		"taken back, and not noted": {"root", notes("root-1"), true},
		"another claim's disk is noted": {"root", func(vm *v1.VirtualMachine) {
			vm.Status.MovedClaims = []v1.MovedClaim{{ClaimName: "before", HeldBy: "x"}}
		}, false},
	} {
		k := newCluster(t, v1.Succeeded, interceptor.Funcs{})
		vm := k.withTemplate(nil)
		c.vm(vm)
		if err := k.client.Update(t.Context(), vm); err != nil {
			t.Fatal(err)
		}
		vmi := k.get()
		vmi.Status.VolumeStatus = []v1.VolumeStatus{
			{Name: "disk", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: c.has}}}
		if err := k.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		if err := k.client.Delete(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := k.reconcile(); err != nil {
				t.Fatal(err)
			}
		}
		err := k.client.Get(t.Context(), client.ObjectKeyFromObject(k.vmi), &v1.VirtualMachineInstance{})
		if (err == nil) != c.stay {
			t.Errorf("%s: the VMI is there: %t, want %t", name, err == nil, c.stay)
		}
	}
}

// TestVMIRepeatsItselfWithoutPolicies: while the policies cannot be read, the VMI says what it said, and goes
// on otherwise.
func TestVMIRepeatsItselfWithoutPolicies(t *testing.T) {
	policy := &v1alpha1.MigrationPolicy{}
	policy.Spec.AllowClaimCopy = ptr.To(true)
	m := newMove(t)
	m.withTemplate(policy)
	m.change(func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.Completed = true })
	m.Policy = func(context.Context, *v1.VirtualMachineInstance) (*v1alpha1.MigrationPolicy, error) {
		return nil, context.DeadlineExceeded
	}
	if after := m.later(); after != policyDelay || !m.get().Status.VolumeStatus[0].Moves {
		t.Errorf("looked at again after %s: %+v", after, m.get().Status.VolumeStatus)
	}
}

// TestPoliciesHoldUpNoGate: the readiness gate is looked at as early as without policies.
func TestPoliciesHoldUpNoGate(t *testing.T) {
	c := newCluster(t, v1.Running, interceptor.Funcs{}, gated(t))
	c.withTemplate(nil)
	vmi := c.get()
	vmi.Status.PhaseTransitionTimestamps = []v1.PhaseTransitionTimestamp{
		{Phase: v1.Running, PhaseTransitionTimestamp: metav1.NewTime(c.Clock.Now())}}
	if err := c.client.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	if after := c.later(); after == 0 || after > gateAfter {
		t.Errorf("looked at again after %s", after)
	}
}
