package v1

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// maxVCPUs: more need x2APIC with interrupt remapping, which is not emitted.
	maxVCPUs = 255
	// maxCloudInitBytes is KubeVirt's limit for inline user and network data.
	maxCloudInitBytes = 2048
	// maxGuestMemory keeps sums of bytes well inside an int64: 64 TiB.
	maxGuestMemory = int64(64) << 40
	// minGuestMemory is KubeVirt's: less than 1 M is taken for a missing unit.
	minGuestMemory = int64(1_000_000)
)

// What the schema holds too; these become parts of QEMU's command line.
var (
	interfaceModels = []string{"virtio", "e1000", "e1000e", "rtl8139"}
	cpuModel        = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	serialNumber    = regexp.MustCompile(`^[A-Za-z0-9_.+-]{0,256}$`)
	machineUUID     = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	diskName        = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	interfaceName   = regexp.MustCompile(`^[A-Za-z0-9-_]{1,63}$`)
)

var machineType = regexp.MustCompile(`^(q35|pc-q35-[0-9]+\.[0-9]+)$`)

// Validate returns every error of a defaulted VMI at once, with exact paths.
// The schema refuses most of them before; the controllers call it all the
// same, so that an object that got past the schema changes nothing.
func Validate(vmi *VirtualMachineInstance) field.ErrorList {
	spec, path := &vmi.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if spec.Architecture != "amd64" {
		errs = append(errs, field.NotSupported(path.Child("architecture"), spec.Architecture, []string{"amd64"}))
	}
	if g := spec.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		errs = append(errs, field.Invalid(path.Child("terminationGracePeriodSeconds"), *g, "must not be negative"))
	}
	domain := path.Child("domain")
	errs = append(errs, validateMemory(&spec.Domain, domain)...)
	errs = append(errs, validateCPU(&spec.Domain, domain)...)
	if t := spec.Domain.Machine.Type; !machineType.MatchString(t) {
		errs = append(errs, field.Invalid(domain.Child("machine", "type"), t, "must be q35 or pc-q35-X.Y"))
	}
	errs = append(errs, validateIdentity(&spec.Domain, domain)...)
	errs = append(errs, validateVolumes(spec.Volumes, path.Child("volumes"))...)
	errs = append(errs, validateDisks(spec, domain.Child("devices", "disks"))...)
	errs = append(errs, validateNetworks(spec, path)...)
	errs = append(errs, validateRefused(&spec.Domain.Devices, domain.Child("devices"))...)
	slices.SortStableFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	return errs
}

func validateMemory(d *DomainSpec, path *field.Path) field.ErrorList {
	guest := d.Memory.Guest
	if guest == nil {
		return field.ErrorList{field.Required(path.Child("memory", "guest"),
			"no memory requested: set it, or resources.requests.memory, or resources.limits.memory")}
	}
	var errs field.ErrorList
	if v := guest.Value(); v < minGuestMemory || v > maxGuestMemory {
		errs = append(errs, field.Invalid(path.Child("memory", "guest"), guest.String(), "must be between 1M and 64Ti"))
	}
	return append(errs, validateResources(d, path.Child("resources"))...)
}

func validateResources(d *DomainSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, list := range map[string]ResourceList{"requests": d.Resources.Requests, "limits": d.Resources.Limits} {
		for resourceName, q := range list {
			if q.Sign() < 0 {
				errs = append(errs, field.Invalid(path.Child(name).Key(string(resourceName)), q.String(), "must not be negative"))
			}
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		request, requested := d.Resources.Requests[name]
		limit, limited := d.Resources.Limits[name]
		if requested && limited && request.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(path.Child("requests").Key(string(name)), request.String(),
				fmt.Sprintf("must not be more than limits (%s)", limit.String())))
		}
	}
	if memory, ok := d.Resources.Requests[corev1.ResourceMemory]; ok && memory.Cmp(*resource.NewQuantity(minGuestMemory, resource.DecimalSI)) < 0 {
		errs = append(errs, field.Invalid(path.Child("requests").Key("memory"), memory.String(), "must be at least 1M"))
	}
	return errs
}

func validateCPU(d *DomainSpec, path *field.Path) field.ErrorList {
	c := d.CPU
	if n := uint64(c.Cores) * uint64(c.Sockets) * uint64(c.Threads); n == 0 || n > maxVCPUs {
		return field.ErrorList{field.Invalid(path.Child("cpu"), n,
			fmt.Sprintf("cores × sockets × threads must be between 1 and %d", maxVCPUs))}
	}
	return nil
}

// validateIdentity checks what is only ever text to us and to the guest.
func validateIdentity(d *DomainSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !cpuModel.MatchString(d.CPU.Model) {
		errs = append(errs, field.Invalid(path.Child("cpu", "model"), d.CPU.Model, "must be letters, digits, '.', '_' and '-'"))
	}
	if !machineUUID.MatchString(d.Firmware.UUID) {
		errs = append(errs, field.Invalid(path.Child("firmware", "uuid"), d.Firmware.UUID, "must be a UUID such as 5d307ca9-b3ef-428c-8861-06e72d69f223"))
	}
	if !serialNumber.MatchString(d.Firmware.Serial) {
		errs = append(errs, field.Invalid(path.Child("firmware", "serial"), d.Firmware.Serial, serialRule))
	}
	return errs
}

const serialRule = "must be at most 256 letters, digits, '_', '.', '+' and '-'"

func validateVolumes(volumes []Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, v := range volumes {
		p := path.Index(i)
		if seen.Has(v.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), v.Name))
		}
		seen.Insert(v.Name)
		if !diskName.MatchString(v.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), v.Name, "must be a DNS label"))
		}
		if (v.ContainerDisk == nil) == (v.CloudInitNoCloud == nil) {
			errs = append(errs, field.Invalid(p, v.Name, "exactly one volume source must be set (supported: containerDisk, cloudInitNoCloud)"))
			continue
		}
		if cd := v.ContainerDisk; cd != nil && cd.Image == "" {
			errs = append(errs, field.Required(p.Child("containerDisk", "image"), "name the container image that holds the disk"))
		}
		if ci := v.CloudInitNoCloud; ci != nil {
			errs = append(errs, validateCloudInit(ci, p.Child("cloudInitNoCloud"))...)
		}
	}
	return errs
}

func validateCloudInit(ci *CloudInitNoCloudSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	check := func(name, plain, encoded string) {
		if plain != "" && encoded != "" {
			errs = append(errs, field.Invalid(path.Child(name+"Base64"), "", "must not be set beside "+name))
		}
		data, err := cloudInitData(plain, encoded)
		if err != nil {
			errs = append(errs, field.Invalid(path.Child(name+"Base64"), "", err.Error()))
		}
		if len(data) > maxCloudInitBytes {
			errs = append(errs, field.TooLong(path.Child(name), "", maxCloudInitBytes))
		}
	}
	check("userData", ci.UserData, ci.UserDataBase64)
	check("networkData", ci.NetworkData, ci.NetworkDataBase64)
	if *ci == (CloudInitNoCloudSource{}) {
		errs = append(errs, field.Required(path, "set userData, networkData or their Base64 forms"))
	}
	return errs
}

func cloudInitData(plain, encoded string) ([]byte, error) {
	if encoded == "" {
		return []byte(plain), nil
	}
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, fmt.Errorf("decode base64: %w", err)
	}
	return data, nil
}

// Data returns the user and network data as bytes.
func (ci *CloudInitNoCloudSource) Data() (user, network []byte, err error) {
	if user, err = cloudInitData(ci.UserData, ci.UserDataBase64); err != nil {
		return nil, nil, err
	}
	network, err = cloudInitData(ci.NetworkData, ci.NetworkDataBase64)
	return user, network, err
}

func validateDisks(spec *VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	volumes := sets.New[string]()
	for _, v := range spec.Volumes {
		volumes.Insert(v.Name)
	}
	seen, orders := sets.New[string](), sets.New[uint32]()
	for i, d := range spec.Domain.Devices.Disks {
		p := path.Index(i)
		if seen.Has(d.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), d.Name))
		}
		seen.Insert(d.Name)
		if !volumes.Has(d.Name) {
			errs = append(errs, field.NotFound(p.Child("name"), d.Name+" (no volume of this name in spec.volumes)"))
		}
		if d.BootOrder != nil {
			if *d.BootOrder == 0 {
				errs = append(errs, field.Invalid(p.Child("bootOrder"), 0, "must be at least 1"))
			}
			if orders.Has(*d.BootOrder) {
				errs = append(errs, field.Duplicate(p.Child("bootOrder"), *d.BootOrder))
			}
			orders.Insert(*d.BootOrder)
		}
		if !serialNumber.MatchString(d.Serial) {
			errs = append(errs, field.Invalid(p.Child("serial"), d.Serial, serialRule))
		}
		errs = append(errs, validateDiskTarget(&d, p)...)
	}
	return errs
}

func validateDiskTarget(d *Disk, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case d.Lun != nil:
		errs = append(errs, field.Forbidden(path.Child("lun"), "not supported yet"))
	case d.Disk != nil && d.CDRom != nil:
		errs = append(errs, field.Invalid(path, d.Name, "a disk is either disk or cdrom, not both"))
	case d.Disk != nil && d.Disk.Bus == DiskBusSATA && d.Disk.ReadOnly:
		errs = append(errs, field.Forbidden(path.Child("disk", "readonly"), "a SATA hard disk cannot be read-only; use bus virtio or a cdrom"))
	case d.Disk != nil && d.Disk.Bus != DiskBusSATA && d.Disk.Bus != DiskBusVirtio:
		errs = append(errs, field.NotSupported(path.Child("disk", "bus"), d.Disk.Bus, []DiskBus{DiskBusSATA, DiskBusVirtio}))
	case d.CDRom != nil && d.CDRom.Bus != DiskBusSATA:
		errs = append(errs, field.NotSupported(path.Child("cdrom", "bus"), d.CDRom.Bus, []DiskBus{DiskBusSATA}))
	case d.CDRom != nil && d.CDRom.ReadOnly != nil && !*d.CDRom.ReadOnly:
		errs = append(errs, field.Invalid(path.Child("cdrom", "readonly"), false, "a CD-ROM is always read-only"))
	}
	return errs
}

func validateNetworks(spec *VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	devices := &spec.Domain.Devices
	nics := path.Child("domain", "devices", "interfaces")
	if len(devices.Interfaces) == 0 && len(spec.Networks) == 0 &&
		(devices.AutoattachPodInterface == nil || *devices.AutoattachPodInterface) {
		return field.ErrorList{field.Required(nics, "without interfaces KubeVirt adds one with the bridge binding, which is not supported yet: "+
			"add an interface with masquerade and a network with pod of the same name, or set autoattachPodInterface to false")}
	}
	networks, connected := map[string]Network{}, sets.New[string]()
	podNetworks := 0
	for i, n := range spec.Networks {
		p := path.Child("networks").Index(i)
		if _, ok := networks[n.Name]; ok {
			errs = append(errs, field.Duplicate(p.Child("name"), n.Name))
		}
		networks[n.Name] = n
		errs = append(errs, validateNetwork(n, p)...)
		if n.Pod != nil {
			if podNetworks++; podNetworks > 1 {
				errs = append(errs, field.Forbidden(p.Child("pod"), "only one network can be the pod's"))
			}
		}
	}
	for i, nic := range devices.Interfaces {
		p := nics.Index(i)
		if connected.Has(nic.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), nic.Name))
		}
		connected.Insert(nic.Name)
		if !interfaceName.MatchString(nic.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), nic.Name, "must be at most 63 letters, digits, '-' and '_'"))
		}
		if _, ok := networks[nic.Name]; !ok {
			errs = append(errs, field.NotFound(p.Child("name"), nic.Name+" (no network of this name in spec.networks)"))
		}
		errs = append(errs, validateInterface(&nic, p)...)
	}
	for i, n := range spec.Networks {
		if !connected.Has(n.Name) {
			errs = append(errs, field.Invalid(path.Child("networks").Index(i).Child("name"), n.Name, "no interface of this name in spec.domain.devices.interfaces"))
		}
	}
	return errs
}

func validateNetwork(n Network, path *field.Path) field.ErrorList {
	if n.Pod == nil {
		return field.ErrorList{field.Required(path.Child("pod"), "exactly one network source must be set (supported: pod)")}
	}
	cidr := path.Child("pod", "vmNetworkCIDR")
	prefix, err := netip.ParsePrefix(n.Pod.VMNetworkCIDR)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(cidr, n.Pod.VMNetworkCIDR, "must be an IPv4 network such as 10.0.2.0/24")}
	case !prefix.Addr().Is4() || prefix.Masked() != prefix || prefix.Bits() > 29 || prefix.Bits() < 8:
		return field.ErrorList{field.Invalid(cidr, n.Pod.VMNetworkCIDR, "must be an IPv4 network address with a prefix length between 8 and 29")}
	}
	return nil
}

func validateInterface(nic *Interface, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	refused := map[string]*Unsupported{"sriov": nic.SRIOV, "passtBinding": nic.PasstBinding, "binding": nic.Binding}
	bindings := 0
	if nic.Masquerade != nil {
		bindings++
	}
	if nic.Bridge != nil {
		bindings++
	}
	for _, name := range []string{"sriov", "passtBinding", "binding"} {
		if refused[name] != nil {
			bindings++
			errs = append(errs, field.Forbidden(path.Child(name), "not supported yet; use masquerade"))
		}
	}
	if bindings != 1 {
		errs = append(errs, field.Invalid(path, nic.Name, "exactly one binding must be set (supported: masquerade, bridge)"))
	}
	if !slices.Contains(interfaceModels, nic.Model) {
		errs = append(errs, field.NotSupported(path.Child("model"), nic.Model, interfaceModels))
	}
	if nic.MacAddress != "" {
		mac, err := net.ParseMAC(nic.MacAddress)
		switch {
		case err != nil || len(mac) != 6:
			errs = append(errs, field.Invalid(path.Child("macAddress"), nic.MacAddress, "must be six bytes in hex, such as 52:54:00:12:34:56"))
		case mac[0]&1 != 0:
			errs = append(errs, field.Invalid(path.Child("macAddress"), nic.MacAddress, "must not be a multicast address"))
		case mac.String() == "02:00:00:00:00:00":
			errs = append(errs, field.Invalid(path.Child("macAddress"), nic.MacAddress, "is the gateway's address with masquerade"))
		}
	}
	ports := sets.New[string]()
	for i, port := range nic.Ports {
		p := path.Child("ports").Index(i)
		if port.Port < 1 || port.Port > 65535 {
			errs = append(errs, field.Invalid(p.Child("port"), port.Port, "must be between 1 and 65535"))
		}
		if port.Protocol != "TCP" && port.Protocol != "UDP" {
			errs = append(errs, field.NotSupported(p.Child("protocol"), port.Protocol, []string{"TCP", "UDP"}))
		}
		if port.Name == "" {
			continue
		}
		// They become ports of the pod's container.
		for _, message := range validation.IsValidPortName(port.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), port.Name, message))
		}
		if ports.Has(port.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), port.Name))
		}
		ports.Insert(port.Name)
	}
	return errs
}

func validateRefused(d *Devices, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, set := range map[string]bool{
		"tpm": d.TPM != nil, "watchdog": d.Watchdog != nil, "gpus": len(d.GPUs) > 0,
		"hostDevices": len(d.HostDevices) > 0, "filesystems": len(d.Filesystems) > 0,
	} {
		if set {
			errs = append(errs, field.Forbidden(path.Child(name), "not supported yet"))
		}
	}
	return errs
}
