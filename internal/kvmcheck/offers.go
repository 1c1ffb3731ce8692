package kvmcheck

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/kvm.h.
const (
	getMSRIndexList = 0xc004ae02 // KVM_GET_MSR_INDEX_LIST
	getTSCFrequency = 0xaea3     // KVM_GET_TSC_KHZ, of a vCPU

	capTSCControl     = 60  // KVM_CAP_TSC_CONTROL: guests can have another frequency
	capGetTSC         = 61  // KVM_CAP_GET_TSC_KHZ
	capHyperVTLBFlush = 155 // KVM_CAP_HYPERV_TLBFLUSH
	capHyperVIPI      = 161 // KVM_CAP_HYPERV_SEND_IPI
)

// hyperVMSRs are the registers by which QEMU finds out what KVM has of Hyper-V (target/i386/kvm/kvm.c, kvm_get_supported_msrs),
// with KubeVirt's names of the interfaces.
var hyperVMSRs = map[uint32]string{
	0x40000002: "vpindex", 0x40000003: "reset", 0x40000010: "runtime", 0x40000022: "frequencies", 0x40000080: "synic",
	0x400000b0: "synictimer", 0x40000106: "reenlightenment",
}

// Offers is what a KVM offers guests besides CPU features.
type Offers struct {
	// HyperV are the interfaces of Hyper-V, sorted.
	HyperV []string `json:"hyperv,omitempty"`
	// TSCHertz is the frequency of the time stamp counter; 0 for an unknown one. TSCScalable: guests can have another.
	TSCHertz    int64 `json:"hertz,omitempty"`
	TSCScalable bool  `json:"scalable,omitempty"`
}

// OffersArgument is the first argument of a program that is to call MainOffers.
const OffersArgument = "kvm-offers"

// MainOffers is the main function of Ask's child. It writes one line, and returns the exit code.
func MainOffers(stdout io.Writer) int {
	offers, err := askHere()
	var text []byte
	if err == nil {
		text, err = json.Marshal(offers)
	}
	if err != nil {
		fmt.Fprintln(stdout, err)
		return 1
	}
	fmt.Fprintln(stdout, string(text))
	return 0
}

// Ask asks the node's KVM in a child process, which c.Args names; default: OffersArgument. Ask has an end, as Run has.
func (c Checker) Ask(ctx context.Context) (Offers, error) {
	if c.Args == nil {
		c.Args = []string{OffersArgument}
	}
	result := c.Run(ctx)
	if result.Verdict != Works {
		return Offers{}, fmt.Errorf("ask KVM what it offers: %s", result.Reason)
	}
	var o Offers
	if err := json.Unmarshal([]byte(result.Reason), &o); err != nil {
		return Offers{}, fmt.Errorf("read what KVM offers: %w", err)
	}
	return o, nil
}

// askHere asks in this process. It runs no guest.
func askHere() (Offers, error) {
	var o Offers
	m := &machine{kvm: -1, vm: -1, vcpu: -1}
	defer m.close()
	var err error
	if m.kvm, err = unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return o, fmt.Errorf("open %s: %w", device, err)
	}
	has := func(capability uintptr) bool {
		n, err := request(m.kvm, checkExtension, capability)
		return err == nil && n > 0
	}
	msrs, err := m.msrs()
	if err != nil {
		return o, err
	}
	if has(capHyperV) {
		o.HyperV = interfaces(msrs, has(capHyperVTLBFlush), has(capHyperVIPI))
	}
	if !has(capGetTSC) {
		return o, nil
	}
	o.TSCScalable = has(capTSCControl)
	if m.vm, err = request(m.kvm, kvmCreateVM, 0); err != nil {
		return o, fmt.Errorf("create VM: %w", err)
	}
	if m.vcpu, err = request(m.vm, kvmCreateVCPU, 0); err != nil {
		return o, fmt.Errorf("create vCPU: %w", err)
	}
	if khz, err := request(m.vcpu, getTSCFrequency, 0); err == nil {
		o.TSCHertz = int64(khz) * 1000
	}
	return o, nil
}

// interfaces is pure.
func interfaces(msrs []uint32, tlbFlush, ipi bool) []string {
	out := []string{"base"}
	for _, msr := range msrs {
		if name := hyperVMSRs[msr]; name != "" {
			out = append(out, name)
		}
	}
	if tlbFlush {
		out = append(out, "tlbflush")
	}
	if ipi {
		out = append(out, "ipi")
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// msrs are the model-specific registers that KVM knows.
func (m *machine) msrs() ([]uint32, error) {
	var list struct {
		count uint32
		index [4096]uint32 // KVM has some hundred
	}
	list.count = uint32(len(list.index))
	if _, err := request(m.kvm, getMSRIndexList, uintptr(unsafe.Pointer(&list))); err != nil {
		return nil, fmt.Errorf("ask %s for its registers: %w", device, err)
	}
	return list.index[:min(int(list.count), len(list.index))], nil
}
