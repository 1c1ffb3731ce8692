package resolve

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// configSource returns the name of a config volume's source, as the VMI has it.
func configSource(v *v1.Volume) string {
	switch {
	case v.ConfigMap != nil:
		return "configMap"
	case v.Secret != nil:
		return "secret"
	case v.DownwardAPI != nil:
		return "downwardAPI"
	case v.ServiceAccount != nil:
		return "serviceAccount"
	}
	return "sysprep"
}

// config fills in the image that the launcher has made of a config volume.
func config(disk *qemuargs.Disk, volume *v1.Volume, host Host, path *field.Path) *field.Error {
	facts, ok := host.ConfigVolumes[volume.Name]
	path = path.Child(configSource(volume))
	switch {
	case !ok:
		return field.Invalid(path, volume.Name, "the launcher has not inspected it")
	case facts.Error != "":
		return field.Invalid(path, volume.Name, facts.Error)
	case facts.Size <= 0 || facts.Size > qemuargs.MaxPacked:
		return field.Invalid(path, volume.Name, fmt.Sprintf("the launcher has made a disk of %d bytes", facts.Size))
	}
	disk.ReadOnly = disk.ReadOnly || disk.Driver != qemuargs.IDEDisk
	disk.Image = qemuargs.Image{Path: layout.Below(host.Root, layout.ConfigImage(volume.Name)), Format: qemuargs.Raw, Packed: facts.Size}
	return nil
}
