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

// Instance is the VirtualMachineInstance that a VM is started as, in a cluster
// of a configuration; paused has the guest's CPUs wait. It is pure, and the VM
// is not changed.
func (vm *VirtualMachine) Instance(config *KubeVirtConfiguration, paused bool) *VirtualMachineInstance {
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
	vm.identify(vmi, config)
	return vmi
}

// identify gives the VMI what the guest knows its machine by, where the template
// leaves it out. All but the machine type is computed from the VM's UID, so that
// it needs to be kept nowhere.
func (vm *VirtualMachine) identify(vmi *VirtualMachineInstance, config *KubeVirtConfiguration) {
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
	if !vm.NamesMachine() && vm.Annotations[MachineTypeAnnotation] != "" {
		domain.Machine = &Machine{Type: vm.Annotations[MachineTypeAnnotation]}
	}
	// The interface that is added for a guest without one needs a MAC too.
	ApplyClusterDefaults(vmi, config)
	for i := range domain.Devices.Interfaces {
		// With the bridge binding it is the pod's: networks may let only that
		// one pass.
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

// serial is of a UUID's form, as KubeVirt's.
func (vm *VirtualMachine) serial() string {
	sum := sha256.Sum256([]byte(string(vm.UID) + "/serial"))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// MAC is the hardware address, under QEMU's prefix, of an object's interface
// that names none.
func MAC(uid types.UID, name string) string {
	sum := sha256.Sum256([]byte(string(uid) + "/" + name))
	return net.HardwareAddr{0x52, 0x54, 0x00, sum[0], sum[1], sum[2]}.String()
}

// TemplateHash tells two specs of the template apart, with the instancetype and
// the preference that are named beside it. It is of what the user said: later
// versions may default more, and leave a running guest as it is.
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
