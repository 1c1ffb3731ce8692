package v1

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func onClaim(volume, claim string) Volume {
	return Volume{Name: volume, DataVolume: &DataVolumeSource{Name: claim}}
}

// TestWhichClaimHasTheDisk: the status says which claim has a disk, then the annotation of the start, then the spec.
func TestWhichClaimHasTheDisk(t *testing.T) {
	for name, c := range map[string]struct {
		annotation, status, want string
	}{
		"the spec":            {want: "root"},
		"the start":           {annotation: `{"root":"root-1","other":"x"}`, want: "root-1"},
		"the status":          {annotation: `{"root":"root-1"}`, status: "root-2", want: "root-2"},
		"not in the start":    {annotation: `{"other":"x"}`, want: "root"},
		"a broken annotation": {annotation: `["root"]`, want: "root"},
		"no name of a claim":  {annotation: `{"root":"../x"}`, want: "root"},
		"too long a name":     {annotation: `{"root":"` + strings.Repeat("a", 254) + `"}`, want: "root"},
	} {
		vmi := &VirtualMachineInstance{}
		vmi.Annotations = map[string]string{ClaimsAnnotation: c.annotation}
		vmi.Spec.Volumes = []Volume{onClaim("disk", "root")}
		if c.status != "" {
			vmi.Status.VolumeStatus = []VolumeStatus{{Name: "disk",
				PersistentVolumeClaimInfo: &PersistentVolumeClaimInfo{ClaimName: c.status}}}
		}
		if got := vmi.Claim(&vmi.Spec.Volumes[0]); got == nil || got.Name != c.want {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
		if got := vmi.Spec.Volumes[0].Claim().Name; got != "root" {
			t.Errorf("%s: the spec became %s", name, got)
		}
	}
	image := Volume{Name: "disk", ContainerDisk: &ContainerDiskSource{}}
	if got := (&VirtualMachineInstance{}).Claim(&image); got != nil {
		t.Errorf("a container disk is on %+v", got)
	}
	overlay := Volume{Name: "disk",
		Ephemeral: &EphemeralVolumeSource{PersistentVolumeClaim: &EphemeralClaim{ClaimName: "root"}}}
	vmi := &VirtualMachineInstance{}
	vmi.Annotations = map[string]string{ClaimsAnnotation: `{"root":"root-1"}`}
	if got := vmi.Claim(&overlay); got.Name != "root" {
		t.Errorf("an overlay is over %s", got.Name)
	}
}

// TestDecisionSettlesWhichClaimIsUsed: the decision says which claim the guest has, and the other volumes stay as they
// are.
func TestDecisionSettlesWhichClaimIsUsed(t *testing.T) {
	info := func(name string) *PersistentVolumeClaimInfo { return &PersistentVolumeClaimInfo{ClaimName: name} }
	status := VirtualMachineInstanceStatus{Phase: Running,
		MigrationState: &VirtualMachineInstanceMigrationState{SourcePod: "a", TargetPod: "b", SourceNode: "1",
			TargetNode: "2"},
		VolumeStatus: []VolumeStatus{{Name: "other", PersistentVolumeClaimInfo: info("other")},
			{Name: "disk", Target: "vda", Moves: true, PersistentVolumeClaimInfo: info("root")}, {Name: "seed"}},
		MigratedVolumes: []StorageMigratedVolumeInfo{{VolumeName: "disk", SourcePVCInfo: info("root"),
			DestinationPVCInfo: info("root-1")}}}
	has := func(want string) {
		t.Helper()
		status.Settle()
		want1 := []VolumeStatus{{Name: "other", PersistentVolumeClaimInfo: info("other")},
			{Name: "disk", Target: "vda", Moves: true, PersistentVolumeClaimInfo: info(want)}, {Name: "seed"}}
		if diff := cmp.Diff(want1, status.VolumeStatus); diff != "" {
			t.Errorf("decided for %q: %s", status.MigrationState.Decision, diff)
		}
	}
	has("root")
	status.MigrationState.Decision = DecisionTarget
	has("root-1")
	// The target's QEMU did not let the guest run.
	status.MigrationState.Decision = DecisionSource
	has("root")
	if status.LauncherPod != "a" {
		t.Errorf("the guest is in %s", status.LauncherPod)
	}
}

// TestGuestWithCopiedDiskIsMigratable: a disk that is copied keeps no guest on its node, and both nodes have a disk of
// their own.
func TestGuestWithCopiedDiskIsMigratable(t *testing.T) {
	vmi := &VirtualMachineInstance{}
	vmi.Spec.Volumes = []Volume{onClaim("disk", "root")}
	vmi.Spec.Domain.Devices.Disks = []Disk{{Name: "disk"}}
	vmi.Status.VolumeStatus = []VolumeStatus{{Name: "disk",
		PersistentVolumeClaimInfo: &PersistentVolumeClaimInfo{ClaimName: "root",
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}}}
	check := func(what string, moves bool) {
		t.Helper()
		reason, message := vmi.NotMigratable()
		method := map[bool]MigrationMethod{false: MethodLiveMigration, true: MethodBlockMigration}[moves]
		if (reason == "") != moves || len(vmi.CopiedDisks()) > 0 != moves || vmi.SharesDisks() == moves ||
			vmi.Method() != method {
			t.Errorf("%s: %s %s, copied %v, shared %v, %s", what, reason, message, vmi.CopiedDisks(), vmi.SharesDisks(),
				vmi.Method())
		}
	}
	check("without a policy", false)
	vmi.Status.VolumeStatus[0].Moves = true
	check("with a policy", true)
	vmi.Spec.Domain.Devices.Disks[0].Shareable = ptr.To(true)
	if reason, message := vmi.NotMigratable(); reason != ReasonDisksNotMigratable ||
		!strings.Contains(message, "shareable") {
		t.Errorf("a disk that is shared and would be copied: %q, %q", reason, message)
	}
	vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.AccessModes = []corev1.PersistentVolumeAccessMode{
		corev1.ReadWriteMany}
	vmi.Status.VolumeStatus[0].Moves = false
	if reason, message := vmi.NotMigratable(); reason != "" {
		t.Errorf("a disk that is shared by all nodes: %q, %q", reason, message)
	}
	vmi.Spec.Domain.Devices.Disks[0].Shareable = nil
	vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.AccessModes = []corev1.PersistentVolumeAccessMode{
		corev1.ReadWriteOnce}
	vmi.Status.VolumeStatus[0].Moves = true
	// A migration that is under way goes on as it began.
	vmi.Status.MigrationState = &VirtualMachineInstanceMigrationState{}
	check("a migration that copies no claims", false)
	vmi.Status.MigratedVolumes = []StorageMigratedVolumeInfo{{VolumeName: "disk"}}
	vmi.Status.VolumeStatus[0].Moves = false
	check("a migration that copies the claim", true)
}

// TestVMIStartsWithTheClaimOfItsDisk: a VMI is told which claims have its disks, whatever the template says in its
// annotations, and whatever name its volumes have.
func TestVMIStartsWithTheClaimOfItsDisk(t *testing.T) {
	for name, c := range map[string]struct {
		volume Volume
		moved  []MovedClaim
		want   string
	}{
		"nothing has moved": {volume: onClaim("disk", "root")},
		"a disk has moved": {onClaim("disk", "root"), []MovedClaim{{ClaimName: "root", HeldBy: "root-1"}},
			`{"root":"root-1"}`},
		"the volume was renamed": {onClaim("system", "root"), []MovedClaim{{ClaimName: "root", HeldBy: "root-1"}},
			`{"root":"root-1"}`},
		"the template names another now": {onClaim("disk", "root"), []MovedClaim{{ClaimName: "before", HeldBy: "root-1"}},
			""},
		"an overlay": {Volume{Name: "disk",
			Ephemeral: &EphemeralVolumeSource{PersistentVolumeClaim: &EphemeralClaim{ClaimName: "root"}}},
			[]MovedClaim{{ClaimName: "root", HeldBy: "root-1"}}, ""},
	} {
		vm := &VirtualMachine{}
		vm.Spec.Template.ObjectMeta.Annotations = map[string]string{ClaimsAnnotation: `{"root":"somebody's"}`}
		vm.Spec.Template.Spec.Volumes = []Volume{c.volume}
		vm.Status.MovedClaims = c.moved
		draft := vm.Draft(false)
		if got := draft.Annotations[ClaimsAnnotation]; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got := draft.Spec.Volumes[0].Claim().Name; got != "root" {
			t.Errorf("%s: the spec names %s", name, got)
		}
	}
}

// TestEachMigrationNamesItsOwnClaims: each migration has names of its own, which are names of claims.
func TestEachMigrationNamesItsOwnClaims(t *testing.T) {
	a, b := CopyName("root", "m"), CopyName("root", "n")
	if a == b || !strings.HasPrefix(a, "root-") || a != CopyName("root", "m") {
		t.Errorf("%s and %s", a, b)
	}
	if state := StateCopyName("a", "uid", "m"); state == CopyName(StateClaimName("a", "uid"), "m") ||
		state == CopyName(StateClaimLabel+"-a", "m") {
		t.Errorf("a disk's claim has the name of a claim with state, %s", state)
	}
	long := CopyName(strings.Repeat("a.", 126)+"b", "m")
	if len(long) > 253 || strings.Contains(long, ".-") {
		t.Errorf("%d bytes: %s", len(long), long)
	}
}
