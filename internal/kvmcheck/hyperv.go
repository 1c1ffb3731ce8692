package kvmcheck

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Of linux/kvm.h.
const (
	checkExtension = 0xae03 // KVM_CHECK_EXTENSION
	capHyperV      = 44     // KVM_CAP_HYPERV: 0 for a kernel without CONFIG_KVM_HYPERV
)

// HasHyperV says whether the kernel's KVM offers guests Hyper-V's interfaces. QEMU dies when it is asked for most of them and
// the kernel has none.
func HasHyperV() (bool, error) {
	kvm, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("open %s: %w", device, err)
	}
	defer unix.Close(kvm)
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(kvm), checkExtension, capHyperV)
	if errno != 0 {
		return false, fmt.Errorf("ask %s for Hyper-V's interfaces: %w", device, errno)
	}
	return n != 0, nil
}
