package vm

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

var kind = v1.GroupVersion.WithKind("VirtualMachine")

// instance is the VMI that a VM is started as.
func instance(vm *v1.VirtualMachine, paused bool) *v1.VirtualMachineInstance {
	template := vm.Spec.Template.DeepCopy()
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Name:            vm.Name,
			Namespace:       vm.Namespace,
			Labels:          template.ObjectMeta.Labels,
			Annotations:     map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, kind)},
		},
		Spec: template.Spec,
	}
	maps.Copy(vmi.Annotations, template.ObjectMeta.Annotations)
	vmi.Annotations[v1.VMGenerationAnnotation] = strconv.FormatInt(vm.Generation, 10)
	vmi.Annotations[v1.TemplateHashAnnotation] = templateHash(vm)
	if paused {
		vmi.Spec.StartStrategy = v1.StartStrategyPaused
	}
	identify(vmi, vm)
	return vmi
}

// identify gives the VMI what the guest knows its machine by, where the template
// leaves it out. All but the machine type is computed from the VM's UID, so that
// it needs to be kept nowhere.
func identify(vmi *v1.VirtualMachineInstance, vm *v1.VirtualMachine) {
	domain := &vmi.Spec.Domain
	if domain.Firmware == nil {
		domain.Firmware = &v1.Firmware{}
	}
	if domain.Firmware.UUID == "" {
		domain.Firmware.UUID = string(vm.UID)
	}
	if domain.Firmware.Serial == "" {
		domain.Firmware.Serial = serial(vm.UID)
	}
	if !namesMachine(vm) && vm.Annotations[v1.MachineTypeAnnotation] != "" {
		domain.Machine = &v1.Machine{Type: vm.Annotations[v1.MachineTypeAnnotation]}
	}
	for i := range domain.Devices.Interfaces {
		// With the bridge binding it is the pod's: networks may let only that
		// one pass.
		if nic := &domain.Devices.Interfaces[i]; nic.MacAddress == "" && nic.Bridge == nil {
			nic.MacAddress = mac(vm.UID, nic.Name)
		}
	}
}

func namesMachine(vm *v1.VirtualMachine) bool {
	m := vm.Spec.Template.Spec.Domain.Machine
	return m != nil && m.Type != ""
}

// serial is of a UUID's form, as KubeVirt's.
func serial(vm types.UID) string {
	sum := sha256.Sum256([]byte(string(vm) + "/serial"))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// mac is under QEMU's prefix.
func mac(vm types.UID, name string) string {
	sum := sha256.Sum256([]byte(string(vm) + "/" + name))
	return net.HardwareAddr{0x52, 0x54, 0x00, sum[0], sum[1], sum[2]}.String()
}

// templateHash tells two specs of the template apart. It is of what the user
// said: later versions may default more, and leave a running guest as it is.
func templateHash(vm *v1.VirtualMachine) string {
	// Quantities are written in one form: 1Gi is 1024Mi.
	text, err := json.Marshal(&vm.Spec.Template.Spec)
	if err != nil {
		return "" // it came as JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// outdated says whether a VMI was made from another spec than the template's.
func outdated(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	made := vmi.Annotations[v1.TemplateHashAnnotation]
	return made != "" && made != templateHash(vm)
}

// controls says whether the VM is the VMI's controller. It looks at more than
// the UID: an owner of another kind is nobody's to vouch for.
func controls(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	owner := metav1.GetControllerOf(vmi)
	if owner == nil || owner.Kind != kind.Kind || owner.Name != vm.Name {
		return false
	}
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && group.Group == kind.Group && owner.UID == vm.UID
}
