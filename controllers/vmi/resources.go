package vmi

import (
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

const mib = int64(1) << 20

// The memory of QEMU and the launcher besides guest RAM (docs/machine.md).
const (
	overheadFixed     = 64 * mib
	overheadPerGiB    = 2 * mib // page tables
	overheadPerVCPU   = 3 * mib
	overheadGraphics  = 16 * mib  // VGA memory
	overheadUEFI      = 6 * mib   // 4 MiB of flash chips, the variables' file in memory, and how QEMU keeps the chips
	overheadARM64     = 20 * mib  // what of two flash chips of 64 MiB the firmware is and writes
	overheadMoved     = 64 * mib  // the chip with the variables as a file in memory: QEMU writes all of it after a move
	overheadTPM       = 8 * mib   // swtpm with its libraries, and its state in memory
	overheadIOThread  = 1 * mib   // a thread for disks, and its coroutines
	overheadEmulation = 160 * mib // TCG's translation cache (tb-size=127) and its tables
	overheadVFIO      = 16 * mib  // VFIO's tables of a device of the node, and beside it as much for each GiB as for page tables: the IOMMU's
	overheadRun       = 8 * mib   // sockets, and small files in memory; part of overheadFixed
	overheadSeed      = 1 * mib   // a cloud-init seed, in memory
	overheadSecret    = 1 * mib   // data from a Secret in a seed
	overheadConfig    = 3 * mib   // a disk of files, in memory: qemuargs.MaxPacked
)

// Overhead returns the memory booked besides guest RAM, in bytes.
func Overhead(vmi *v1.VirtualMachineInstance, emulation bool) int64 {
	domain := &vmi.Spec.Domain
	const gib = 1 << 30
	total := overheadFixed +
		overheadPerGiB*((domain.Memory.Guest.Value()+gib-1)/gib) +
		overheadPerVCPU*domain.CPU.VCPUs()
	if g := domain.Devices.AutoattachGraphicsDevice; g == nil || *g {
		total += overheadGraphics
	}
	if domain.UEFI() != nil {
		total += overheadUEFI
	}
	if vmi.Spec.Architecture == v1.ARM64 {
		total += overheadARM64
	}
	if domain.TPM() != nil {
		total += overheadTPM
	}
	if domain.Devices.HasSRIOV() {
		total += overheadVFIO + overheadPerGiB*((domain.Memory.Guest.Value()+gib-1)/gib)
	}
	total += overheadIOThread * ioThreads(domain)
	if emulation {
		total += overheadEmulation
	}
	return total + seeds(vmi) + domain.Memory.AddedOverhead()
}

// ioThreads returns how many threads for disks there are at most.
func ioThreads(domain *v1.DomainSpec) int64 {
	policy := ptr.Deref(domain.IOThreadsPolicy, "")
	if policy == v1.IOThreadsPolicySupplementalPool && domain.IOThreads != nil {
		return int64(ptr.Deref(domain.IOThreads.SupplementalPoolThreadCount, 0))
	}
	own, others := int64(0), int64(0)
	for _, d := range domain.Devices.Disks {
		if ptr.Deref(d.DedicatedIOThread, false) {
			own++
		} else {
			others++
		}
	}
	switch {
	case policy == v1.IOThreadsPolicyAuto:
		return own + others
	case policy == v1.IOThreadsPolicyShared, own > 0:
		return own + min(others, 1)
	}
	return 0
}

// seeds returns the memory that cloud-init seeds and disks of files may take, in bytes.
func seeds(vmi *v1.VirtualMachineInstance) int64 {
	total := int64(0)
	for _, v := range vmi.Spec.Volumes {
		if vmi.Spec.IsConfigDisk(&v) {
			total += overheadConfig
		}
		ci := v.CloudInit()
		if ci == nil {
			continue
		}
		total += overheadSeed + overheadSecret*int64(len(vmi.Spec.SeedCredentials(&v)))
		for _, secret := range []*corev1.LocalObjectReference{ci.UserDataSecretRef, ci.NetworkDataSecretRef} {
			if secret != nil {
				total += overheadSecret
			}
		}
	}
	return total
}

// runDirSize returns the limit of the pod's folder in memory, in bytes.
func runDirSize(vmi *v1.VirtualMachineInstance) int64 {
	size := overheadRun + seeds(vmi)
	if vmi.Spec.Architecture == v1.ARM64 {
		size += overheadMoved
	}
	return size
}

// bookedBeside returns the memory that a pod books besides its guest's.
func bookedBeside(vmi *v1.VirtualMachineInstance, config PodConfig) *resource.Quantity {
	return resource.NewQuantity(scaled(Overhead(vmi, config.Emulation || config.isForeign(vmi)), config.Cluster),
		resource.BinarySI)
}

// room returns what the launcher's container of a defaulted VMI may use: the guest's CPUs, and all of its
// memory with the overhead.
func room(vmi *v1.VirtualMachineInstance, config PodConfig) kit.Room {
	r := kit.Room{CPUs: vmi.Spec.Domain.CPU.VCPUs(), Memory: bookedBeside(vmi, config).Value()}
	if vmi.Spec.Domain.Memory.Hugepages == nil { // else the guest's memory is a resource of its own
		r.Memory += vmi.Spec.Domain.Memory.Guest.Value()
	}
	if config.Cluster != nil {
		r.Limited = config.Cluster.AutoCPULimitNamespaceLabelSelector
	}
	return r
}

// resources returns the resources of the launcher's container: the VMI's own, with the overhead added to the
// memory, and one slot. The cluster's configuration says what the container requests of CPU and memory if the
// VMI does not.
func resources(vmi *v1.VirtualMachineInstance, config PodConfig) corev1.ResourceRequirements {
	domain := &vmi.Spec.Domain
	overhead := bookedBeside(vmi, config).Value()
	r := corev1.ResourceRequirements{
		Requests: corev1.ResourceList(domain.Resources.Requests.DeepCopy()),
		Limits:   corev1.ResourceList(domain.Resources.Limits.DeepCopy()),
	}
	if r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	if r.Limits == nil {
		r.Limits = corev1.ResourceList{}
	}
	for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
		maps.DeleteFunc(list, func(name corev1.ResourceName, _ resource.Quantity) bool { return v1.IsPluginResource(name) })
	}
	huge := bookHugePages(r, domain.Memory)
	memory, ok := r.Requests[corev1.ResourceMemory]
	if !ok {
		if memory, ok = r.Limits[corev1.ResourceMemory]; !ok {
			memory = guestRequest(domain.Memory.Guest, config.Cluster)
			if huge > 0 {
				memory = *domain.Memory.Guest // overcommit is of ordinary memory, and the guest has none
			}
		}
	}
	request := max(memory.Value()-huge, 0) + overhead
	if ptr.Deref(domain.Resources.OvercommitGuestOverhead, false) && huge == 0 {
		request = memory.Value()
	}
	r.Requests[corev1.ResourceMemory] = *resource.NewQuantity(request, resource.BinarySI)
	if limit, ok := r.Limits[corev1.ResourceMemory]; ok {
		r.Limits[corev1.ResourceMemory] = *resource.NewQuantity(max(limit.Value()-huge, 0)+overhead, resource.BinarySI)
	}
	if _, ok := r.Requests[corev1.ResourceCPU]; !ok {
		r.Requests[corev1.ResourceCPU] = cpuRequest(domain.CPU.VCPUs(), config.Cluster)
	}
	if domain.CPU.Dedicated() {
		bookDedicated(r, domain, overhead)
	}
	one := *resource.NewQuantity(1, resource.DecimalSI)
	r.Requests[SlotResource], r.Limits[SlotResource] = one, one
	bookCards(r, vmi, config)
	return r
}

// defaultAllocationRatio is how many vCPUs share a CPU that the pod requests (KubeVirt's
// cpuAllocationRatio).
const defaultAllocationRatio = 10

// cpuRequest returns what a pod requests of the CPU if its VMI does not say.
func cpuRequest(vcpus int64, config *v1.KubeVirtConfiguration) resource.Quantity {
	ratio := int64(defaultAllocationRatio)
	if config != nil {
		if config.CPURequest != nil && config.CPURequest.Sign() > 0 {
			return config.CPURequest.DeepCopy()
		}
		if d := config.DeveloperConfiguration; d != nil && d.CPUAllocationRatio > 0 {
			ratio = int64(d.CPUAllocationRatio)
		}
	}
	return *resource.NewMilliQuantity(max(1000*vcpus/ratio, 1), resource.DecimalSI)
}

// guestRequest returns what a pod requests of the memory for the guest's if its VMI does not say.
func guestRequest(guest *resource.Quantity, config *v1.KubeVirtConfiguration) resource.Quantity {
	if config == nil || config.DeveloperConfiguration == nil || config.DeveloperConfiguration.MemoryOvercommit <= 0 {
		return *guest
	}
	percent := int64(config.DeveloperConfiguration.MemoryOvercommit)
	bytes := guest.Value()
	whole := bytes / percent
	if whole >= mostBooked/100 { // less than 100 percent books more than the guest has
		return *resource.NewQuantity(mostBooked, resource.BinarySI)
	}
	return *resource.NewQuantity(whole*100+bytes%percent*100/percent, resource.BinarySI)
}

// mostBooked bounds what a pod books for the guest, and mostBeside what it books besides. The sum is inside an
// int64. No node has as much.
const (
	mostBooked = int64(4) << 60
	mostBeside = int64(2) << 60
)

// scaled returns the overhead times the configuration's additionalGuestMemoryOverheadRatio, in bytes.
func scaled(overhead int64, config *v1.KubeVirtConfiguration) int64 {
	if config == nil || config.AdditionalGuestMemoryOverheadRatio == nil {
		return overhead
	}
	ratio, err := strconv.ParseFloat(*config.AdditionalGuestMemoryOverheadRatio, 64)
	if err != nil || !(ratio > 1 && ratio <= maxOverheadRatio) {
		return overhead // the schema refuses such a text, and less than the overhead would get QEMU killed
	}
	return int64(min(float64(overhead)*ratio, float64(mostBeside)))
}

const maxOverheadRatio = 1000

// bookHugePages books the guest's RAM as huge pages, if it is of huge pages, and returns how many bytes that
// are. Kubernetes wants the limit of huge pages to be the request. It counts huge pages apart from memory.
func bookHugePages(r corev1.ResourceRequirements, memory *v1.Memory) int64 {
	if memory.Hugepages == nil {
		return 0
	}
	guest := *resource.NewQuantity(memory.Guest.Value(), resource.BinarySI)
	name := memory.Hugepages.Resource()
	r.Requests[name], r.Limits[name] = guest, guest
	return guest.Value()
}

// bookDedicated makes a pod's quality of service Guaranteed, with a whole number of CPUs. Only then does the
// kubelet give its container CPUs of its own. The pod books all memory that its guest may use, whatever the
// cluster overcommits: the request is a limit too.
func bookDedicated(r corev1.ResourceRequirements, domain *v1.DomainSpec, overhead int64) {
	cpus := *resource.NewQuantity(domain.CPU.HostCPUs(), resource.DecimalSI)
	r.Requests[corev1.ResourceCPU], r.Limits[corev1.ResourceCPU] = cpus, cpus
	least := overhead
	if domain.Memory.Hugepages == nil {
		least += domain.Memory.Guest.Value()
	}
	request, limit := r.Requests[corev1.ResourceMemory], r.Limits[corev1.ResourceMemory]
	memory := *resource.NewQuantity(max(request.Value(), limit.Value(), least), resource.BinarySI)
	r.Requests[corev1.ResourceMemory], r.Limits[corev1.ResourceMemory] = memory, memory
}
