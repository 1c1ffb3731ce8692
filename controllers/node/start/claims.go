package start

import (
	"fmt"
	"path"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// claims returns the disks of the VMI on PersistentVolumeClaims and in files of the node. The
// facts about a claim are those that virt-controller wrote into the VMI's status: virt-handler
// has no right to read claims.
func claims(vmi *v1.VirtualMachineInstance) ([]control.Claim, error) {
	var out []control.Claim
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if v.HostDisk != nil {
			out = append(out, control.Claim{Volume: v.Name, File: path.Base(v.HostDisk.Path),
				ReadOnly: handover.OnlyRead(vmi, v.Name)})
		}
		source := vmi.Claim(v)
		if source == nil || vmi.Spec.IsFilesystem(v.Name) {
			continue
		}
		info := vmi.Status.ClaimInfo(v.Name)
		if info == nil || !info.IsBound() {
			return nil, fmt.Errorf("wait for the capacity of PersistentVolumeClaim %s of volume %s in the VMI's status",
				source.Name, v.Name)
		}
		out = append(out, control.Claim{Volume: v.Name, Block: info.IsBlock(),
			ReadOnly: source.ReadOnly || handover.OnlyRead(vmi, v.Name)})
	}
	return out, nil
}

// diskSize returns how large the disk of a volume may be, in bytes. It is 0 for a volume that is not on a claim: the
// VMI's spec gives its size.
func diskSize(vmi *v1.VirtualMachineInstance, volume string) int64 {
	if info := vmi.Status.ClaimInfo(volume); info != nil {
		return info.DiskSize()
	}
	return 0
}
