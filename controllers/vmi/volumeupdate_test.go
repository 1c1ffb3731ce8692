package vmi

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// updateOf returns what a VM's status says of a disk that is to be copied.
func updateOf(source string, to *v1.PersistentVolumeClaimInfo) *v1.VolumeUpdateState {
	return &v1.VolumeUpdateState{VolumeMigrationState: &v1.VolumeMigrationState{MigratedVolumes: []v1.StorageMigratedVolumeInfo{
		{VolumeName: "disk", SourcePVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: source}, DestinationPVCInfo: to}}}}
}

// TestStatusSaysWhichClaimIsCopiedTo: the status says to which claim the next migration copies, once the claim
// is ready, and whatever policies say. The VMI says what its VM says of that.
func TestStatusSaysWhichClaimIsCopiedTo(t *testing.T) {
	m := newMove(t)
	vm := m.withTemplate(nil)
	if err := m.client.Create(t.Context(), claimOf("next", nil)); err != nil {
		t.Fatal(err)
	}
	m.change(func(s *v1.VirtualMachineInstanceStatus) {
		s.MigrationState.Completed, s.MigrationState.Decision = true, v1.DecisionSource
	})
	now := func(pending *v1.VolumeUpdateState) *v1.VirtualMachineInstance {
		t.Helper()
		vm.Spec.UpdateVolumesStrategy = ptr.To(v1.UpdateVolumesStrategyMigration)
		vm.Spec.Template.Spec.Volumes = []v1.Volume{
			{Name: "disk", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "next"}}}
		vm.Status.VolumeUpdateState = pending
		if pending != nil {
			vm.Status.Conditions = []v1.VirtualMachineInstanceCondition{
				{Type: v1.ConditionVolumesChange, Status: metav1.ConditionTrue, Message: "soon"}}
		}
		if err := m.client.Update(t.Context(), vm); err != nil {
			t.Fatal(err)
		}
		m.steps()
		return m.get()
	}
	if vmi := now(updateOf("root", &v1.PersistentVolumeClaimInfo{ClaimName: "next"})); vmi.VolumeUpdate() != "" ||
		vmi.Moves("disk") {
		t.Errorf("it moves to a claim that is not ready: %+v", vmi.Status.VolumeStatus)
	}
	vmi := now(updateOf("root", v1.InfoOfClaim(claimOf("next", nil))))
	if to := vmi.MovesTo("disk"); to == nil || to.ClaimName != "next" || !vmi.Moves("disk") || vmi.CopiesClaims() ||
		vmi.Status.Condition(v1.ConditionLiveMigratable).Status != metav1.ConditionTrue {
		t.Errorf("it does not move: %+v", vmi.Status)
	}
	if c := vmi.Status.Condition(v1.ConditionVolumesChange); c == nil || c.Message != "soon" {
		t.Errorf("the VMI says %+v", c)
	}
	vm.Status.Conditions = nil
	if vmi := now(nil); vmi.VolumeUpdate() != "" || vmi.Status.Condition(v1.ConditionVolumesChange) != nil {
		t.Errorf("after the end the VMI says %+v", vmi.Status)
	}
}
