package node

import (
	"context"
	"fmt"
	"path"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

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

// growPatience is until a disk that could not be made larger is tried again.
const growPatience = 5 * time.Minute

// growDisks tells the launcher of claims whose volumes have become larger, once
// for each size; after a restart of virt-handler once more, which changes
// nothing. It returns when to try again what failed, or 0.
func (r *Reconciler) growDisks(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *session) (again time.Duration) {
	state := launcher.State()
	if state.StartedAt == nil || state.State == control.StateExited {
		return 0
	}
	log := ctrl.LoggerFrom(ctx)
	for _, d := range vmi.Spec.Domain.Devices.Disks {
		info := vmi.Status.ClaimInfo(d.Name)
		if info == nil || !writable(vmi, d) || !launcher.grows(d.Name, info.DiskSize()) {
			continue
		}
		var reply control.GrowDiskReply
		if err := launcher.call(ctx, control.CommandGrowDisk, control.GrowDiskRequest{Disk: d.Name, Size: info.DiskSize()}, &reply); err != nil {
			log.Info("a disk could not be made as large as its claim", "disk", d.Name, "size", info.DiskSize(), "error", short(err.Error()))
			launcher.forgetSize(d.Name)
			again = growPatience
			continue
		}
		log.V(1).Info("disk is as large as its claim", "disk", d.Name, "size", reply.Size)
	}
	return again
}

// writable says whether the guest can write to a disk on a claim: others do not grow.
func writable(vmi *v1.VirtualMachineInstance, d v1.Disk) bool {
	if onlyRead(vmi, d.Name) {
		return false
	}
	for _, v := range vmi.Spec.Volumes {
		if v.Name == d.Name {
			source := v.Claim()
			return source != nil && !source.ReadOnly
		}
	}
	return false
}

// grows notes the size that a disk may have, in bytes, and says whether that is
// more than was noted before.
func (s *session) grows(disk string, size int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size <= s.sizes[disk] {
		return false
	}
	if s.sizes == nil {
		s.sizes = map[string]int64{}
	}
	s.sizes[disk] = size
	return true
}

func (s *session) forgetSize(disk string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sizes, disk)
}
