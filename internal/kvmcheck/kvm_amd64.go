package kvmcheck

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// Requests that KVM has on amd64 only (linux/kvm.h, asm/kvm.h).
const (
	kvmGetSupportedCPUID = 0xc008ae05
	kvmSetTSSAddress     = 0xae47
	kvmGetRegs           = 0x8090ae81
	kvmSetRegs           = 0x4090ae82
	kvmGetSregs          = 0x8138ae83
	kvmSetSregs          = 0x4138ae84
	kvmSetCPUID2         = 0x4008ae90

	// exitAtEnd is KVM_EXIT_HLT.
	exitAtEnd = 5
)

type registers struct {
	rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp uint64
	r                                      [8]uint64 // r8 to r15
	rip, rflags                            uint64
}

type segment struct {
	base                                       uint64
	limit                                      uint32
	selector                                   uint16
	kind, present, dpl, db, s, l, g, avl, none uint8
	_                                          uint8
}

type table struct {
	base  uint64
	limit uint16
	_     [3]uint16
}

type specialRegisters struct {
	cs, ds, es, fs, gs, ss, tr, ldt         segment
	gdt, idt                                table
	cr0, cr2, cr3, cr4, cr8, efer, apicBase uint64
	interrupts                              [4]uint64
}

// supportedCPUID is a struct kvm_cpuid2 with room for the entries of any KVM.
type supportedCPUID struct {
	entries, _ uint32
	entry      [256][40]byte
}

// The guest's memory is one large page, mapped to itself: virtual addresses are physical ones.
const (
	pml4 = 0x1000
	pdpt = 0x2000
	pd   = 0x3000
	data = 0x10000
)

// payload adds the numbers from rcx down to 1, and halts: 64-bit
// arithmetic, a store, and a branch, as in any kernel.
var payload = []byte{
	0x48, 0x01, 0xc8, // loop: add rax, rcx
	0x48, 0x89, 0x07, //       mov [rdi], rax
	0x48, 0x31, 0xc2, //       xor rdx, rax
	0x48, 0xff, 0xc9, //       dec rcx
	0x75, 0xf2, //             jnz loop
	0xf4, //                   hlt
}

func (m *machine) createVM() (err error) {
	if m.vm, err = request(m.kvm, kvmCreateVM, 0); err != nil {
		return fmt.Errorf("create VM: %w", err)
	}
	// Intel CPUs without the feature "unrestricted guest" need three pages for a task state.
	// QEMU has them at the same address.
	if _, err := request(m.vm, kvmSetTSSAddress, 0xfffbd000); err != nil {
		return fmt.Errorf("set address of task state: %w", err)
	}
	return nil
}

// enter puts the vCPU where an ordinary kernel is after its first
// instructions: 64-bit mode, with paging.
func (m *machine) enter(loops uint64) error {
	cpuid := supportedCPUID{entries: uint32(len(supportedCPUID{}.entry))}
	if _, err := request(m.kvm, kvmGetSupportedCPUID, uintptr(unsafe.Pointer(&cpuid))); err != nil {
		return fmt.Errorf("ask for the CPU's features: %w", err)
	}
	if _, err := request(m.vcpu, kvmSetCPUID2, uintptr(unsafe.Pointer(&cpuid))); err != nil {
		return fmt.Errorf("set the vCPU's features: %w", err)
	}
	const present, writable, large = 1, 2, 1 << 7
	binary.LittleEndian.PutUint64(m.memory[pml4:], pdpt|present|writable)
	binary.LittleEndian.PutUint64(m.memory[pdpt:], pd|present|writable)
	binary.LittleEndian.PutUint64(m.memory[pd:], large|present|writable)
	copy(m.memory[code:], payload)

	var special specialRegisters
	if _, err := request(m.vcpu, kvmGetSregs, uintptr(unsafe.Pointer(&special))); err != nil {
		return fmt.Errorf("read special registers: %w", err)
	}
	flat := segment{limit: 0xffffffff, selector: 0x10, kind: 3, present: 1, db: 1, s: 1, g: 1} // data, accessed
	special.ds, special.es, special.fs, special.gs, special.ss = flat, flat, flat, flat, flat
	special.cs = segment{limit: 0xffffffff, selector: 0x8, kind: 11, present: 1, s: 1, l: 1, g: 1} // code, accessed
	special.tr = segment{limit: 0x67, kind: 11, present: 1}                                        // busy task state
	special.cr3 = pml4
	special.cr4 = 1 << 5           // PAE
	special.cr0 = 1<<31 | 1<<5 | 1 // PG, NE, PE
	special.efer = 1<<10 | 1<<8    // LMA, LME
	if _, err := request(m.vcpu, kvmSetSregs, uintptr(unsafe.Pointer(&special))); err != nil {
		return fmt.Errorf("enter long mode: %w", err)
	}
	regs := registers{rip: code, rcx: loops, rdi: data, rsp: memorySize, rflags: 1 << 1} // bit 1 is always set
	if _, err := request(m.vcpu, kvmSetRegs, uintptr(unsafe.Pointer(&regs))); err != nil {
		return fmt.Errorf("set registers: %w", err)
	}
	return nil
}

// verify compares what the payload computed with the sum.
func (m *machine) verify(sum uint64) error {
	var regs registers
	if _, err := request(m.vcpu, kvmGetRegs, uintptr(unsafe.Pointer(&regs))); err != nil {
		return fmt.Errorf("read registers: %w", err)
	}
	if stored := binary.LittleEndian.Uint64(m.memory[data:]); regs.rax != sum || stored != sum {
		return fmt.Errorf("the guest miscalculated: %d in a register and %d in memory instead of %d", regs.rax, stored, sum)
	}
	return nil
}
