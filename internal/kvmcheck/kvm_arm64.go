package kvmcheck

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// Requests that KVM has on arm64 only (linux/kvm.h, asm/kvm.h), and the capability that tells how long guests' physical addresses are.
const (
	kvmSetOneReg       = 0x4010aeac
	kvmVCPUInit        = 0x4020aeae
	kvmPreferredTarget = 0x8020aeaf
	capAddressBits     = 165 // KVM_CAP_ARM_VM_IPA_SIZE

	// exitAtEnd is KVM_EXIT_MMIO.
	exitAtEnd = 6
	// mmioOffset is that of struct mmio in struct kvm_run.
	mmioOffset = 32
)

type vcpuInit struct {
	target   uint32
	features [7]uint32
}

type oneRegister struct{ id, address uint64 }

// Numbers of registers: x0 and those after it, and the program counter.
const (
	registerX0 = 0x6030000000100000
	registerPC = 0x6030000000100040
)

// outside is a physical address at which the guest has no memory: KVM stops the vCPU that writes there.
const outside = 0x10000000

// payload adds the numbers from x0 down to 1, and writes the sum to x3. Paging is off, and with it the cache for data: the
// loop stores nothing.
var payload = [...]uint32{
	0x8b000021, // loop: add x1, x1, x0
	0xca010042, //       eor x2, x2, x1
	0x8b020084, //       add x4, x4, x2
	0xf1000400, //       subs x0, x0, #1
	0x54ffff81, //       b.ne loop
	0xf9000061, //       str x1, [x3]
}

// createVM makes a VM whose addresses are no longer than the CPU can: not each CPU has KVM's default of 40 bits.
func (m *machine) createVM() (err error) {
	bits, err := request(m.kvm, checkExtension, capAddressBits)
	if err != nil {
		return fmt.Errorf("ask how long guests' addresses can be: %w", err)
	}
	if bits >= 40 {
		bits = 0 // the default
	}
	if m.vm, err = request(m.kvm, kvmCreateVM, uintptr(bits)); err != nil {
		return fmt.Errorf("create VM: %w", err)
	}
	return nil
}

// enter makes the vCPU one of the node's own kind, in the mode in which kernels start, and sets its registers.
func (m *machine) enter(loops uint64) error {
	for i, instruction := range payload {
		binary.LittleEndian.PutUint32(m.memory[code+4*i:], instruction)
	}
	var init vcpuInit
	if _, err := request(m.vm, kvmPreferredTarget, uintptr(unsafe.Pointer(&init))); err != nil {
		return fmt.Errorf("ask for the kind of CPU: %w", err)
	}
	init.features = [7]uint32{}
	if _, err := request(m.vcpu, kvmVCPUInit, uintptr(unsafe.Pointer(&init))); err != nil {
		return fmt.Errorf("set the kind of CPU: %w", err)
	}
	for number, value := range map[uint64]uint64{0: loops, 1: 0, 2: 0, 3: outside, 4: 0} {
		if err := m.set(registerX0+2*number, value); err != nil {
			return err
		}
	}
	return m.set(registerPC, code)
}

// set sets a register. KVM reads the value at an address, which must not move: the value stands in the guest's memory.
func (m *machine) set(register, value uint64) error {
	binary.LittleEndian.PutUint64(m.memory, value)
	r := oneRegister{register, uint64(uintptr(unsafe.Pointer(&m.memory[0])))}
	if _, err := request(m.vcpu, kvmSetOneReg, uintptr(unsafe.Pointer(&r))); err != nil {
		return fmt.Errorf("set register %#x: %w", register, err)
	}
	return nil
}

// verify compares what the payload wrote with the sum.
func (m *machine) verify(sum uint64) error {
	exit := m.run[mmioOffset:]
	address, stored, size, isWrite := binary.LittleEndian.Uint64(exit), binary.LittleEndian.Uint64(exit[8:]), binary.LittleEndian.Uint32(exit[16:]), exit[20]
	if address != outside || size != 8 || isWrite != 1 || stored != sum {
		return fmt.Errorf("the guest miscalculated: it wrote %d (%d bytes) to %#x instead of %d to %#x", stored, size, address, sum, outside)
	}
	return nil
}
