package migration

import (
	"fmt"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// cause is why virt-controller makes a migration by itself.
type cause struct {
	// annotation of the migration has the value that the migration is made for.
	annotation, value string
	// prefix of the migration's name is KubeVirt's.
	prefix   string
	priority v1.MigrationPriority
	// purpose completes "a migration to …".
	purpose string
	// hostname is the label of the guest's own node, if the guest is to go to another pod there.
	hostname string
}

// of says whether a migration was made for the cause.
func (c *cause) of(m *v1.VirtualMachineInstanceMigration) bool {
	return m.Annotations[c.annotation] == c.value
}

// counts says whether the failure of a migration puts off the next one of the cause. A user may name other claims as often as the
// user likes, and must not have migrations made without a pause.
func (c *cause) counts(m *v1.VirtualMachineInstanceMigration) bool {
	return c.of(m) || c.annotation == v1.VolumeUpdateAnnotation && m.Annotations[c.annotation] != ""
}

// causeOf returns why a guest is to move now, or nil. drained says that the guest's node has the drain taint. It is pure.
func causeOf(vmi *v1.VirtualMachineInstance, drained bool) *cause {
	if vmi.Status.Phase != v1.Running || vmi.DeletionTimestamp != nil {
		return nil
	}
	if reason, _ := vmi.NotMigratable(); reason != "" {
		return nil
	}
	// An eviction of the guest's pod was refused, and virt-api wrote which node the guest is to leave.
	if node := vmi.Status.NodeName; toLeave(vmi, drained) {
		return &cause{annotation: v1.EvacuationMigrationAnnotation, value: node, prefix: "kubevirt-evacuation-", priority: v1.PrioritySystemCritical, purpose: "leave node " + node}
	}
	// The VM's template puts volumes on other claims. Every user who may edit the VM can cause such a migration. So it comes after the
	// migrations of users who may migrate.
	if update := vmi.VolumeUpdate(); update != "" {
		return &cause{annotation: v1.VolumeUpdateAnnotation, value: update, prefix: "kubevirt-workload-update-", priority: v1.PrioritySystemMaintenance, purpose: "copy disks to the claims that the template names"}
	}
	return nil
}

// toLeave says whether a guest is to leave its node. drained is as for causeOf.
func toLeave(vmi *v1.VirtualMachineInstance, drained bool) bool {
	node := vmi.Status.NodeName
	return node != "" && (node == vmi.Status.EvacuationNodeName || drained) && vmi.Spec.EvictionStrategy.Moves()
}

// moot is why a migration that virt-controller made is not needed any more; empty if it is needed. drained is as for causeOf.
func moot(m *v1.VirtualMachineInstanceMigration, vmi *v1.VirtualMachineInstance, drained bool) string {
	if node := m.Annotations[v1.EvacuationMigrationAnnotation]; node != "" && (node != vmi.Status.NodeName || node != vmi.Status.EvacuationNodeName && !drained) {
		return fmt.Sprintf("nobody asks the guest to leave node %q any more", node)
	}
	if pod := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]; pod != "" && pod != vmi.LauncherPod() {
		return fmt.Sprintf("the guest has left the launcher pod %s already", pod)
	}
	if m.StaysOnNode() && toLeave(vmi, drained) {
		return fmt.Sprintf("the guest is to leave node %q, and this migration would keep the guest there", vmi.Status.NodeName)
	}
	if update := m.Annotations[v1.VolumeUpdateAnnotation]; update != "" && update != vmi.VolumeUpdate() {
		return "the VirtualMachine's template does not name the claims any more to which the migration was to copy disks"
	}
	return ""
}

// unwanted is why a migration that is under way copies a disk to a claim that nobody wants any more; empty if it does not.
func unwanted(vmi *v1.VirtualMachineInstance) string {
	for _, m := range vmi.UserClaims() {
		if to := vmi.MovesTo(m.VolumeName); to == nil || to.ClaimName != m.To() {
			return fmt.Sprintf("the VirtualMachine's template does not name the claim %s any more, to which the migration copies the disk of volume %s", m.To(), m.VolumeName)
		}
	}
	return ""
}
