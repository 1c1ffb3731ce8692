package libvirt

import (
	"strconv"
	"strings"
)

// APIC has its paravirtual end of interrupts.
type APIC struct {
	EndOfInterrupt string `xml:"eoi,attr"`
}

// KVM is what the guest sees of KVM.
type KVM struct {
	Hidden State `xml:"hidden"`
}

// HyperV are Hyper-V's interfaces, those of libvirt 9.0.
type HyperV struct {
	Mode            string      `xml:"mode,attr"` // custom or passthrough
	Relaxed         *State      `xml:"relaxed"`
	VAPIC           *State      `xml:"vapic"`
	Spinlocks       *Spinlocks  `xml:"spinlocks"`
	VPIndex         *State      `xml:"vpindex"`
	Runtime         *State      `xml:"runtime"`
	SyNIC           *State      `xml:"synic"`
	Timer           *SyNICTimer `xml:"stimer"`
	Reset           *State      `xml:"reset"`
	VendorID        *VendorID   `xml:"vendor_id"`
	Frequencies     *State      `xml:"frequencies"`
	Reenlightenment *State      `xml:"reenlightenment"`
	TLBFlush        *State      `xml:"tlbflush"`
	IPI             *State      `xml:"ipi"`
	EVMCS           *State      `xml:"evmcs"`
}

// Spinlocks is how often the guest tries for a lock.
type Spinlocks struct {
	State   string `xml:"state,attr"`
	Retries uint64 `xml:"retries,attr"`
}

// SyNICTimer are the synthetic timers.
type SyNICTimer struct {
	State  string `xml:"state,attr"`
	Direct *State `xml:"direct"`
}

// VendorID is the hypervisor's name.
type VendorID struct {
	State string `xml:"state,attr"`
	Value string `xml:"value,attr"`
}

// paravirtual adds the interfaces of KVM and of Hyper-V, by the flags of -cpu.
func (f *Features) paravirtual(flags []string) {
	h := &HyperV{Mode: "custom"}
	on := &State{"on"}
	states := map[string]**State{"hv-relaxed": &h.Relaxed, "hv-vapic": &h.VAPIC, "hv-vpindex": &h.VPIndex, "hv-runtime": &h.Runtime, "hv-synic": &h.SyNIC,
		"hv-reset": &h.Reset, "hv-frequencies": &h.Frequencies, "hv-reenlightenment": &h.Reenlightenment, "hv-tlbflush": &h.TLBFlush, "hv-ipi": &h.IPI, "hv-evmcs": &h.EVMCS}
	for _, flag := range flags {
		name, value, _ := strings.Cut(flag, "=")
		switch name {
		case "pmu":
			f.PMU = &State{value}
		case "kvm":
			f.KVM = &KVM{State{"on"}}
		case "kvm-pv-eoi":
			f.APIC = &APIC{value}
		case "kvm-pv-unhalt":
			f.PVSpinlock = &State{value}
		case "hv-passthrough":
			h.Mode = "passthrough"
		case "hv-spinlocks":
			retries, err := strconv.ParseUint(value, 0, 32)
			if err != nil {
				continue // the comparison shows it
			}
			h.Spinlocks = &Spinlocks{"on", retries}
		case "hv-stimer":
			h.Timer = &SyNICTimer{State: "on"}
		case "hv-stimer-direct":
			h.Timer.Direct = on
		case "hv-vendor-id":
			h.VendorID = &VendorID{"on", value}
		default:
			if state, ok := states[name]; ok {
				*state = on
			}
		}
	}
	if *h != (HyperV{Mode: "custom"}) {
		f.HyperV = h
	}
}
