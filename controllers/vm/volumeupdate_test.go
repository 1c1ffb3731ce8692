package vm

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// renames puts the VM's disk on another claim.
func renames(vm *v1.VirtualMachine, claim string) {
	vm.Spec.UpdateVolumesStrategy = ptr.To(v1.UpdateVolumesStrategyMigration)
	vm.Spec.Template.Spec.Volumes = []v1.Volume{
		{Name: "root", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
}

// onOld returns a VM and its VMI, whose guest runs with its disk on the claim "old".
func onOld() (*v1.VirtualMachine, *v1.VirtualMachineInstance) {
	vm := valid(v1.RunStrategyAlways)
	renames(vm, "old")
	vm.Spec.Template.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "root"}}
	vmi := vm.Draft(false)
	vmi.UID = "vmi"
	vmi.Status.SetPhase(v1.Running, metav1.NewTime(now))
	vmi.Status.SetCondition(isTrueFor(v1.ConditionLiveMigratable, "Migratable"), metav1.NewTime(now))
	vmi.Status.VolumeStatus = []v1.VolumeStatus{
		{Name: "root", PersistentVolumeClaimInfo: v1.InfoOfClaim(claimed("old", "1Gi"))}}
	return vm, vmi
}

func claimed(name, size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}}}}
}

// TestVMSaysWhatItsDiskMigrationWaitsFor: the VM says what the migration that copies its disk waits for.
func TestVMSaysWhatItsDiskMigrationWaitsFor(t *testing.T) {
	block := claimed("new", "1Gi")
	block.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	type edit = func(*v1.VirtualMachine, *v1.VirtualMachineInstance)
	none := func(*v1.VirtualMachine, *v1.VirtualMachineInstance) {}
	for name, c := range map[string]struct {
		claim  *corev1.PersistentVolumeClaim
		edit   edit
		status metav1.ConditionStatus
		says   string
		ready  bool
	}{
		"it may begin": {claimed("new", "1Gi"), none, metav1.ConditionTrue,
			"copies the disk of volume root, from claim old to claim new", true},
		"a larger claim": {claimed("new", "2Gi"), none, metav1.ConditionTrue, "copies the disk", true},
		"no claim":       {nil, none, metav1.ConditionFalse, "there is no claim new", false},
		"too small": {claimed("new", "1023Mi"), none, metav1.ConditionFalse,
			"claim new asks for 1023Mi, and claim old, which has the disk, for 1Gi", false},
		"a block device": {block, none, metav1.ConditionFalse, "claim new is of Block", false},
		"another volume's claim": {claimed("new", "1Gi"), func(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Volumes = append(vmi.Spec.Volumes,
				v1.Volume{Name: "data", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "new"}})
		}, metav1.ConditionFalse, "volume data has claim new", false},
		"it cannot migrate": {claimed("new", "1Gi"), func(_ *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) {
			vmi.Status.SetCondition(isFalseFor(v1.ConditionLiveMigratable, "InterfaceNotLiveMigratable"), metav1.NewTime(now))
		}, metav1.ConditionFalse, "the guest cannot migrate", true},
		"the last one failed": {claimed("new", "1Gi"), func(_ *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) {
			vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{Completed: true, Failed: true,
				FailureReason: "no room"}
		}, metav1.ConditionTrue, "the last one failed: no room", true},
	} {
		vm, vmi := onOld()
		c.edit(vm, vmi)
		renames(vm, "new")
		objects := []client.Object{vm, vmi}
		if c.claim != nil {
			objects = append(objects, c.claim)
		}
		f := newFaulty(t, interceptor.Funcs{}, objects...)
		f.steps(t)
		now := f.vm().Status
		said := now.Condition(v1.ConditionVolumesChange)
		if said == nil || said.Status != c.status || !strings.Contains(said.Message, c.says) {
			t.Errorf("%s: condition %+v", name, said)
		}
		if p := now.PendingVolumes(); len(p) != 1 || p[0].SourcePVCInfo.ClaimName != "old" ||
			p[0].DestinationPVCInfo.ClaimName != "new" || p[0].DestinationPVCInfo.IsReady() != c.ready {
			t.Errorf("%s: pending %+v", name, p)
		}
		if now.Condition(v1.ConditionRestartRequired) != nil || now.Condition(v1.ConditionManualRecoveryRequired) != nil {
			t.Errorf("%s: conditions %+v", name, now.Conditions)
		}
	}
}

// TestNoTwoDisksAreCopiedToOneClaim: no two disks are copied to the same claim, whichever volume comes first.
func TestNoTwoDisksAreCopiedToOneClaim(t *testing.T) {
	vm, vmi := onOld()
	for _, spec := range []*v1.VirtualMachineInstanceSpec{&vm.Spec.Template.Spec, &vmi.Spec} {
		spec.Volumes = append(spec.Volumes,
			v1.Volume{Name: "data", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "old-data"}})
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, v1.Disk{Name: "data"})
	}
	vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus,
		v1.VolumeStatus{Name: "data", PersistentVolumeClaimInfo: v1.InfoOfClaim(claimed("old-data", "1Gi"))})
	for i := range vm.Spec.Template.Spec.Volumes {
		vm.Spec.Template.Spec.Volumes[i].PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{ClaimName: "new"}
	}
	f := newFaulty(t, interceptor.Funcs{}, vm, vmi, claimed("new", "1Gi"))
	f.steps(t)
	for _, m := range f.vm().Status.PendingVolumes() {
		if m.DestinationPVCInfo.IsReady() {
			t.Errorf("volume %s is copied to claim new", m.VolumeName)
		}
	}
	if c := f.vm().Status.Condition(v1.ConditionVolumesChange); c == nil || !strings.Contains(c.Message, "too") {
		t.Errorf("condition %+v", c)
	}
}

// TestVMStopsWithoutReadableClaims: a VM stops whether or not its user's claims can be read.
func TestVMStopsWithoutReadableClaims(t *testing.T) {
	vm, vmi := onOld()
	renames(vm, "new")
	vm.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted)
	f := newFaulty(t, interceptor.Funcs{}, vm, vmi)
	f.Live = interceptor.NewClient(f.store, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch,
		key client.ObjectKey, o client.Object, options ...client.GetOption) error {
		if key.Name == "new" {
			return errors.New("no answer")
		}
		return c.Get(ctx, key, o, options...)
	}})
	f.steps(t)
	if f.vmi() != nil {
		t.Error("the guest runs on")
	}
}

// TestMistypedClaimNameCanBeCorrected: a claim whose name is mistyped holds no disk that could be lost. The
// name is corrected, and the VM restarts.
func TestMistypedClaimNameCanBeCorrected(t *testing.T) {
	vm, vmi := onOld()
	vmi.Status.PhaseTransitionTimestamps, vmi.Status.VolumeStatus = nil, nil
	vmi.Status.Phase = v1.Pending
	renames(vm, "new")
	f := newFaulty(t, interceptor.Funcs{}, vm, vmi)
	f.steps(t)
	if c := f.vm().Status.Condition(v1.ConditionRestartRequired); c == nil || f.vm().Status.VolumeUpdateState != nil {
		t.Errorf("status %+v", f.vm().Status)
	}
	if err := f.store.Delete(t.Context(), f.vmi()); err != nil {
		t.Fatal(err)
	}
	f.steps(t)
	if started := f.vmi(); started == nil || started.Spec.Volumes[0].Claim().Name != "new" {
		t.Errorf("the VM starts with %+v", started)
	}
}

// TestVolumeChangeWaitsForTheNextStart: without the strategy Migration the change waits for the next start.
func TestVolumeChangeWaitsForTheNextStart(t *testing.T) {
	vm, vmi := onOld()
	renames(vm, "new")
	vm.Spec.UpdateVolumesStrategy = nil
	f := newFaulty(t, interceptor.Funcs{}, vm, vmi, claimed("new", "1Gi"))
	f.steps(t)
	status := f.vm().Status
	if c := status.Condition(v1.ConditionRestartRequired); c == nil ||
		!strings.Contains(c.Message, "claimName: old → new (nothing is copied; see spec.updateVolumesStrategy)") ||
		status.VolumeUpdateState != nil ||
		status.Condition(v1.ConditionVolumesChange) != nil {
		t.Errorf("status %+v", status)
	}
}

// TestUncopiedDiskNeedsTheUsersWord: a guest ends before its disk was copied. The VM starts neither with the
// new claim nor with the old one until its user has said which it is to be.
func TestUncopiedDiskNeedsTheUsersWord(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*v1.VirtualMachine)
		uses string // the claim of the next start; empty if there is none
	}{
		"nothing is said": {func(*v1.VirtualMachine) {}, ""},
		"the old claim":   {func(vm *v1.VirtualMachine) { renames(vm, "old") }, "old"},
		"a third claim":   {func(vm *v1.VirtualMachine) { renames(vm, "third") }, "third"},
		"the new claim as it is": {func(vm *v1.VirtualMachine) {
			vm.Spec.UpdateVolumesStrategy = ptr.To(v1.UpdateVolumesStrategyReplacement)
		}, "new"},
		"another field": {func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Hostname = "other" }, ""},
	} {
		vm, vmi := onOld()
		renames(vm, "new")
		f := newFaulty(t, interceptor.Funcs{}, vm, vmi)
		f.steps(t)
		if err := f.store.Delete(t.Context(), f.vmi()); err != nil {
			t.Fatal(err)
		}
		f.steps(t)
		if got := f.vm().Status.Condition(v1.ConditionManualRecoveryRequired); f.vmi() != nil || got == nil ||
			!strings.Contains(got.Message, "from claim old to claim new") {
			t.Fatalf("%s: condition %+v, VMI %+v", name, got, f.vmi())
		}
		edited := f.vm()
		c.edit(edited)
		if err := f.store.Update(t.Context(), edited); err != nil {
			t.Fatal(err)
		}
		f.steps(t)
		started, uses := f.vmi(), ""
		if started != nil {
			uses = started.Claim(&started.Spec.Volumes[0]).Name
		}
		if uses != c.uses || (f.vm().Status.Condition(v1.ConditionManualRecoveryRequired) == nil) != (c.uses != "") {
			t.Errorf("%s: the VM starts with %q, want %q; conditions %+v", name, uses, c.uses, f.vm().Status.Conditions)
		}
	}
}

// TestMovedClaimsAreKnownDuringVolumeUpdate: the VM keeps what a policy's migrations have done while the
// template names another claim. It forgets that once it does not matter.
func TestMovedClaimsAreKnownDuringVolumeUpdate(t *testing.T) {
	copied := []v1.MovedClaim{{ClaimName: "old", HeldBy: "old-1"}}
	for name, c := range map[string]struct {
		template, spec, has string
		edit                func(*v1.VirtualMachine, *v1.VirtualMachineInstance)
		want                string
	}{
		"the template names the claim": {"old", "old", "old-1", nil, "old=old-1"},
		"the user names another":       {"new", "old", "old-1", nil, "old=old-1"},
		"a policy copies once more":    {"new", "old", "old-2", nil, "old=old-2"},
		"the guest has the other":      {"new", "old", "new", nil, "old=old-1"},
		"the VMI names the other":      {"new", "new", "new", nil, "old=old-1"},
		"it does, and the disk was copied there": {"new", "new",
			"new", func(vm *v1.VirtualMachine, _ *v1.VirtualMachineInstance) {
				vm.Status.VolumeUpdateState = (&volumeUpdate{pending: []v1.StorageMigratedVolumeInfo{{VolumeName: "root",
					SourcePVCInfo:      &v1.PersistentVolumeClaimInfo{ClaimName: "old-1"},
					DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "new"}}}}).state()
			}, ""},
		"the copying to a user's claim ends": {"old", "old", "new",
			func(_ *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) { arriving(vmi, "new") }, "old=old-1"},
		"it ends, and so does the VMI": {"old", "old", "new", func(_ *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) {
			arriving(vmi, "new")
			deleting(vmi)
		}, "old=new"},
		"the copying to a policy's claim ends": {"old", "old", v1.CopyName("old", "m"),
			func(_ *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) { arriving(vmi, v1.CopyName("old", "m")) },
			"old=" + v1.CopyName("old", "m")},
	} {
		vm, vmi := onOld()
		vm.Status.MovedClaims = copied
		renames(vm, c.template)
		vmi.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = c.spec
		vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.ClaimName = c.has
		if c.edit != nil {
			c.edit(vm, vmi)
		}
		got := ""
		for _, m := range moved(vm, vmi, nil) {
			got += m.ClaimName + "=" + m.HeldBy
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// arriving writes into a VMI's status that its guest is about to be on the target of a migration that copies
// its disk to a claim.
func arriving(vmi *v1.VirtualMachineInstance, claim string) {
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", Decision: v1.DecisionTarget}
	vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{
		{VolumeName: "root", SourcePVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "old-1"},
			DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: claim}}}
}

// TestInstancetypesNodeSelectorNeedsNoRestart: a VM whose instancetype has a node selector is as its template
// says right after its start.
func TestInstancetypesNodeSelectorNeedsNoRestart(t *testing.T) {
	vm := valid(v1.RunStrategyAlways)
	expanded := vm.DeepCopy()
	expanded.Spec.Template.Spec.NodeSelector = map[string]string{"rack": "1"}
	f := newFaulty(t, interceptor.Funcs{}, vm)
	made, _, err := f.assemble(t.Context(), vm, expanded, false)
	if err != nil || !vm.HasParts(made) || made.Spec.NodeSelector["rack"] != "1" {
		t.Errorf("%+v (%v)", made, err)
	}
}
