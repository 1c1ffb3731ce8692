package v1

import (
	"encoding/json"
	"maps"
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
	if got, want := vm.TemplateHash(), before.TemplateHash(); got != want || len(vm.Spec.Template.Spec.Networks) != 2 {
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

// TestRunningGuestFollowsLinkUpdates: which changes of links a running guest follows.
func TestRunningGuestFollowsLinkUpdates(t *testing.T) {
	state := func(nic, state string) func(string) string {
		return func(s string) string { return strings.Replace(s, nic, nic+`,"state":"`+state+`"`, 1) }
	}
	same := func(s string) string { return s }
	told := `[{"name":"own","linkState":"up"},{"name":"lan","linkState":"down"}]`
	for name, c := range map[string]struct {
		from, to func(string) string
		phase    VirtualMachineInstancePhase
		status   string
		rollout  RolloutStrategy
		live     map[string]InterfaceState
		staged   string
	}{
		"nothing":           {same, same, Running, told, RolloutLiveUpdate, nil, ""},
		"up is the default": {same, state(ownNIC, "up"), Running, told, RolloutLiveUpdate, nil, ""},
		"down": {same, state(ownNIC, "down"), Running, told, RolloutLiveUpdate,
			map[string]InterfaceState{"own": LinkDown}, ""},
		"up": {state(lanNIC, "down"), state(lanNIC, "up"), Running, told, RolloutLiveUpdate,
			map[string]InterfaceState{"lan": LinkUp}, ""},
		"no state": {state(lanNIC, "down"), same, Running, told, RolloutLiveUpdate,
			map[string]InterfaceState{"lan": ""}, ""},
		"before it runs": {same, state(ownNIC, "down"), Scheduled, `[]`, RolloutLiveUpdate,
			map[string]InterfaceState{"own": LinkDown}, ""},
		"a link that is not told": {same, state(ownNIC, "down"), Running, `[{"name":"own"}]`, RolloutLiveUpdate, nil,
			"does not tell"},
		"Stage": {same, state(ownNIC, "down"), Running, told, RolloutStage, nil,
			"changes the link of interface own"},
		"goes": {same, state(lanNIC, "absent"), Running, told, RolloutLiveUpdate, nil,
			"interface lan is absent"},
		"stays away": {state(lanNIC, "absent"), state(lanNIC, "absent"), Running, told, RolloutLiveUpdate, nil,
			""},
		"comes back": {state(lanNIC, "absent"), state(lanNIC, "up"), Running, told, RolloutLiveUpdate, nil,
			"brings interface lan back"},
	} {
		vmi := parsedVM(t, c.from(linkedText)).Draft(false)
		vmi.Status.Phase = c.phase
		if err := json.Unmarshal([]byte(c.status), &vmi.Status.Interfaces); err != nil {
			t.Fatal(err)
		}
		vm := parsedVM(t, c.to(linkedText))
		live, staged := vm.LinkUpdates(vmi, c.rollout)
		if !maps.Equal(live, c.live) || (staged == "") != (c.staged == "") || !strings.Contains(staged, c.staged) {
			t.Errorf("%s: live %v, staged %q", name, live, staged)
		}
		if !vm.IsOfTemplate(vmi) {
			t.Errorf("%s: the state of a link makes another template", name)
		}
	}
}
