package resolve

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// configSources are the fields of a config volume that say where its files come from.
const configSources = "volume.configMap volume.secret volume.downwardAPI volume.serviceAccount volume.sysprep"

// configSource is the name of a config volume's source, as the VMI has it.
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
func config(disk *qemuargs.Disk, volume *v1.Volume, host Host, path *field.Path, by entry) *field.Error {
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
	by.add("image", "volume.name "+configSources, "the volume is a disk of files")
	by.add("image.path", "volume.name", "the disk that the launcher makes of the volume's files")
	by.add("image.format", "", "the disk that the launcher makes is raw")
	by.add("image.direct", "", "the disk lies in memory, where O_DIRECT means nothing")
	by.add("image.packed", "host.configVolumes[].size", "the size of the disk that the launcher has made")
	by.add("readOnly", ".disk.bus .disk.readonly .cdrom "+configSources, "a disk of files is only read, unless it is a hard disk on bus sata: QEMU has no such disk that is only read")
	disk.ReadOnly = disk.ReadOnly || disk.Driver != qemuargs.IDEDisk
	disk.Image = qemuargs.Image{Path: layout.Below(host.Root, layout.ConfigImage(volume.Name)), Format: qemuargs.Raw, Packed: facts.Size}
	return nil
}
