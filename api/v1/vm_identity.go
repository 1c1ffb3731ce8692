package v1

import (
	"crypto/sha256"
	"fmt"
	"net"

	"k8s.io/apimachinery/pkg/types"
)

// Identify gives the VMI its machine's identity, as far as template and presets leave it out:
// UUID, serial number and MACs, which are computed from the VM's UID, so that they are stored
// nowhere.
func (vm *VirtualMachine) Identify(vmi *VirtualMachineInstance, config *KubeVirtConfiguration) {
	domain := &vmi.Spec.Domain
	if domain.Firmware == nil {
		domain.Firmware = &Firmware{}
	}
	if domain.Firmware.UUID == "" {
		domain.Firmware.UUID = string(vm.UID)
	}
	if domain.Firmware.Serial == "" {
		domain.Firmware.Serial = vm.serial()
	}
	// The interface that is added for a guest without one needs a MAC too.
	ApplyClusterDefaults(vmi, config)
	for i := range domain.Devices.Interfaces {
		// With a bridge to the pod network the MAC is the pod's: networks may let only that MAC
		// pass. On a network of Multus the pod's interface gets the MAC that is made here.
		nic := &domain.Devices.Interfaces[i]
		if nic.MacAddress == "" && (!nic.IsBridged() || !vmi.Spec.OnPods(nic.Name)) {
			nic.MacAddress = MAC(vm.UID, nic.Name)
		}
	}
}

// NamesMachine reports whether the template names a machine type.
func (vm *VirtualMachine) NamesMachine() bool {
	m := vm.Spec.Template.Spec.Domain.Machine
	return m != nil && m.Type != ""
}

// serial returns the serial number. It has the form of a UUID, as KubeVirt's has.
func (vm *VirtualMachine) serial() string {
	sum := sha256.Sum256([]byte(string(vm.UID) + "/serial"))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// MAC returns the hardware address, under QEMU's prefix, of an interface that names none. It is
// computed from the object's UID and the interface's name.
func MAC(uid types.UID, name string) string {
	sum := sha256.Sum256([]byte(string(uid) + "/" + name))
	return net.HardwareAddr{0x52, 0x54, 0x00, sum[0], sum[1], sum[2]}.String()
}
