package v1

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Instance is the VirtualMachineInstance that a VM is started as, with the cluster's
// configuration and without presets. If paused, the guest's CPUs do not run yet. Instance is
// pure, and does not change the VM.
func (vm *VirtualMachine) Instance(config *KubeVirtConfiguration, paused bool) *VirtualMachineInstance {
	vmi := vm.Draft(paused)
	vm.Identify(vmi, config)
	return vmi
}

// Draft is the VirtualMachineInstance that a VM is started as, before presets and Identify fill
// in what the template leaves out.
func (vm *VirtualMachine) Draft(paused bool) *VirtualMachineInstance {
	template := vm.Spec.Template.DeepCopy()
	vmi := &VirtualMachineInstance{
		TypeMeta: metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "VirtualMachineInstance"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            vm.Name,
			Namespace:       vm.Namespace,
			Labels:          template.ObjectMeta.Labels,
			Annotations:     map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, VirtualMachineGroupVersionKind)},
		},
		Spec: template.Spec,
	}
	maps.Copy(vmi.Annotations, template.ObjectMeta.Annotations)
	vmi.Annotations[VMGenerationAnnotation] = strconv.FormatInt(vm.Generation, 10)
	vmi.Annotations[TemplateHashAnnotation] = vm.TemplateHash()
	if paused {
		vmi.Spec.StartStrategy = StartStrategyPaused
	}
	// The machine type of the first start is the VM's own, and no preset changes it.
	if !vm.NamesMachine() && vm.Annotations[MachineTypeAnnotation] != "" {
		vmi.Spec.Domain.Machine = &Machine{Type: vm.Annotations[MachineTypeAnnotation]}
	}
	return vmi
}

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
		// With the bridge binding the MAC is the pod's: networks may let only that MAC pass.
		if nic := &domain.Devices.Interfaces[i]; nic.MacAddress == "" && nic.Bridge == nil {
			nic.MacAddress = MAC(vm.UID, nic.Name)
		}
	}
}

// NamesMachine says whether the template names a machine type.
func (vm *VirtualMachine) NamesMachine() bool {
	m := vm.Spec.Template.Spec.Domain.Machine
	return m != nil && m.Type != ""
}

// serial has the form of a UUID, as KubeVirt's has.
func (vm *VirtualMachine) serial() string {
	sum := sha256.Sum256([]byte(string(vm.UID) + "/serial"))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// MAC is the hardware address, under QEMU's prefix, of an interface that names none. It is
// computed from the object's UID and the interface's name.
func MAC(uid types.UID, name string) string {
	sum := sha256.Sum256([]byte(string(uid) + "/" + name))
	return net.HardwareAddr{0x52, 0x54, 0x00, sum[0], sum[1], sum[2]}.String()
}

// TemplateHash is a hash of the template's spec, and of the instancetype and preference that
// the VM names. It covers what the user wrote, without defaults: later versions may default
// more fields, and must leave a running guest as it is.
func (vm *VirtualMachine) TemplateHash() string {
	said := []any{&vm.Spec.Template.Spec}
	if vm.Spec.Instancetype != nil || vm.Spec.Preference != nil {
		said = append(said, vm.Spec.Instancetype, vm.Spec.Preference)
	}
	var text []byte
	for _, s := range said {
		// Quantities are written in one form: 1Gi is 1024Mi.
		part, err := json.Marshal(s)
		if err != nil {
			return "" // it came as JSON
		}
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
