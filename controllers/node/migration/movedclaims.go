package migration

import (
	"context"
	"fmt"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// This file is about disks on claims that a migration copies to other claims. The source says how large each disk is,
// and the target's launcher makes an empty disk of that size, into which QEMU copies.

// inspectMoved asks a launcher about the disks on claims that a migration copies. The facts are in the order of the
// volumes.
func inspectMoved(ctx context.Context, launcher *sessions.Session, vmi *v1.VirtualMachineInstance, readOnly bool) ([]qemuargs.VolumeFacts, error) {
	moved := vmi.Status.MigratedVolumes
	if len(moved) == 0 {
		return nil, nil
	}
	var request control.InspectRequest
	for _, m := range moved {
		request.Claims = append(request.Claims, control.Claim{Volume: m.VolumeName, ReadOnly: readOnly})
	}
	var reply control.InspectReply
	if err := launcher.Call(ctx, control.CommandInspect, request, &reply); err != nil {
		return nil, fmt.Errorf("inspect the disks that are copied: %w", err)
	}
	if len(reply.Claims) != len(moved) {
		return nil, fmt.Errorf("inspect the disks that are copied: %w: asked about %d, got %d", control.ErrProtocol, len(moved), len(reply.Claims))
	}
	for i, facts := range reply.Claims {
		if facts.Error != "" {
			return nil, fmt.Errorf("inspect the disk of volume %s: %s", moved[i].VolumeName, control.Short(facts.Error))
		}
	}
	return reply.Claims, nil
}

// movedSizes returns the sizes of the disks on claims that a migration copies, by volume, as the source's launcher
// sees them.
func movedSizes(ctx context.Context, launcher *sessions.Session, vmi *v1.VirtualMachineInstance) (map[string]int64, error) {
	facts, err := inspectMoved(ctx, launcher, vmi, true)
	if err != nil || len(facts) == 0 {
		return nil, err
	}
	sizes := map[string]int64{}
	for i, m := range vmi.Status.MigratedVolumes {
		sizes[m.VolumeName] = facts[i].Size
	}
	return sizes, nil
}

// atMostClaims returns sizes of disks, each at most as large as the claims between which the disk is copied. A
// launcher says the sizes, and a migration has time for each byte.
func atMostClaims(sizes map[string]int64, vmi *v1.VirtualMachineInstance) map[string]int64 {
	out := map[string]int64{}
	for _, m := range vmi.Status.MigratedVolumes {
		claims := int64(0)
		for _, info := range []*v1.PersistentVolumeClaimInfo{m.SourcePVCInfo, m.DestinationPVCInfo} {
			if info != nil {
				claims = max(claims, info.Requests.Storage().Value(), info.Capacity.Storage().Value())
			}
		}
		if size, ok := sizes[m.VolumeName]; ok {
			out[m.VolumeName] = min(size, claims)
		}
	}
	return out
}

// makeMoved makes a Machine say that the target's launcher makes the disks into which the migration copies. The sizes
// are a source's, and facts are what the target's launcher has found on the target's claims.
func makeMoved(m *qemuargs.Machine, vmi *v1.VirtualMachineInstance, sizes map[string]int64, facts []qemuargs.VolumeFacts) error {
	m.Disks = append([]qemuargs.Disk(nil), m.Disks...)
	for i := range m.Disks {
		// The source's launcher may have made a disk that both nodes have. The target must not make it anew.
		if image := &m.Disks[i].Image; image.Volume != "" {
			image.Create = 0
		}
	}
	for i, moved := range vmi.Status.MigratedVolumes {
		disk := diskOf(m, moved.VolumeName)
		size := sizes[moved.VolumeName]
		switch {
		case disk == nil || disk.ReadOnly || disk.Image.Volume != qemuargs.FileVolume || disk.Overlay != nil:
			return fmt.Errorf("the source's Machine has no disk %q in a file of a claim", moved.VolumeName)
		case size <= 0 || size%512 != 0:
			return fmt.Errorf("the source's disk %q has %d bytes, which is no size of a disk", moved.VolumeName, size)
		case !facts[i].Replaceable(m.UUID):
			return fmt.Errorf("the target's claim for volume %s has a disk already, with data on it; name an empty claim", moved.VolumeName)
		case size > facts[i].Free+facts[i].Taken:
			return fmt.Errorf("the target's claim for volume %s has no room for its disk of %d bytes: %d are free", moved.VolumeName, size, facts[i].Free+facts[i].Taken)
		}
		disk.Image.Create = size
		if err := keepDirect(disk, vmi, facts[i].Direct); err != nil {
			return err
		}
	}
	return nil
}

// keepDirect lets QEMU go past the page cache of the target as at the source, where the target's claim permits that.
// QEMU refuses native I/O without O_DIRECT. A disk whose spec asks for the one or the other does not move to such a
// claim.
func keepDirect(disk *qemuargs.Disk, vmi *v1.VirtualMachineInstance, direct bool) error {
	if direct || !disk.Image.Direct {
		return nil
	}
	for _, d := range vmi.Spec.Domain.Devices.Disks {
		if d.Name == disk.Name && (d.Cache == v1.CacheNone || d.IO == v1.IONative) {
			return fmt.Errorf("the spec's cache or io of disk %q needs O_DIRECT, which does not work on the target's claim for it", disk.Name)
		}
	}
	if disk.Image.Direct = false; disk.AIO == qemuargs.Native {
		disk.AIO = ""
	}
	return nil
}

func diskOf(m *qemuargs.Machine, name string) *qemuargs.Disk {
	for i := range m.Disks {
		if m.Disks[i].Name == name {
			return &m.Disks[i]
		}
	}
	return nil
}
