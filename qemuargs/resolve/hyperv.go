package resolve

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// paravirtual collects flags of -cpu that only KVM has.
type paravirtual struct{ flags []string }

// add adds a flag, if it is on.
func (p *paravirtual) add(on bool, flag string) {
	if on {
		p.flags = append(p.flags, flag)
	}
}

// paravirtualFlags returns the interfaces of KVM and of Hyper-V. Under TCG QEMU 7.2 does not start with some of them,
// and later QEMUs ignore them all: an emulated guest has none.
func paravirtualFlags(domain *v1.DomainSpec, accelerator qemuargs.Accelerator) []string {
	if accelerator != qemuargs.KVM {
		return nil
	}
	p := &paravirtual{}
	f := domain.Features
	if f == nil {
		f = &v1.Features{}
	}
	timers := &v1.Timer{}
	if domain.Clock != nil && domain.Clock.Timer != nil {
		timers = domain.Clock.Timer
	}
	p.add(timers.KVM != nil && !enabled(timers.KVM.Present), "kvmclock=off")
	p.add(f.KVM != nil && f.KVM.Hidden, "kvm=off")
	p.add(f.APIC != nil && f.APIC.EndOfInterrupt, "kvm-pv-eoi=on")
	if f.Pvspinlock != nil {
		state := map[bool]qemuargs.Switch{true: qemuargs.On, false: qemuargs.Off}[f.Pvspinlock.Is()]
		p.add(true, "kvm-pv-unhalt="+string(state))
	}
	p.add(f.HypervPassthrough.Is(), "hv-passthrough=on")
	h := f.Hyperv
	if h == nil {
		h = &v1.FeatureHyperv{}
	}
	p.add(timers.Hyperv != nil && enabled(timers.Hyperv.Present) || h.SyNICTimer.Is(), "hv-time=on")
	p.hyperv(h)
	p.add(domain.Devices.HasPanic(v1.PanicHyperv), "hv-crash=on")
	return p.flags
}

// hyperv adds the Hyper-V interfaces of a VMI that has its defaults, which have already turned on the interfaces that
// others need.
func (p *paravirtual) hyperv(h *v1.FeatureHyperv) {
	p.add(h.Relaxed.Is(), "hv-relaxed=on")
	p.add(h.VAPIC.Is(), "hv-vapic=on")
	if s := h.Spinlocks; s.Is() {
		p.add(true, fmt.Sprintf("hv-spinlocks=%#x", *s.Retries))
	}
	p.add(h.VPIndex.Is(), "hv-vpindex=on")
	p.add(h.Runtime.Is(), "hv-runtime=on")
	p.add(h.SyNIC.Is(), "hv-synic=on")
	timers := h.SyNICTimer.Is()
	p.add(timers, "hv-stimer=on")
	p.add(timers && h.SyNICTimer.Direct.Is(), "hv-stimer-direct=on")
	p.add(h.Reset.Is(), "hv-reset=on")
	if v := h.VendorID; v.Is() {
		p.add(true, "hv-vendor-id="+v.VendorID)
	}
	p.add(h.Frequencies.Is(), "hv-frequencies=on")
	p.add(h.Reenlightenment.Is(), "hv-reenlightenment=on")
	flush := h.TLBFlush.Is()
	p.add(flush, "hv-tlbflush=on")
	p.add(flush && h.TLBFlush.Direct.Is(), "hv-tlbflush-direct=on")
	p.add(flush && h.TLBFlush.Extended.Is(), "hv-tlbflush-ext=on")
	p.add(h.IPI.Is(), "hv-ipi=on")
	p.add(h.EVMCS.Is(), "hv-evmcs=on")
}

// tscFrequency returns the flag of a guest whose TSC keeps its frequency on other nodes. Only KVM's guests have one.
func tscFrequency(domain *v1.DomainSpec, host Host) []string {
	if host.Accelerator != qemuargs.KVM || !domain.NeedsTSCFrequency() || v1.CheckTSC(host.TSCFrequency) != nil {
		return nil
	}
	return []string{fmt.Sprintf("tsc-frequency=%d", host.TSCFrequency)}
}

// notEmulated returns the CPU feature that only evmcs needs, if the guest is emulated and its spec asks for evmcs;
// otherwise empty. An emulated guest has no evmcs, and QEMU cannot emulate vmx.
func notEmulated(domain *v1.DomainSpec, accelerator qemuargs.Accelerator) string {
	if accelerator == qemuargs.KVM {
		return ""
	}
	return NotEmulated(domain)
}

// NotEmulated returns the CPU feature that the guest does not get when it is emulated, because only evmcs needs it;
// empty if there is none.
func NotEmulated(domain *v1.DomainSpec) string {
	if domain.Features == nil || domain.Features.Hyperv == nil || !domain.Features.Hyperv.EVMCS.Is() {
		return ""
	}
	return "vmx"
}

// kernelWithoutHyperV refuses Hyper-V's interfaces on a node whose kernel has none, but for those that QEMU does
// without the kernel. With the others QEMU exits at its start, or does not show them to the guest.
func kernelWithoutHyperV(flags []string, host Host, path *field.Path) *field.Error {
	if !host.NoHyperV || host.Accelerator != qemuargs.KVM {
		return nil
	}
	own := []string{"hv-relaxed", "hv-spinlocks", "hv-vendor-id", "hv-passthrough"}
	missing := ""
	for _, flag := range flags {
		name, _, _ := strings.Cut(flag, "=")
		// The clock may be there for the timers of features.hyperv alone.
		if strings.HasPrefix(name, "hv-") && !slices.Contains(own, name) && (missing == "" || missing == "hv-time") {
			missing = name
		}
	}
	if missing == "" {
		return nil
	}
	at := path.Child("features", "hyperv")
	if missing == "hv-time" {
		at = path.Child("clock", "timer", "hyperv")
	}
	return field.Invalid(at, missing, "this node's kernel has none of Hyper-V's interfaces (CONFIG_KVM_HYPERV), which QEMU needs for it")
}
