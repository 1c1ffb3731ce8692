package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// DomainSpec is the virtual hardware.
type DomainSpec struct {
	// Resources of the launcher pod. What QEMU needs besides guest memory is
	// added to the memory request.
	// +optional
	Resources ResourceRequirements `json:"resources,omitempty"`
	// CPU topology and model.
	// +optional
	CPU *CPU `json:"cpu,omitempty"`
	// Memory of the guest.
	// +optional
	Memory *Memory `json:"memory,omitempty"`
	// Machine is QEMU's machine type.
	// +optional
	Machine *Machine `json:"machine,omitempty"`
	// Firmware identity, and what is booted without a boot loader.
	// +optional
	Firmware *Firmware `json:"firmware,omitempty"`
	// Clock of the guest.
	// +optional
	Clock *Clock `json:"clock,omitempty"`
	// Features of the platform.
	// +optional
	Features *Features `json:"features,omitempty"`
	// Devices of the guest.
	// +optional
	Devices Devices `json:"devices,omitempty"`
	// IOThreadsPolicy is shared, auto or supplementalPool: how QEMU's threads for disks are shared out.
	// Default: disks have no threads of their own, unless dedicatedIOThread gives them some; then the others share one.
	// +optional
	// +kubebuilder:validation:Enum="";shared;auto;supplementalPool
	IOThreadsPolicy *IOThreadsPolicy `json:"ioThreadsPolicy,omitempty"`
	// IOThreads is the pool of the policy supplementalPool.
	// +optional
	IOThreads *DiskIOThreads `json:"ioThreads,omitempty"`

	// Chassis that SMBIOS describes to the guest.
	// +optional
	Chassis *Chassis `json:"chassis,omitempty"`
	// LaunchSecurity is refused: not supported yet: encrypted memory needs another firmware, and a device of the node.
	// +optional
	LaunchSecurity *Unsupported `json:"launchSecurity,omitempty" later:"encrypted memory needs another firmware, and a device of the node"`
	// RebootPolicy is what a reboot of the guest does. Reboot starts the guest anew in the same pod. Terminate ends the
	// VirtualMachineInstance, as a power-off does. Default: Reboot.
	// +optional
	// +kubebuilder:validation:Enum=Reboot;Terminate
	RebootPolicy *RebootPolicy `json:"rebootPolicy,omitempty"`
}

// ResourceRequirements of the launcher pod.
type ResourceRequirements struct {
	// Requests of the launcher pod.
	// +optional
	Requests ResourceList `json:"requests,omitempty"`
	// Limits of the launcher pod.
	// +optional
	Limits ResourceList `json:"limits,omitempty"`
	// OvercommitGuestOverhead leaves out of the pod's memory request what QEMU needs besides
	// guest memory. A limit still holds it. Default: false.
	// +optional
	OvercommitGuestOverhead *bool `json:"overcommitGuestOverhead,omitempty"`
}

// ResourceList holds quantities by resource name. Exponents are refused: the API server keeps
// 1e-999999999 as it is, and to decode it takes hours.
//
// +kubebuilder:validation:MaxProperties=8
// +kubebuilder:validation:XValidation:rule="self.map(name, string(self[name])).all(q, !q.contains('e') && (!q.contains('E') || q.endsWith('E') || q.endsWith('Ei')))",message="quantities with exponents are refused"
type ResourceList map[corev1.ResourceName]resource.Quantity

// CPU is the guest's topology (QEMU -smp) and model (-cpu). Of cores, sockets and threads, the
// unset ones count as 1. If all are unset, sockets is the CPU limit, or else the CPU request,
// rounded up.
type CPU struct {
	// Cores per socket. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=512
	Cores uint32 `json:"cores,omitempty"`
	// Sockets. Default: the CPU limit, else request, rounded up, if cores and threads are unset
	// too; else 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=512
	Sockets uint32 `json:"sockets,omitempty"`
	// Threads per core. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=512
	Threads uint32 `json:"threads,omitempty"`
	// Model is a QEMU CPU model, host-passthrough, or host-model, which means
	// host under KVM and max under TCG. Default: host-model.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	Model string `json:"model,omitempty"`

	// MaxSockets is how many sockets the guest can have, those that it begins with among them (QEMU -smp maxcpus). The guest
	// sees the places. Default: no more than it begins with.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=512
	MaxSockets uint32 `json:"maxSockets,omitempty"`
	// Features that the guest's CPUs have beside the model's, or lack.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Features []CPUFeature `json:"features,omitempty"`
	// DedicatedCPUPlacement gives each of the guest's CPUs a CPU of the node to itself. The node's kubelet needs the CPU manager
	// policy "static". Default: false.
	// +optional
	DedicatedCPUPlacement bool `json:"dedicatedCpuPlacement,omitempty"`
	// IsolateEmulatorThread gives QEMU's other threads one more CPU of the node. It needs DedicatedCPUPlacement. Default: false.
	// +optional
	IsolateEmulatorThread bool `json:"isolateEmulatorThread,omitempty"`
	// NUMA topology of the guest.
	// +optional
	NUMA *NUMA `json:"numa,omitempty"`
	// Realtime scheduling of the guest's CPUs.
	// +optional
	Realtime *Realtime `json:"realtime,omitempty"`
}

// MaxVCPUs is how many CPUs a guest can have: more need x2APIC with interrupt remapping, which is not emitted.
const MaxVCPUs = 255

// VCPUs returns the number of the guest's CPUs.
func (c *CPU) VCPUs() int64 { return int64(c.Sockets) * int64(c.Cores) * int64(c.Threads) }

// Memory of the guest.
type Memory struct {
	// Guest is the guest's RAM (QEMU -m), 1M to 4Ei. Default: the memory request, else the
	// memory limit. Exponents are refused.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9.]{1,20}([KMGTPE]i?|[numk])?$`
	Guest *resource.Quantity `json:"guest,omitempty"`

	// MaxGuest is how much memory the guest can have, Guest included (QEMU -m maxmem). Default: no more than Guest. Exponents
	// are refused.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9.]{1,20}([KMGTPE]i?|[numk])?$`
	MaxGuest *resource.Quantity `json:"maxGuest,omitempty"`
	// Hugepages of the node are the guest's memory.
	// +optional
	Hugepages *Hugepages `json:"hugepages,omitempty"`
	// ReservedOverhead is memory that the pod books besides the guest's.
	// +optional
	ReservedOverhead *ReservedOverhead `json:"reservedOverhead,omitempty"`
}

// Machine is QEMU's machine (-machine).
type Machine struct {
	// Type is q35 (the newest that the node's QEMU has) or a versioned pc-q35-X.Y; for arm64 virt or virt-X.Y.
	// RHEL's types, pc-q35-rhelX.Y.Z, and types that are gone run as one of QEMU's.
	// Default: q35, and virt for arm64. In the status: the versioned name.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^(q35|pc-q35-[0-9]+\.[0-9]+|pc-q35-rhel[0-9]+\.[0-9]+\.[0-9]+|virt|virt-[0-9]+\.[0-9]+)?$`
	Type string `json:"type,omitempty"`
}

// Features of the platform.
type Features struct {
	// ACPI tables. Without them the guest sees no power button, and is ended
	// without grace.
	// +optional
	ACPI FeatureState `json:"acpi,omitempty"`
	// APIC is always there; it cannot be turned off.
	// +optional
	APIC *FeatureAPIC `json:"apic,omitempty"`
	// SMM is the CPUs' system management mode, which secure boot needs.
	// +optional
	SMM *FeatureState `json:"smm,omitempty"`
	// Hyperv are the interfaces of Microsoft's Hyper-V that the guest is offered; only there under KVM.
	// +optional
	Hyperv *FeatureHyperv `json:"hyperv,omitempty"`
	// HypervPassthrough offers the guest all interfaces of Hyper-V that its node has (QEMU -cpu
	// hv-passthrough=); only there under KVM. The guest does not migrate. It excludes hyperv.
	// +optional
	HypervPassthrough *FeatureState `json:"hypervPassthrough,omitempty"`
	// KVM is what the guest sees of KVM.
	// +optional
	KVM *FeatureKVM `json:"kvm,omitempty"`
	// Pvspinlock lets the guest's CPUs sleep while they wait for a lock (QEMU -cpu kvm-pv-unhalt=);
	// only there under KVM. Unset: QEMU's choice.
	// +optional
	Pvspinlock *FeatureState `json:"pvspinlock,omitempty"`
}

// FeatureState turns a feature on or off.
type FeatureState struct {
	// Default: true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
}

// FeatureAPIC is the interrupt controller.
type FeatureAPIC struct {
	// Enabled must not be false. Default: true.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self",message="a q35 machine always has an APIC"
	Enabled *bool `json:"enabled,omitempty"`
	// EndOfInterrupt lets the guest end interrupts without leaving to the host (QEMU -cpu
	// kvm-pv-eoi=on); only there under KVM. False leaves it to QEMU.
	// +optional
	EndOfInterrupt bool `json:"endOfInterrupt,omitempty"`
}
