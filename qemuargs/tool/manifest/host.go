package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	sigsyaml "sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/zone"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// DefaultHost is the preset of a node with KVM and the QEMU of the launcher's image.
const DefaultHost = "kvm"

// imageQEMU is the release of QEMU that a preset has, unless it names another.
const imageQEMU = "11.1.3"

// presetNow is the moment at which a preset's guests start: 2026-01-01T00:00:00Z.
const presetNow = 1767225600

// Host is what a VMI's node and pod are taken to be.
type Host struct {
	name   string
	preset resolve.Host
	told   bool   // preset is a file's, which tells of the pod, too, and is taken as it is
	guests string // the architecture of guests that name none; empty for Kubeqemu's default
}

// String returns the preset's name, or the file's.
func (h Host) String() string { return h.name }

// ParseHost reads a preset, or a file. A preset is kvm or tcg, and may name a release of QEMU:
// kvm-7.2. A file holds a resolve.Host as YAML. A file that tells of a node alone leaves the pod to what a preset says.
func ParseHost(name string) (Host, error) {
	accelerator, release, named := strings.Cut(name, "-")
	switch a := qemuargs.Accelerator(accelerator); a {
	case qemuargs.KVM, qemuargs.TCG:
		if !named {
			release = imageQEMU
		}
		return Host{name: name, preset: resolve.Host{Accelerator: a, QEMUVersion: release, OverlayDirect: true, VhostNet: a == qemuargs.KVM,
			AIO: qemuargs.AIOFacts{Native: true}}}, checkRelease(release)
	}
	data, err := ReadBounded(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Host{}, fmt.Errorf("host %q is no preset (kvm, tcg, kvm-7.2, tcg-7.2 and so on) and no file", name)
	}
	h := Host{name: name}
	if err == nil {
		err = sigsyaml.UnmarshalStrict(data, &h.preset)
	}
	if err == nil {
		err = checkHost(h.preset)
	}
	if err != nil {
		return Host{}, fmt.Errorf("read host %s: %w", name, err)
	}
	if h.told = tellsOfPod(h.preset); !h.told {
		h.preset.OverlayDirect, h.preset.AIO = true, qemuargs.AIOFacts{Native: true}
	}
	return h, nil
}

// tellsOfPod reports whether a host has any fact of a pod: of its disks, its links or its start.
func tellsOfPod(h resolve.Host) bool {
	return len(h.ContainerDisks)+len(h.Claims)+len(h.ConfigVolumes)+len(h.NICs)+len(h.CPUNodes) > 0 || h.Kernel != nil ||
		h.OverlayDirect || h.OverlayBlocks != nil || h.AIO != (qemuargs.AIOFacts{}) || h.Now != 0 || h.ZoneOffset != nil
}

// checkHost refuses a host that has an unknown accelerator, or a QEMU that Kubeqemu does not know.
func checkHost(h resolve.Host) error {
	if h.Accelerator != qemuargs.KVM && h.Accelerator != qemuargs.TCG {
		return fmt.Errorf("the accelerator is %q: want kvm or tcg", h.Accelerator)
	}
	return checkRelease(h.QEMUVersion)
}

// lastMinor is the last second number of a release: QEMU has three releases a year, X.0 to X.2.
const lastMinor = 2

// isRelease is what a release of QEMU looks like: 7.2 or 7.2.22.
var isRelease = regexp.MustCompile(`^([0-9]{1,3})\.([0-9]{1,3})(\.[0-9]{1,3})?$`)

// checkRelease refuses what is no release of QEMU, releases before 7.2, which is the oldest one that Kubeqemu
// writes arguments for, and releases after the image's, of which nobody knows yet what they take.
func checkRelease(text string) error {
	parts := isRelease.FindStringSubmatch(text)
	if parts == nil {
		return fmt.Errorf("%q is no release of QEMU: want one such as 7.2 or 11.1.3", text)
	}
	major, _ := strconv.Atoi(parts[1]) // three digits at most
	minor, _ := strconv.Atoi(parts[2])
	newest := isRelease.FindStringSubmatch(imageQEMU)
	newestMajor, _ := strconv.Atoi(newest[1])
	newestMinor, _ := strconv.Atoi(newest[2])
	switch {
	case major < 7 || major == 7 && minor < 2:
		return fmt.Errorf("QEMU %s is too old: want 7.2 to %s", text, imageQEMU)
	case major > newestMajor || major == newestMajor && minor > newestMinor:
		return fmt.Errorf("QEMU %s is newer than the newest that Kubeqemu knows: want 7.2 to %s", text, imageQEMU)
	case minor > lastMinor:
		return fmt.Errorf("there is no QEMU %s: a release's second number is 0 to %d", text, lastMinor)
	}
	return nil
}

// ReadBounded reads a regular file of a few MiB at most. A pipe or a device might never end.
func ReadBounded(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err == nil && len(data) > maxDocument {
		err = fmt.Errorf("%s has more than %d bytes", name, maxDocument)
	}
	return data, err
}

// HostOf returns a host whose facts are known, under a name for those who read of it.
func HostOf(name string, facts resolve.Host) Host { return Host{name: name, preset: facts, told: true} }

// Of returns what the host says of a VMI. A preset takes every container disk for a qcow2
// image of 1 GiB at /disk/disk.qcow2, every claim and hostDisk for a disk of 1 GiB on a file
// system, every config volume for a disk of 512 KiB, and every MTU for 1500. The claim of a LUN is
// a device that takes SCSI commands, which no LUN can do without; and the node has room for native I/O.
// The guest starts when 2026 begins.
func (h Host) Of(i Instance) resolve.Host {
	host := h.preset
	if h.told {
		return host
	}
	const gib, configSize = 1 << 30, 512 << 10
	host.ContainerDisks, host.Claims, host.NICs = map[string]qemuargs.ImageFacts{}, map[string]qemuargs.VolumeFacts{}, map[string]resolve.NIC{}
	host.ConfigVolumes = map[string]qemuargs.ConfigFacts{}
	for _, v := range i.Spec.Volumes {
		switch {
		case i.Spec.IsFilesystem(v.Name):
		case v.Claim() != nil || v.HostDisk != nil:
			lun := i.isLUN(v.Name)
			host.Claims[v.Name] = qemuargs.VolumeFacts{DiskSize: gib, Size: gib, Direct: true, Block: lun, SCSI: lun}
		case v.ContainerDisk != nil:
			file := v.ContainerDisk.Path
			if file == "" {
				file = "disk/disk.qcow2"
			}
			host.ContainerDisks[v.Name] = qemuargs.ImageFacts{Path: path.Join(layout.ImageVolume(v.Name), file), Format: qemuargs.QCOW2, VirtualSize: gib, Direct: true}
		case v.IsConfig():
			host.ConfigVolumes[v.Name] = qemuargs.ConfigFacts{Size: configSize}
		}
	}
	if k := i.KernelContainer(); k != nil {
		host.Kernel = &qemuargs.KernelFacts{Path: path.Join(layout.KernelDir, k.KernelPath)}
		if k.InitrdPath != "" {
			host.Kernel.Initrd = path.Join(layout.KernelDir, k.InitrdPath)
		}
	}
	host.Now, host.ZoneOffset = presetNow, zone.Offset(i.Spec.Domain.Timezone(), time.Unix(presetNow, 0))
	for at, nic := range i.Spec.Domain.Devices.Interfaces {
		facts := resolve.NIC{MTU: 1500}
		if nic.SRIOV != nil {
			facts = resolve.NIC{Device: fmt.Sprintf("0000:3b:%02x.0", at)}
		}
		host.NICs[nic.Name] = facts
	}
	return host
}

// isLUN reports whether a volume's disk is a LUN.
func (i Instance) isLUN(volume string) bool {
	return slices.ContainsFunc(i.Spec.Domain.Devices.Disks, func(d v1.Disk) bool { return d.Name == volume && d.Lun != nil })
}

// WithGuests returns the host in a cluster whose default architecture of guests is another.
func (h Host) WithGuests(architecture string) Host {
	h.guests = architecture
	return h
}

// In returns the VMI in the host's cluster: a VMI that names neither an architecture nor a machine type gets the
// cluster's architecture.
func (i Instance) In(h Host) Instance {
	if i.Spec.Architecture != "" || h.guests == "" || h.guests == v1.AMD64 { // which is Kubeqemu's default too
		return i
	}
	before := i.VirtualMachineInstance
	i.VirtualMachineInstance = before.DeepCopy()
	// As virt-controller and virt-api do; with nothing else configured, the architecture is what changes.
	v1.ApplyClusterDefaults(i.VirtualMachineInstance, &v1.KubeVirtConfiguration{ArchitectureConfiguration: &v1.ArchitectureConfiguration{DefaultArchitecture: h.guests}})
	if i.Spec.Architecture != "" {
		i.stages = append(slices.Clone(i.stages), stage{by: OfCluster, vmi: i.VirtualMachineInstance})
	}
	return i
}

// Machine resolves a VMI on a host.
func (i Instance) Machine(h Host) (*qemuargs.Machine, error) {
	i = i.In(h)
	machine, errs := resolve.Machine(i.VirtualMachineInstance, h.Of(i))
	if len(errs) > 0 {
		return nil, i.Invalid(errs)
	}
	return machine, nil
}

// Amend resolves the VMI on a host where its guest runs already, as another instance was resolved there.
func (i Instance) Amend(h Host, begun Instance, running *qemuargs.Machine) (*qemuargs.Machine, error) {
	i = i.In(h)
	same := i.VirtualMachineInstance.DeepCopy()
	same.Namespace, same.Name, same.UID = begun.Namespace, begun.Name, begun.UID
	machine, errs := resolve.Amend(same, h.Of(i), running)
	if len(errs) > 0 {
		return nil, i.Invalid(errs)
	}
	return machine, nil
}

// Object returns the kind, namespace and name of the object that the VMI was made of.
func (i Instance) Object() string {
	return fmt.Sprintf("%s %s/%s", i.Document.Kind, i.Namespace, i.Document.Name)
}
