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
	kvmCreateVCPU          = 0xae41
	kvmSetUserMemoryRegion = 0x4020ae46
	kvmRun                 = 0xae80

	exitReasonOffset = 8 // in struct kvm_run
)

// The guest's memory, and where the payload is in it.
const (
	memorySize = 2 << 20
	code       = 0x8000

	instructionsPerLoop = 5
)

type memoryRegion struct {
	slot, flags   uint32
	guest, size   uint64
	userspaceAddr uint64
}

// machine is a VM with one vCPU.
type machine struct {
	kvm, vm, vcpu int
	memory, run   []byte
}

// runPayload runs the payload with so many loops, and returns how much CPU time
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
	if err := m.enter(loops); err != nil {
		return 0, err
	}
	start, err := threadTime()
	if err != nil {
		return 0, err
	}
	if err := m.untilEnd(); err != nil {
		return 0, err
	}
	end, err := threadTime()
	if err != nil {
		return 0, err
	}
	return end - start, m.verify(loops * (loops + 1) / 2)
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
	if err := m.createVM(); err != nil {
		return err
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

// untilEnd runs the vCPU until the payload ends.
func (m *machine) untilEnd() error {
	for {
		_, err := request(m.vcpu, kvmRun, 0)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue // Go's runtime sent a signal
		}
		if err != nil {
			return fmt.Errorf("run the vCPU: %w", err)
		}
		if reason := binary.LittleEndian.Uint32(m.run[exitReasonOffset:]); reason != exitAtEnd {
			return fmt.Errorf("the vCPU stopped with KVM's exit reason %d instead of at the test guest's end", reason)
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
