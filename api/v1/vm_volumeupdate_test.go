package v1

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func volumeOn(name, claim string) Volume {
	return Volume{Name: name, PersistentVolumeClaim: &PersistentVolumeClaimVolumeSource{ClaimName: claim}}
}

// running returns a VMI whose guest runs, and has its disk root on a claim; of no claim nothing is known.
func running(spec Volume, has string) *VirtualMachineInstance {
	vmi := &VirtualMachineInstance{}
	vmi.Spec.Volumes = []Volume{spec}
	vmi.Spec.Domain.Devices.Disks = []Disk{{Name: "root", Disk: &DiskTarget{Bus: DiskBusVirtio}}}
	vmi.Status.SetPhase(Running, metav1.Unix(1000, 0))
	if has != "" {
		vmi.Status.VolumeStatus = []VolumeStatus{{Name: "root",
			PersistentVolumeClaimInfo: &PersistentVolumeClaimInfo{ClaimName: has}}}
	}
	return vmi
}

// TestWhichClaimsAVolumeUpdateChanges: which volumes a template puts on other claims than the guest has, and which of
// their disks a migration copies.
func TestWhichClaimsAVolumeUpdateChanges(t *testing.T) {
	image := Volume{Name: "root", ContainerDisk: &ContainerDiskSource{Image: "a"}}
	overlay := Volume{Name: "root",
		Ephemeral: &EphemeralVolumeSource{PersistentVolumeClaim: &EphemeralClaim{ClaimName: "b"}}}
	read := volumeOn("root", "b")
	read.PersistentVolumeClaim.ReadOnly = true
	copied := []MovedClaim{{ClaimName: "a", HeldBy: "a-1"}}
	none := func(*VirtualMachineInstance) {}
	for name, c := range map[string]struct {
		template, spec Volume
		has            string // what the status says
		moved          []MovedClaim
		edit           func(*VirtualMachineInstance)
		want           string
	}{
		"the same": {volumeOn("root", "a"), volumeOn("root", "a"), "a", nil, none, ""},
		"the same, as a DataVolume": {Volume{Name: "root", DataVolume: &DataVolumeSource{Name: "a"}},
			volumeOn("root", "a"), "a", nil, none, ""},
		"another":                   {volumeOn("root", "b"), volumeOn("root", "a"), "a", nil, none, "copies a to b"},
		"another, and it is there":  {volumeOn("root", "b"), volumeOn("root", "a"), "b", nil, none, ""},
		"a migration has copied it": {volumeOn("root", "a"), volumeOn("root", "a"), "a-1", copied, none, ""},
		"a copy, and another": {volumeOn("root", "b"), volumeOn("root", "a"), "a-1", copied, none,
			"copies a-1 to b"},
		"the copy by its name":              {volumeOn("root", "a-1"), volumeOn("root", "a"), "a-1", copied, none, ""},
		"another volume":                    {volumeOn("other", "b"), volumeOn("root", "a"), "a", nil, none, ""},
		"an image in place of a claim":      {image, volumeOn("root", "a"), "a", nil, none, ""},
		"a claim in place of an image":      {volumeOn("root", "b"), image, "", nil, none, ""},
		"an overlay in place of a claim":    {overlay, volumeOn("root", "a"), "a", nil, none, ""},
		"only read, in place of read-write": {read, volumeOn("root", "a"), "a", nil, none, ""},
		"another, nothing is known":         {volumeOn("root", "b"), volumeOn("root", "a"), "", nil, none, "stages a to b"},
		"the guest never ran": {volumeOn("root", "b"), volumeOn("root", "a"), "a", nil, func(vmi *VirtualMachineInstance) {
			vmi.Status.PhaseTransitionTimestamps = nil
		}, "stages a to b"},
		"the guest has ended": {volumeOn("root", "b"), volumeOn("root", "a"), "a", nil, func(vmi *VirtualMachineInstance) {
			vmi.Status.SetPhase(Succeeded, metav1.Unix(2000, 0))
		}, "copies a to b"},
		"a CD-ROM": {volumeOn("root", "b"), volumeOn("root", "a"), "a", nil, func(vmi *VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Disks = []Disk{{Name: "root", CDRom: &CDRomTarget{}}}
		}, "stages a to b"},
		"a block device": {volumeOn("root", "b"), volumeOn("root", "a"), "a", nil, func(vmi *VirtualMachineInstance) {
			vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}, "stages a to b"},
	} {
		vm, vmi := &VirtualMachine{}, running(c.spec, c.has)
		vm.Spec.UpdateVolumesStrategy = ptr.To(UpdateVolumesStrategyMigration)
		vm.Spec.Template.Spec.Volumes, vm.Status.MovedClaims = []Volume{c.template}, c.moved
		c.edit(vmi)
		say := func(rollout RolloutStrategy) string {
			got := ""
			copied, staged := vm.VolumeUpdates(vmi, rollout)
			for verb, list := range map[string][]StorageMigratedVolumeInfo{"copies": copied, "stages": staged} {
				for _, m := range list {
					got += verb + " " + m.SourcePVCInfo.ClaimName + " to " + m.DestinationPVCInfo.ClaimName
				}
			}
			return got
		}
		if got := say(RolloutLiveUpdate); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		staged := strings.Replace(c.want, "copies", "stages", 1)
		if got := say(RolloutStage); got != staged {
			t.Errorf("%s, with Stage: %q, want %q", name, got, staged)
		}
		vm.Spec.UpdateVolumesStrategy = nil
		if got := say(RolloutLiveUpdate); got != staged {
			t.Errorf("%s, with Replacement: %q, want %q", name, got, staged)
		}
	}
}

// TestVMKnowsWhereItsDisksAre: a VMI goes only once its VM has in its status where the disks are. The VM's controller
// is held to the same: after its next look the VM knows, whatever the template says by then.
func TestVMKnowsWhereItsDisksAre(t *testing.T) {
	read := volumeOn("root", "b")
	read.PersistentVolumeClaim.ReadOnly = true
	overlay := Volume{Name: "root",
		Ephemeral: &EphemeralVolumeSource{PersistentVolumeClaim: &EphemeralClaim{ClaimName: "b"}}}
	pending := func(from, to string) *VolumeUpdateState {
		return &VolumeUpdateState{
			VolumeMigrationState: &VolumeMigrationState{MigratedVolumes: []StorageMigratedVolumeInfo{{VolumeName: "root",
				SourcePVCInfo:      &PersistentVolumeClaimInfo{ClaimName: from},
				DestinationPVCInfo: &PersistentVolumeClaimInfo{ClaimName: to}}}}}
	}
	for name, c := range map[string]struct {
		strategy UpdateVolumesStrategy
		template Volume
		has      string
		moved    []MovedClaim
		pending  *VolumeUpdateState
		want     bool
	}{
		"as the spec says": {UpdateVolumesStrategyMigration, volumeOn("root", "a"), "a", nil, nil,
			true},
		"a policy's copy, not noted": {UpdateVolumesStrategyMigration, volumeOn("root", "a"), "a-1", nil, nil,
			false},
		"a policy's copy, noted": {UpdateVolumesStrategyMigration, volumeOn("root", "a"), "a-1",
			[]MovedClaim{{ClaimName: "a", HeldBy: "a-1"}}, nil, true},
		"to be copied, not noted": {UpdateVolumesStrategyMigration, volumeOn("root", "b"), "a", nil, nil,
			false},
		"to be copied, noted": {UpdateVolumesStrategyMigration, volumeOn("root", "b"), "a", nil,
			pending("a", "b"), true},
		"to be copied, another claim is noted": {UpdateVolumesStrategyMigration, volumeOn("root", "b"), "a", nil,
			pending("a", "c"), false},
		"copied, and noted as to be copied": {UpdateVolumesStrategyMigration, volumeOn("root", "b"), "b", nil,
			pending("a", "b"), false},
		"copied": {UpdateVolumesStrategyMigration, volumeOn("root", "b"), "b", nil, nil,
			true},
		"copied, without the strategy": {UpdateVolumesStrategyReplacement, volumeOn("root", "b"), "b", nil, nil,
			true},
		"staged": {UpdateVolumesStrategyReplacement, volumeOn("root", "b"), "a", nil, nil,
			true},
		"staged, and noted as to be copied": {UpdateVolumesStrategyReplacement, volumeOn("root", "b"), "a", nil,
			pending("a", "b"), false},
		"staged, a policy's copy, not noted": {UpdateVolumesStrategyReplacement, volumeOn("root", "b"), "a-1", nil,
			nil, false},
		"staged, a policy's copy": {UpdateVolumesStrategyReplacement, volumeOn("root", "b"), "a-1",
			[]MovedClaim{{ClaimName: "a", HeldBy: "a-1"}}, nil, true},
		"only read from now on":  {UpdateVolumesStrategyMigration, read, "a", nil, nil, true},
		"an overlay from now on": {UpdateVolumesStrategyMigration, overlay, "a", nil, nil, true},
		"the volume is gone": {UpdateVolumesStrategyMigration, volumeOn("other", "b"), "a", nil, nil,
			true},
		"to be copied from a policy's copy": {UpdateVolumesStrategyMigration, volumeOn("root", "b"), "a-1",
			[]MovedClaim{{ClaimName: "a", HeldBy: "a-1"}}, pending("a-1", "b"), true},
		"to be copied from a policy's unnoted copy": {UpdateVolumesStrategyMigration, volumeOn("root", "b"), "a-1", nil,
			pending("a-1", "b"), false},
		"a disk of which nothing is known": {UpdateVolumesStrategyMigration, volumeOn("root", "b"), "", nil, nil,
			true},
		"nothing is known, and it is to be copied": {UpdateVolumesStrategyMigration, volumeOn("root", "b"), "", nil,
			pending("a", "b"), false},
	} {
		vm, vmi := &VirtualMachine{}, running(volumeOn("root", "a"), c.has)
		vm.Spec.UpdateVolumesStrategy = ptr.To(c.strategy)
		vm.Spec.Template.Spec.Volumes, vm.Status.MovedClaims, vm.Status.VolumeUpdateState = []Volume{c.template}, c.moved,
			c.pending
		if got := vm.Knows(vmi, RolloutLiveUpdate); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestVMDoesNotStartWithoutItsCopiedDisk: a VM must not start from claims to which its disks were not copied, unless
// its user says so.
func TestVMDoesNotStartWithoutItsCopiedDisk(t *testing.T) {
	for name, c := range map[string]struct {
		strategy UpdateVolumesStrategy
		template Volume
		want     int
	}{
		"the template is as it was":    {UpdateVolumesStrategyMigration, volumeOn("root", "b"), 1},
		"the old claim again":          {UpdateVolumesStrategyMigration, volumeOn("root", "a"), 0},
		"a third claim":                {UpdateVolumesStrategyMigration, volumeOn("root", "c"), 0},
		"the user wants what is there": {UpdateVolumesStrategyReplacement, volumeOn("root", "b"), 0},
		"the volume is gone":           {UpdateVolumesStrategyMigration, volumeOn("other", "b"), 0},
		"a DataVolume of the same claim": {UpdateVolumesStrategyMigration,
			Volume{Name: "root", DataVolume: &DataVolumeSource{Name: "b"}}, 1},
	} {
		vm := &VirtualMachine{}
		vm.Spec.UpdateVolumesStrategy = ptr.To(c.strategy)
		vm.Spec.Template.Spec.Volumes = []Volume{c.template}
		vm.Status.VolumeUpdateState = &VolumeUpdateState{
			VolumeMigrationState: &VolumeMigrationState{MigratedVolumes: []StorageMigratedVolumeInfo{
				{VolumeName: "root", SourcePVCInfo: &PersistentVolumeClaimInfo{ClaimName: "a"},
					DestinationPVCInfo: &PersistentVolumeClaimInfo{ClaimName: "b"}}}}}
		if got := len(vm.NotCopied()); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestPartsIgnoreNamesOfClaims: the names of claims are no part of the template, and all else of volumes is.
func TestPartsIgnoreNamesOfClaims(t *testing.T) {
	hash := func(volumes ...Volume) string {
		vm := &VirtualMachine{}
		vm.Spec.Template.Spec.Volumes = volumes
		before := vm.DeepCopy()
		h := vm.Parts().String()
		if diff := cmp.Diff(before, vm); diff != "" {
			t.Errorf("the VM is changed: %s", diff)
		}
		return h
	}
	read := volumeOn("root", "a")
	read.PersistentVolumeClaim.ReadOnly = true
	of := hash(volumeOn("root", "a"))
	for name, c := range map[string]struct {
		volumes []Volume
		same    bool
	}{
		"another claim":  {[]Volume{volumeOn("root", "b")}, true},
		"a DataVolume":   {[]Volume{{Name: "root", DataVolume: &DataVolumeSource{Name: "b"}}}, true},
		"another volume": {[]Volume{volumeOn("other", "a")}, false},
		"only read":      {[]Volume{read}, false},
		"one more":       {[]Volume{volumeOn("root", "a"), volumeOn("more", "b")}, false},
		"an image":       {[]Volume{{Name: "root", ContainerDisk: &ContainerDiskSource{Image: "a"}}}, false},
	} {
		if got := hash(c.volumes...); (got == of) != c.same {
			t.Errorf("%s: the parts are the same: %v", name, got == of)
		}
	}
}

// TestClaimNamedByUserCountsUntilGuestHasIt: what a user named for a disk counts until the guest has it.
func TestClaimNamedByUserCountsUntilGuestHasIt(t *testing.T) {
	vmi := &VirtualMachineInstance{}
	vmi.Spec.Volumes = []Volume{volumeOn("root", "a"), volumeOn("data", "b")}
	vmi.Status.VolumeStatus = []VolumeStatus{{Name: "root",
		PersistentVolumeClaimInfo: &PersistentVolumeClaimInfo{ClaimName: "a"}},
		{Name: "data", PersistentVolumeClaimInfo: &PersistentVolumeClaimInfo{ClaimName: "b"}}}
	if vmi.VolumeUpdate() != "" || vmi.MovesTo("root") != nil {
		t.Error("something moves")
	}
	vmi.Status.VolumeStatus[0].MovesTo = &PersistentVolumeClaimInfo{ClaimName: "c"}
	first := vmi.VolumeUpdate()
	if first == "" || vmi.MovesTo("root").ClaimName != "c" || vmi.MovesTo("data") != nil {
		t.Errorf("update %q", first)
	}
	vmi.Status.VolumeStatus[0].MovesTo.ClaimName = "d"
	if second := vmi.VolumeUpdate(); second == first {
		t.Error("two claims have the same hash")
	}
	vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.ClaimName = "d"
	if got := vmi.VolumeUpdate(); got != "" {
		t.Errorf("the guest has the claim, and there is an update %q", got)
	}
}
