package node

import (
	"fmt"
	"path"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// claims are the VMI's volumes on PersistentVolumeClaims and in files of the
// node. What virt-controller
// has written of them decides; virt-handler has no right to read claims.
func claims(vmi *v1.VirtualMachineInstance) ([]control.Claim, error) {
	var out []control.Claim
	for _, v := range vmi.Spec.Volumes {
		if v.HostDisk != nil {
			out = append(out, control.Claim{Volume: v.Name, File: path.Base(v.HostDisk.Path), ReadOnly: onlyRead(vmi, v.Name)})
		}
		source := v.Claim()
		if source == nil {
			continue
		}
		info := vmi.Status.ClaimInfo(v.Name)
		if info == nil || !info.IsBound() {
			return nil, fmt.Errorf("wait for the capacity of PersistentVolumeClaim %s of volume %s in the VMI's status", source.Name, v.Name)
		}
		out = append(out, control.Claim{Volume: v.Name, Block: info.IsBlock(), ReadOnly: source.ReadOnly || onlyRead(vmi, v.Name)})
	}
	return out, nil
}

// diskSize is how large the disk of a volume may be, in bytes; 0 for one of whom
// its VMI's spec says it.
func diskSize(vmi *v1.VirtualMachineInstance, volume string) int64 {
	if info := vmi.Status.ClaimInfo(volume); info != nil {
		return info.DiskSize()
	}
	return 0
}

// onlyRead says whether the volume's disk is one that no guest writes to: a
// CD-ROM, say, of which the launcher needs no right to write either.
func onlyRead(vmi *v1.VirtualMachineInstance, volume string) bool {
	for _, d := range vmi.Spec.Domain.Devices.Disks {
		if d.Name == volume {
			_, readOnly := d.Target()
			return readOnly
		}
	}
	return false
}
