package v1

import (
	"strings"
	"testing"
)

const (
	linkedText = `{"runStrategy":"Always","template":{"spec":{
 "domain":{"devices":{"interfaces":[{"name":"own","masquerade":{}},{"name":"lan","bridge":{}}]},"memory":{"guest":"1Gi"}},
 "networks":[{"name":"own","pod":{}},{"name":"lan","multus":{"networkName":"lan"}}]}}}`
	ownNIC, lanNIC = `{"name":"own","masquerade":{}`, `{"name":"lan","bridge":{}`
)

// TestStartLeavesAbsentInterfacesOut: a start leaves absent interfaces and their networks out, and the pod's network
// does not come in their place.
func TestStartLeavesAbsentInterfacesOut(t *testing.T) {
	vm := parsedVM(t, strings.Replace(linkedText, lanNIC, lanNIC+`,"state":"absent"`, 1))
	before := vm.DeepCopy()
	spec := vm.Instance(plain, false).Spec
	if n, d := spec.Networks,
		spec.Domain.Devices; len(n) != 1 || n[0].Name != "own" || len(d.Interfaces) != 1 || d.Interfaces[0].Name != "own" ||
		d.AutoattachPodInterface != nil {
		t.Errorf("networks %+v, devices %+v", n, d)
	}
	if got, want := vm.Parts().String(), before.Parts().String(); got != want || len(vm.Spec.Template.Spec.Networks) != 2 {
		t.Errorf("the VM is changed: %+v", vm.Spec.Template.Spec)
	}
	vm.Spec.Template.Spec.Domain.Devices.Interfaces,
		vm.Spec.Template.Spec.Networks = vm.Spec.Template.Spec.Domain.Devices.Interfaces[1:],
		vm.Spec.Template.Spec.Networks[1:]
	vmi := vm.Instance(plain, false)
	Default(vmi)
	if n, d := vmi.Spec.Networks, vmi.Spec.Domain.Devices; len(n)+len(d.Interfaces) != 0 {
		t.Errorf("networks %+v, interfaces %+v", n, d.Interfaces)
	}
}
