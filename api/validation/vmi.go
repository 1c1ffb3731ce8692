package validation

import (
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const (
	// maxCloudInitBytes is KubeVirt's limit for inline user and network data.
	maxCloudInitBytes = 2048
	// maxGuestMemory keeps sums of bytes inside an int64, those of kube-scheduler too: 4 EiB.
	maxGuestMemory = int64(4) << 60
	// maxDiskBytes is the largest disk that is made, and the most memory that a pod books besides: 64 TiB.
	maxDiskBytes = int64(64) << 40
	// maxGraceSeconds is a year.
	maxGraceSeconds = 365 * 24 * 3600
)

// The schema has these patterns too. The text that they match becomes part of QEMU's command line.
var (
	cpuModel      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	serialNumber  = regexp.MustCompile(`^[A-Za-z0-9_.+-]{0,256}$`)
	machineUUID   = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	diskName      = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	deviceName    = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	interfaceName = regexp.MustCompile(`^[A-Za-z0-9-_]{1,63}$`)
	machineType   = regexp.MustCompile(`^(q35|pc-q35-[0-9]+\.[0-9]+|pc-q35-rhel[0-9]+\.[0-9]+\.[0-9]+)$`)
	virtType      = regexp.MustCompile(`^(virt|virt-[0-9]+\.[0-9]+)$`)
)

// ValidateVirtualMachineInstance returns every error of a defaulted VMI at once, with exact paths. The schema refuses
// most of them before. The controllers call it all the same, so that an object that got past the schema has no effect.
func ValidateVirtualMachineInstance(vmi *v1.VirtualMachineInstance) field.ErrorList {
	errs := validateAnnotations(vmi.Annotations, field.NewPath("metadata", "annotations"))
	errs = append(errs, validateEvictedName(&vmi.Spec, vmi.Name)...)
	errs = append(errs, refuseAbsent(&vmi.Spec, field.NewPath("spec"))...)
	return append(errs, validateSpec(&vmi.Spec, field.NewPath("spec"))...)
}

// validateSpec returns every error of a defaulted spec that stands at a path.
func validateSpec(spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !slices.Contains(v1.Architectures(), spec.Architecture) {
		errs = append(errs, field.NotSupported(path.Child("architecture"), spec.Architecture, v1.Architectures()))
	}
	if g := spec.TerminationGracePeriodSeconds; g != nil && (*g < 0 || *g > maxGraceSeconds) {
		errs = append(errs, field.Invalid(path.Child("terminationGracePeriodSeconds"), *g,
			"must be between 0 and 31536000, a year"))
	}
	errs = append(errs, validatePlacement(spec, path)...)
	domain := path.Child("domain")
	errs = append(errs, validateMemory(&spec.Domain, domain)...)
	errs = append(errs, validateCPU(&spec.Domain, domain)...)
	errs = append(errs, validateDedicated(&spec.Domain, domain)...)
	errs = append(errs, validateNUMA(&spec.Domain, domain)...)
	if spec.Domain.Memory.Guest != nil {
		errs = append(errs, validateCeiling(&spec.Domain, domain)...)
	}
	errs = append(errs, validateMachineType(spec.Domain.Machine.Type, spec.Architecture,
		domain.Child("machine", "type"))...)
	errs = append(errs, validateARM64(spec, path)...)
	errs = append(errs, validateFirmware(spec.Domain.Firmware, domain.Child("firmware"))...)
	errs = append(errs, validateUEFI(&spec.Domain, spec.Architecture, domain)...)
	errs = append(errs, validateACPITables(spec, domain)...)
	errs = append(errs, validateACPIIndexes(&spec.Domain, domain)...)
	errs = append(errs, validateReboot(&spec.Domain, domain)...)
	errs = append(errs, validateChassis(spec.Domain.Chassis, domain.Child("chassis"))...)
	errs = append(errs, validateHyperv(&spec.Domain, domain)...)
	errs = append(errs, validateClock(spec.Domain.Clock, domain.Child("clock"))...)
	if f := spec.Domain.Features; f != nil && f.APIC != nil && f.APIC.Enabled != nil && !*f.APIC.Enabled {
		errs = append(errs, field.Invalid(domain.Child("features", "apic", "enabled"), false,
			"a q35 machine always has an APIC"))
	}
	errs = append(errs, validateVolumes(spec.Volumes, path.Child("volumes"))...)
	errs = append(errs, validateServiceAccounts(spec, path)...)
	errs = append(errs, validateAccessCredentials(spec, path.Child("accessCredentials"))...)
	devices := domain.Child("devices")
	errs = append(errs, validateDevices(&spec.Domain.Devices, spec.Architecture, devices)...)
	errs = append(errs, validateDisks(spec, devices.Child("disks"))...)
	errs = append(errs, validateFilesystems(spec, devices.Child("filesystems"))...)
	errs = append(errs, validatePCIAddresses(&spec.Domain.Devices, devices)...)
	errs = append(errs, validateIOThreads(&spec.Domain, domain)...)
	errs = append(errs, validateNetworks(spec, path)...)
	errs = append(errs, validateProbes(spec, path)...)
	errs = append(errs, validateBootOrder(&spec.Domain.Devices, devices)...)
	errs = append(errs, validateUnsupported(reflect.ValueOf(*spec), path)...)
	slices.SortStableFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	return errs
}

const serialRule = "must be at most 256 letters, digits, '_', '.', '+' and '-'"
