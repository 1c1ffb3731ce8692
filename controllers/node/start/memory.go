package start

import (
	"errors"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/elevate"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
)

// Memory lets launchers' processes lock memory, which the kernel lets nobody do in a restricted pod (package elevate).
type Memory interface {
	LockMemory(l elevate.Launcher, bytes uint64) error
}

// lockMemory lets the QEMU that the launcher will start lock the guest's memory and the overhead, whatever the VMI
// requests, if the VMI says so, or has a device of the node.
func (s *Starter) lockMemory(object *v1.VirtualMachineInstance, launcher *sessions.Session) error {
	if !object.Spec.Domain.LocksMemory() || s.Memory == nil {
		return nil
	}
	const emulation = true // of which the overhead is larger
	bytes := uint64(GuestMemory(object)) + uint64(max(vmi.Overhead(object, emulation), 0))
	return s.Memory.LockMemory(elevate.Of(object, launcher), bytes)
}

// lockRefused returns the errors of a VMI whose memory can never be locked here.
func lockRefused(object *v1.VirtualMachineInstance, err error) field.ErrorList {
	if !errors.Is(err, elevate.ErrRefused) {
		return nil
	}
	for i, nic := range object.Spec.Domain.Devices.Interfaces {
		if nic.SRIOV != nil && !object.Spec.Domain.Memory.LocksMemory() {
			return field.ErrorList{field.Forbidden(wiring.InterfacePath(i).Child("sriov"), err.Error())}
		}
	}
	path := field.NewPath("spec", "domain", "memory", "reservedOverhead", "memLock")
	return field.ErrorList{field.Forbidden(path, err.Error())}
}

// GuestMemory returns how many bytes of memory a VMI's guest has. A launcher's Machine says it, too, but a launcher
// is a tenant's: by these bytes QEMU may lock memory, and a migration has its time.
func GuestMemory(vmi *v1.VirtualMachineInstance) int64 {
	if memory := vmi.Spec.Domain.Memory; memory != nil && memory.Guest != nil {
		return max(memory.Guest.Value(), 0)
	}
	return 0
}
