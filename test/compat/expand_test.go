package compat

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	instancetype "kubevirt.io/api/instancetype/v1beta1"
)

// expanded has a VM shown with its instancetype in it, by its name and as it would be.
func (m *machine) expanded() {
	m.t.Helper()
	ctx, machines := m.t.Context(), m.client.VirtualMachine(m.namespace)
	small := &instancetype.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Name: "small"}, Spec: instancetype.VirtualMachineInstancetypeSpec{
		CPU: instancetype.CPUInstancetype{Guest: 2}, Memory: instancetype.MemoryInstancetype{Guest: resource.MustParse("96Mi")}}}
	_, err := m.client.VirtualMachineInstancetype(m.namespace).Create(ctx, small, metav1.CreateOptions{})
	m.must(err)
	plain, err := machines.GetWithExpandedSpec(ctx, "vm")
	m.must(err)
	if plain.Spec.Template.Spec.Domain.Memory.Guest.String() != "128Mi" {
		m.t.Errorf("a VM without an instancetype is shown with %+v", plain.Spec.Template.Spec.Domain.Memory)
	}
	sized := plain.DeepCopy()
	sized.ObjectMeta = metav1.ObjectMeta{Name: "sized"}
	sized.Status = v1.VirtualMachineStatus{}
	halted := v1.RunStrategyHalted
	sized.Spec.RunStrategy = &halted
	sized.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small", Kind: "VirtualMachineInstancetype"}
	if _, err := m.client.ExpandSpec(m.namespace).ForVirtualMachine(sized); err == nil || !strings.Contains(err.Error(), "VM field(s) spec.template.spec.domain.memory.guest conflicts with selected instance type") {
		m.t.Errorf("memory in the VM and in its instancetype: %v", err)
	}
	sized.Spec.Template.Spec.Domain.Memory = nil
	check := func(vm *v1.VirtualMachine, err error) {
		m.t.Helper()
		m.must(err)
		if d := vm.Spec.Template.Spec.Domain; vm.Spec.Instancetype != nil || d.CPU == nil || d.CPU.Sockets != 2 || d.Memory == nil || d.Memory.Guest.String() != "96Mi" {
			m.t.Errorf("it is shown with instancetype %+v, CPU %+v and memory %+v", vm.Spec.Instancetype, d.CPU, d.Memory)
		}
	}
	check(m.client.ExpandSpec(m.namespace).ForVirtualMachine(sized))
	_, err = machines.Create(ctx, sized, metav1.CreateOptions{})
	m.must(err)
	check(machines.GetWithExpandedSpec(ctx, "sized"))
}
