package v1

import (
	"fmt"
	"iter"

	"k8s.io/utils/ptr"
)

// FeatureHyperv are the interfaces of Microsoft's Hyper-V that the guest is offered (QEMU -cpu hv-…). Only KVM has them: a
// guest that is emulated gets none. A feature that another one needs is turned on with it.
type FeatureHyperv struct {
	// Relaxed lets the guest turn off its watchdog for CPUs that stand still.
	// +optional
	Relaxed *FeatureState `json:"relaxed,omitempty"`
	// VAPIC is a page by which the guest ends interrupts without leaving to the host.
	// +optional
	VAPIC *FeatureState `json:"vapic,omitempty"`
	// Spinlocks tells the guest how often to try for a lock before it lets others run.
	// +optional
	Spinlocks *FeatureSpinlocks `json:"spinlocks,omitempty"`
	// VPIndex gives each CPU a number that the guest can read.
	// +optional
	VPIndex *FeatureState `json:"vpindex,omitempty"`
	// Runtime tells the guest how long each CPU has run.
	// +optional
	Runtime *FeatureState `json:"runtime,omitempty"`
	// SyNIC is the synthetic interrupt controller. It needs vpindex.
	// +optional
	SyNIC *FeatureState `json:"synic,omitempty"`
	// SyNICTimer are the timers of the synthetic interrupt controller. They need synic, and the timer hyperv.
	// +optional
	SyNICTimer *SyNICTimer `json:"synictimer,omitempty"`
	// Reset lets the guest reset the machine by Hyper-V's register.
	// +optional
	Reset *FeatureState `json:"reset,omitempty"`
	// VendorID is the hypervisor's name that the guest sees.
	// +optional
	VendorID *FeatureVendorID `json:"vendorid,omitempty"`
	// Frequencies tells the guest the frequencies of its TSC and APIC.
	// +optional
	Frequencies *FeatureState `json:"frequencies,omitempty"`
	// Reenlightenment tells the guest when the frequency of its TSC changes. The guest does not migrate.
	// +optional
	Reenlightenment *FeatureState `json:"reenlightenment,omitempty"`
	// TLBFlush lets the guest flush the TLBs of other CPUs by a call. It needs vpindex.
	// +optional
	TLBFlush *TLBFlush `json:"tlbflush,omitempty"`
	// IPI lets the guest interrupt other CPUs by a call. It needs vpindex.
	// +optional
	IPI *FeatureState `json:"ipi,omitempty"`
	// EVMCS speeds up Hyper-V within the guest, on Intel's CPUs. It needs vapic.
	// +optional
	EVMCS *FeatureState `json:"evmcs,omitempty"`
}

// FeatureSpinlocks is how often the guest tries for a lock.
type FeatureSpinlocks struct {
	// Default: true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// Retries before the guest lets others run, 4095 at least. Default: 4096.
	// +optional
	Retries *uint32 `json:"spinlocks,omitempty"`
}

// SyNICTimer are the timers of the synthetic interrupt controller.
type SyNICTimer struct {
	// Default: true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// Direct lets a timer interrupt the guest without a message.
	// +optional
	Direct *FeatureState `json:"direct,omitempty"`
}

// TLBFlush is the call that flushes the TLBs of other CPUs.
type TLBFlush struct {
	// Default: true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// Direct lets a guest within the guest make the call. It needs vapic.
	// +optional
	Direct *FeatureState `json:"direct,omitempty"`
	// Extended lets the guest name ranges of addresses.
	// +optional
	Extended *FeatureState `json:"extended,omitempty"`
}

// FeatureVendorID is the hypervisor's name that the guest sees.
type FeatureVendorID struct {
	// Default: true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// VendorID has 1 to 12 printable characters of ASCII, without comma, brackets and backslash.
	// +optional
	// +kubebuilder:validation:MaxLength=12
	VendorID string `json:"vendorid,omitempty"`
}

// FeatureKVM is what the guest sees of KVM.
type FeatureKVM struct {
	// Hidden hides from the guest that its hypervisor is KVM (QEMU -cpu kvm=off). Default: false.
	// +optional
	Hidden bool `json:"hidden,omitempty"`
}

// Is reports whether the feature is named, and not turned off.
func (f *FeatureState) Is() bool { return f != nil && ptr.Deref(f.Enabled, true) }

// Is reports whether the retries are named, and not turned off.
func (f *FeatureSpinlocks) Is() bool { return f != nil && ptr.Deref(f.Enabled, true) }

// Is reports whether the timers are named, and not turned off.
func (f *SyNICTimer) Is() bool { return f != nil && ptr.Deref(f.Enabled, true) }

// Is reports whether the call is named, and not turned off.
func (f *TLBFlush) Is() bool { return f != nil && ptr.Deref(f.Enabled, true) }

// Is reports whether the name is named, and not turned off.
func (f *FeatureVendorID) Is() bool { return f != nil && ptr.Deref(f.Enabled, true) }

// HypervPassedThrough reports whether the guest gets whatever its node has of Hyper-V's interfaces.
func (d *DomainSpec) HypervPassedThrough() bool {
	return d.Features != nil && d.Features.HypervPassthrough.Is()
}

// defaultSpinlocks is KubeVirt's number of retries.
const defaultSpinlocks = 4096

// need is a feature that another one cannot do without (QEMU, target/i386/kvm/kvm.c, kvm_hyperv_properties).
type need struct {
	name  string // of the feature that needs another
	on    bool
	needs string
	other **FeatureState
}

// needs returns needs in the order in which they have to be met: what a feature needs can itself need another one.
func (h *FeatureHyperv) needs() []need {
	return []need{
		{"evmcs", h.EVMCS.Is(), "vapic", &h.VAPIC},
		{"tlbflush.direct", h.TLBFlush.Is() && h.TLBFlush.Direct.Is(), "vapic", &h.VAPIC},
		{"synictimer", h.SyNICTimer.Is(), "synic", &h.SyNIC},
		{"ipi", h.IPI.Is(), "vpindex", &h.VPIndex},
		{"tlbflush", h.TLBFlush.Is(), "vpindex", &h.VPIndex},
		{"synic", h.SyNIC.Is() || h.SyNICTimer.Is() && h.SyNIC == nil, "vpindex", &h.VPIndex},
	}
}

// Lacking returns the features that are on, each with one that it needs and that is off.
func (h *FeatureHyperv) Lacking() iter.Seq2[string, string] {
	return func(yield func(name, needs string) bool) {
		for _, n := range h.needs() {
			if n.on && !(*n.other).Is() && !yield(n.name, n.needs) {
				return
			}
		}
	}
}

func defaultHyperv(features *Features) {
	if features == nil || features.Hyperv == nil {
		return
	}
	h := features.Hyperv
	if s := h.Spinlocks; s.Is() && s.Retries == nil {
		s.Retries = ptr.To[uint32](defaultSpinlocks)
	}
	for _, n := range h.needs() {
		if n.on && *n.other == nil {
			*n.other = &FeatureState{Enabled: ptr.To(true)}
		}
	}
}

// cpuStays returns why Hyper-V's interfaces or the CPU's TSC keep the guest on its node: a reason and a sentence. Both
// are empty if they do not. QEMU refuses to migrate a guest that has invtsc without a TSC frequency
// (target/i386/kvm/kvm.c, kvm_arch_init_vcpu).
func (vmi *VirtualMachineInstance) cpuStays() (reason, message string) {
	d := &vmi.Spec.Domain
	switch i := d.invtsc(); {
	case d.HypervPassedThrough():
		return ReasonHypervNotMigratable, "spec.domain.features.hypervPassthrough gives the guest the interfaces of its " +
			"own node; a guest with spec.domain.features.hyperv can move"
	case !d.NeedsTSCFrequency() || vmi.TSCFrequency() != 0:
		return "", ""
	case i < 0:
		return ReasonTSCNotMigratable, "spec.domain.features.hyperv.reenlightenment needs a TSC frequency that all nodes " +
			"keep, and no node told one when the guest was made; a guest without reenlightenment can move"
	default:
		return ReasonTSCNotMigratable, fmt.Sprintf("spec.domain.cpu.features[%d], %s, needs a TSC frequency that all nodes "+
			"keep, and no node told one when the guest was made; a guest without %s can move", i, d.CPU.Features[i].Name,
			invariantTSC)
	}
}
