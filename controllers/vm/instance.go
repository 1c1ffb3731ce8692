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
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/api/instancetype"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

var kindOfVM = v1.GroupVersion.WithKind("VirtualMachine")

// instance is the VMI that a VM is started as, with the size and preference that
// were chosen. The errors are of the VM's template.
func instance(vm *v1.VirtualMachine, c *chosen, paused bool) (*v1.VirtualMachineInstance, field.ErrorList) {
	from := vm.Spec.Template.DeepCopy()
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Name:            vm.Name,
			Namespace:       vm.Namespace,
			Labels:          from.ObjectMeta.Labels,
			Annotations:     map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, kindOfVM)},
		},
		Spec: from.Spec,
	}
	maps.Copy(vmi.Annotations, from.ObjectMeta.Annotations)
	vmi.Annotations[v1.VMGenerationAnnotation] = strconv.FormatInt(vm.Generation, 10)
	vmi.Annotations[v1.TemplateHashAnnotation] = templateHash(vm)
	if paused {
		vmi.Spec.StartStrategy = v1.StartStrategyPaused
	}
	template := field.NewPath("spec", "template")
	if errs := instancetype.Apply(c.size, c.preference, vmi, template); len(errs) > 0 {
		return nil, errs
	}
	c.annotate(vmi)
	identify(vmi, vm)
	return vmi, c.check(vmi, template)
}

// annotate names the VMI's size and preference, as KubeVirt does.
func (c *chosen) annotate(vmi *v1.VirtualMachineInstance) {
	names := map[string]string{
		"VirtualMachineInstancetype": "kubevirt.io/instancetype-name", "VirtualMachineClusterInstancetype": "kubevirt.io/cluster-instancetype-name",
		"VirtualMachinePreference": "kubevirt.io/preference-name", "VirtualMachineClusterPreference": "kubevirt.io/cluster-preference-name",
	}
	for _, ref := range []*v1.InstancetypeStatusRef{c.instancetypeRef, c.preferenceRef} {
		if ref != nil {
			vmi.Annotations[names[ref.Kind]] = ref.Name
		}
	}
}

// check returns what is wrong with a VMI as it would be with its defaults.
func (c *chosen) check(vmi *v1.VirtualMachineInstance, template *field.Path) field.ErrorList {
	defaulted := vmi.DeepCopy()
	defaulted.UID = unknownUID // the API server has not given it one yet
	v1.Default(defaulted)
	errs := v1.ValidateTemplate(&v1.VirtualMachineInstanceTemplateSpec{ObjectMeta: v1.TemplateMeta{Labels: vmi.Labels, Annotations: vmi.Annotations}, Spec: vmi.Spec}, unknownUID, template)
	if c.preference != nil {
		errs = append(errs, instancetype.CheckRequirements(c.preference.Requirements, &defaulted.Spec, template)...)
	}
	return errs
}

const unknownUID types.UID = "00000000-0000-0000-0000-000000000000"

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

// templateHash tells two specs of the template apart, with the instancetype and
// the preference that are named beside it. It is of what the user said: later
// versions may default more, and leave a running guest as it is.
func templateHash(vm *v1.VirtualMachine) string {
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

// outdated says whether a VMI was made from another spec than the template's.
func outdated(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	made := vmi.Annotations[v1.TemplateHashAnnotation]
	return made != "" && made != templateHash(vm)
}

// controls says whether the VM is the VMI's controller. It looks at more than
// the UID: an owner of another kind is nobody's to vouch for.
func controls(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	owner := metav1.GetControllerOf(vmi)
	if owner == nil || owner.Kind != kindOfVM.Kind || owner.Name != vm.Name {
		return false
	}
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && group.Group == kindOfVM.Group && owner.UID == vm.UID
}
