package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/cmd/qemuargs/local/images"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// kernelVolume stands for the kernel's image where images go by the volume's name. It is no
// volume's name: those have no capital letter.
const kernelVolume = "KERNEL"

// image is a container image that the VM needs.
type image struct {
	volume    string
	reference string
	policy    images.Policy
	path      *field.Path
}

// imagesOf are the container images of a VMI.
func imagesOf(vmi *v1.VirtualMachineInstance) []image {
	var out []image
	for i, v := range vmi.Spec.Volumes {
		if d := v.ContainerDisk; d != nil {
			out = append(out, image{v.Name, d.Image, images.Policy(d.ImagePullPolicy), field.NewPath("spec", "volumes").Index(i).Child("containerDisk", "image")})
		}
	}
	if k := vmi.KernelContainer(); k != nil {
		out = append(out, image{kernelVolume, k.Image, images.Policy(k.ImagePullPolicy), field.NewPath("spec", "domain", "firmware", "kernelBoot", "container", "image")})
	}
	return out
}

// checkDisks says which of a VMI's volumes cannot be had, and which flags are for none of them.
func (o Options) checkDisks(vmi *v1.VirtualMachineInstance) (errs field.ErrorList, unused []error) {
	errs, unused = o.checkFileSystems(vmi)
	claims := map[string]bool{}
	for i, v := range vmi.Spec.Volumes {
		path := field.NewPath("spec", "volumes").Index(i)
		switch {
		case vmi.Spec.IsFilesystem(v.Name):
		case v.HostDisk != nil:
			errs = append(errs, field.Forbidden(path.Child("hostDisk"), "a hostDisk is a file of a cluster's node, and there is no cluster here"))
		case v.Claim() != nil && o.Volumes[v.Name] == "":
			errs = append(errs, field.Required(path, fmt.Sprintf("there are no claims here: give a file or a block device with --volume %s=FILE", v.Name)))
		case v.Claim() != nil:
			claims[v.Name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Volumes)) {
		if !claims[name] {
			unused = append(unused, fmt.Errorf("--volume %s: the VM has no volume %q on a claim", name, name))
		}
	}
	known := imagesOf(vmi)
	for _, name := range slices.Sorted(maps.Keys(o.Images)) {
		if !slices.ContainsFunc(known, func(i image) bool { return i.reference == name || i.volume == name }) {
			unused = append(unused, fmt.Errorf("--image %s: the VM has no container image of this name, and no volume with one", name))
		}
	}
	return errs, unused
}

// bring finds or fetches an image.
func (o Options) bring(ctx context.Context, cache *images.Cache, i image) (images.Place, error) {
	for _, key := range []string{i.volume, i.reference} {
		if path, ok := o.Images[key]; ok {
			return cache.Open(ctx, i.reference, path)
		}
	}
	policy := i.policy
	if o.Pull != "" {
		policy = o.Pull
	}
	place, err := cache.Pull(ctx, i.reference, policy)
	if err != nil {
		err = fmt.Errorf("%w; --image %s=PATH takes the image from an archive, a folder or a file", err, i.reference)
	}
	return place, err
}

// bringAll brings a VMI's images to where the launcher looks for them. disks are the paths of
// those that are a disk themselves, by volume.
func (o Options) bringAll(ctx context.Context, f *folder, cache *images.Cache, vmi *v1.VirtualMachineInstance) (disks map[string]string, err error) {
	disks = map[string]string{}
	for _, i := range imagesOf(vmi) {
		place, err := o.bring(ctx, cache, i)
		if err != nil {
			return nil, err
		}
		link := f.below(layout.ImageVolume(i.volume))
		if i.volume == kernelVolume {
			link = f.below(layout.KernelDir)
			if place.Disk != "" {
				return nil, fmt.Errorf("take the kernel from %s: it is no image, and no folder", o.Images[i.reference])
			}
		}
		if err := os.Symlink(place.Folder, link); err != nil {
			return nil, fmt.Errorf("place image %q: %w", i.reference, err)
		}
		if place.Disk != "" {
			disks[i.volume] = place.Disk
		}
	}
	return disks, nil
}

// claim looks at the file or block device that stands for a claim.
func claimFacts(vmi *v1.VirtualMachineInstance, volume v1.Volume, file string) (qemuargs.VolumeFacts, error) {
	readOnly := volume.Claim().ReadOnly || handover.OnlyRead(vmi, volume.Name)
	facts, err := inspectFile(file, readOnly)
	if err != nil {
		return facts, fmt.Errorf("use %s as volume %s: %w", file, volume.Name, err)
	}
	return facts, nil
}

func inspectFile(file string, readOnly bool) (qemuargs.VolumeFacts, error) {
	path, err := filepath.EvalSymlinks(file) // the user's own links; the launcher follows none
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return qemuargs.VolumeFacts{}, fmt.Errorf("%w; an empty disk is made with: truncate -s 10G FILE", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return qemuargs.VolumeFacts{}, err
	}
	var facts qemuargs.VolumeFacts
	if info.Mode()&os.ModeDevice != 0 {
		facts, err = diskimage.InspectBlock(path, readOnly)
	} else {
		facts, err = diskimage.InspectVolume(filepath.Dir(path), filepath.Base(path), readOnly)
	}
	if err != nil {
		return facts, err
	}
	facts.Path, facts.DiskSize = path, facts.Size
	return facts, checkRaw(path)
}

// checkRaw refuses a qcow2 image: a claim's disk is raw, and the guest would be shown the
// image's header.
func checkRaw(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	magic := make([]byte, 4)
	if _, err := io.ReadFull(f, magic); err == nil && string(magic) == "QFI\xfb" {
		return errors.New("it is a qcow2 image, and a claim's disk is raw: convert it with qemu-img convert -O raw")
	}
	return nil
}
