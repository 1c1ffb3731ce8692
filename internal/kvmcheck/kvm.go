package kvmcheck

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of /dev/kvm, of a VM and of a vCPU (linux/kvm.h). Package x/sys has no such
// constants.
const (
	kvmGetAPIVersion       = 0xae00
	kvmCreateVM            = 0xae01
	kvmGetVCPUMmapSize     = 0xae04
	kvmGetSupportedCPUID   = 0xc008ae05
	kvmCreateVCPU          = 0xae41
	kvmSetUserMemoryRegion = 0x4020ae46
	kvmSetTSSAddress       = 0xae47
	kvmRun                 = 0xae80
	kvmGetRegs             = 0x8090ae81
	kvmSetRegs             = 0x4090ae82
	kvmGetSregs            = 0x8138ae83
	kvmSetSregs            = 0x4138ae84
	kvmSetCPUID2           = 0x4008ae90

	exitReasonOffset = 8 // in struct kvm_run
	exitHalt         = 5
)

type memoryRegion struct {
	slot, flags   uint32
	guest, size   uint64
	userspaceAddr uint64
}

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
	memorySize = 2 << 20
	pml4       = 0x1000
	pdpt       = 0x2000
	pd         = 0x3000
	code       = 0x8000
	data       = 0x10000

	instructionsPerLoop = 5
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

// machine is a VM with one vCPU.
type machine struct {
	kvm, vm, vcpu int
	memory, run   []byte
}

// runPayload runs the payload in long mode, with so many loops, and returns how much CPU time
// that took: wall time would be longer on a busy node. It returns when the payload ends, or
// KVM fails.
func runPayload(device string, loops uint64) (time.Duration, error) {
	// All requests of a VM come from one thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m := &machine{kvm: -1, vm: -1, vcpu: -1}
	defer m.close()
	if err := m.create(device); err != nil {
		return 0, err
	}
	if err := m.enterLongMode(loops); err != nil {
		return 0, err
	}
	start, err := threadTime()
	if err != nil {
		return 0, err
	}
	if err := m.untilHalt(); err != nil {
		return 0, err
	}
	end, err := threadTime()
	if err != nil {
		return 0, err
	}
	var regs registers
	if _, err := request(m.vcpu, kvmGetRegs, uintptr(unsafe.Pointer(&regs))); err != nil {
		return 0, fmt.Errorf("read registers: %w", err)
	}
	sum := loops * (loops + 1) / 2
	if stored := binary.LittleEndian.Uint64(m.memory[data:]); regs.rax != sum || stored != sum {
		return 0, fmt.Errorf("the guest miscalculated: %d in a register and %d in memory instead of %d", regs.rax, stored, sum)
	}
	return end - start, nil
}

func (m *machine) create(device string) (err error) {
	if m.kvm, err = unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open %s: %w", device, err)
	}
	const apiVersion = 12 // KVM's API keeps this version
	if version, err := request(m.kvm, kvmGetAPIVersion, 0); err != nil {
		return fmt.Errorf("ask %s for KVM's version: %w", device, err)
	} else if version != apiVersion {
		return fmt.Errorf("%s has version %d of KVM's API, want %d", device, version, apiVersion)
	}
	if m.vm, err = request(m.kvm, kvmCreateVM, 0); err != nil {
		return fmt.Errorf("create VM: %w", err)
	}
	// Intel CPUs without the feature "unrestricted guest" need three pages for a task state.
	// QEMU has them at the same address.
	if _, err := request(m.vm, kvmSetTSSAddress, 0xfffbd000); err != nil {
		return fmt.Errorf("set address of task state: %w", err)
	}
	if m.memory, err = unix.Mmap(-1, 0, memorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS); err != nil {
		return fmt.Errorf("allocate guest memory: %w", err)
	}
	region := memoryRegion{size: memorySize, userspaceAddr: uint64(uintptr(unsafe.Pointer(&m.memory[0])))}
	if _, err := request(m.vm, kvmSetUserMemoryRegion, uintptr(unsafe.Pointer(&region))); err != nil {
		return fmt.Errorf("give memory to the VM: %w", err)
	}
	if m.vcpu, err = request(m.vm, kvmCreateVCPU, 0); err != nil {
		return fmt.Errorf("create vCPU: %w", err)
	}
	size, err := request(m.kvm, kvmGetVCPUMmapSize, 0)
	if err != nil {
		return fmt.Errorf("ask for the size of a vCPU's shared memory: %w", err)
	}
	if m.run, err = unix.Mmap(m.vcpu, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map the vCPU's shared memory: %w", err)
	}
	return nil
}

// enterLongMode puts the vCPU where an ordinary kernel is after its first
// instructions: 64-bit mode, with paging.
func (m *machine) enterLongMode(loops uint64) error {
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

func (m *machine) untilHalt() error {
	for {
		_, err := request(m.vcpu, kvmRun, 0)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue // Go's runtime sent a signal
		}
		if err != nil {
			return fmt.Errorf("run the vCPU: %w", err)
		}
		if reason := binary.LittleEndian.Uint32(m.run[exitReasonOffset:]); reason != exitHalt {
			return fmt.Errorf("the vCPU stopped with KVM's exit reason %d instead of at the payload's end", reason)
		}
		return nil
	}
}

func (m *machine) close() {
	if m.run != nil {
		unix.Munmap(m.run)
	}
	for _, fd := range []int{m.vcpu, m.vm, m.kvm} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if m.memory != nil {
		unix.Munmap(m.memory)
	}
}

// threadTime is the CPU time of this thread, its guest's included.
func threadTime() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

//
//go:uintptrescapes
func request(fd int, number, argument uintptr) (int, error) {
	result, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), number, argument)
	if errno != 0 {
		return -1, errno
	}
	return int(result), nil
}
