// Package disks makes, opens, inspects and grows the disks of a VM, in its pod.
package disks

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// Folders are the folders in the pod that hold a VM's disks, and what disks are made of. An
// empty path means the path in package layout.
type Folders struct {
	Images   string // one folder for each container disk that is a volume: the whole image
	Sockets  string // one folder for each container disk that a container hands out: that container's socket
	Overlays string
	Kernel   string // the image of a kernel that is booted directly
	Secrets  string // one folder for each Secret
	Config   string // one folder for each volume of which a disk is made
	Run      string // those disks
	Claims   string // one folder for each claim of mode Filesystem
	Blocks   string // one device for each claim of mode Block
}

// Default gives the folders that have no path the paths of package layout.
func (f *Folders) Default() {
	f.Images, f.Overlays = cmp.Or(f.Images, layout.ImageVolumeDir), cmp.Or(f.Overlays, layout.OverlayDir)
	f.Sockets = cmp.Or(f.Sockets, layout.ImageDir)
	f.Kernel, f.Secrets = cmp.Or(f.Kernel, layout.KernelDir), cmp.Or(f.Secrets, layout.SecretDir)
	f.Config, f.Run = cmp.Or(f.Config, layout.ConfigDir), cmp.Or(f.Run, layout.RunDir)
	f.Claims, f.Blocks = cmp.Or(f.Claims, layout.ClaimDir), cmp.Or(f.Blocks, layout.BlockDir)
}

// inspectPatience is how long all containers that hand out images have to answer an inspection, whose caller waits for
// 30 seconds and asks again: a loaded node may take longer to start a program.
const inspectPatience = 20 * time.Second

// Inspect returns facts that only the pod can see. The error is that they cannot be had yet. What is wrong with an
// image or a volume is in its facts.
func (f Folders) Inspect(ctx context.Context, request control.InspectRequest) (control.InspectReply, error) {
	reply := control.InspectReply{OverlayDirect: diskimage.DirectWorks(f.Overlays), OverlayBlocks: diskimage.FolderBlocks(f.Overlays), AIO: diskimage.ProbeAIO("/proc")}
	if request.Kernel != nil {
		reply.Kernel = findKernel(f.Kernel, *request.Kernel)
	}
	ctx, cancel := context.WithTimeout(ctx, inspectPatience)
	defer cancel()
	for _, d := range request.ContainerDisks {
		facts, err := f.inspectImage(ctx, d)
		if err != nil {
			return reply, err
		}
		reply.ContainerDisks = append(reply.ContainerDisks, facts)
	}
	for _, c := range request.Claims {
		var facts qemuargs.VolumeFacts
		var err error
		if c.Block {
			facts, err = diskimage.InspectBlock(filepath.Join(f.Blocks, filepath.Base(c.Volume)), c.ReadOnly)
		} else {
			facts, err = diskimage.InspectVolume(filepath.Join(f.Claims, filepath.Base(c.Volume)), cmp.Or(c.File, layout.ClaimDisk), c.ReadOnly)
		}
		if err != nil {
			facts = qemuargs.VolumeFacts{Error: err.Error()}
		}
		reply.Claims = append(reply.Claims, facts)
	}
	for _, c := range request.ConfigVolumes {
		reply.ConfigVolumes = append(reply.ConfigVolumes, f.makeConfig(c))
	}
	return reply, nil
}

// inspectImage returns facts about a container disk: a volume of the pod, or what a container of the pod hands out.
func (f Folders) inspectImage(ctx context.Context, d control.ContainerDisk) (qemuargs.ImageFacts, error) {
	volume := filepath.Base(d.Volume) // it is the name of a volume, and no path
	root := filepath.Join(f.Images, volume)
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) && f.handsOut(volume) {
		return f.inspectHandedOut(ctx, volume)
	}
	facts, err := diskimage.Find(root, d.Path)
	if err != nil {
		return qemuargs.ImageFacts{Error: err.Error()}, nil
	}
	facts.Path = filepath.Join(root, facts.Path)
	return facts, nil
}

// findKernel finds the files of a kernel in its image volume.
func findKernel(root string, files control.KernelFiles) *qemuargs.KernelFacts {
	facts := &qemuargs.KernelFacts{}
	for _, file := range []struct {
		name string
		into *string
	}{{files.Kernel, &facts.Path}, {files.Initrd, &facts.Initrd}} {
		if file.name == "" {
			continue
		}
		path, err := diskimage.FindFile(root, file.name)
		if err != nil {
			return &qemuargs.KernelFacts{Error: err.Error()}
		}
		*file.into = filepath.Join(root, path)
	}
	return facts
}
