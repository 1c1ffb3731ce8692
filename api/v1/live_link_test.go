package v1

import (
	"encoding/json"
	"strings"
	"testing"
)

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
		live     string // the event
		staged   string
	}{
		"nothing":           {same, same, Running, told, RolloutLiveUpdate, "", ""},
		"up is the default": {same, state(ownNIC, "up"), Running, told, RolloutLiveUpdate, "", ""},
		"down": {same, state(ownNIC, "down"), Running, told, RolloutLiveUpdate,
			"own is down", ""},
		"up": {state(lanNIC, "down"), state(lanNIC, "up"), Running, told, RolloutLiveUpdate,
			"lan is up", ""},
		"no state": {state(lanNIC, "down"), same, Running, told, RolloutLiveUpdate,
			"lan is up", ""},
		"before it runs": {same, state(ownNIC, "down"), Scheduled, `[]`, RolloutLiveUpdate,
			"own is down", ""},
		"a link that is not told": {same, state(ownNIC, "down"), Running, `[{"name":"own"}]`, RolloutLiveUpdate, "",
			"does not tell"},
		"Stage": {same, state(ownNIC, "down"), Running, told, RolloutStage, "",
			"interfaces[own].state (the cluster's vmRolloutStrategy is Stage)"},
		"goes": {same, state(lanNIC, "absent"), Running, told, RolloutLiveUpdate, "",
			"interfaces[lan].state (the next start leaves the interface out)"},
		"stays away": {state(lanNIC, "absent"), state(lanNIC, "absent"), Running, told, RolloutLiveUpdate, "",
			""},
		"comes back": {state(lanNIC, "absent"), state(lanNIC, "up"), Running, told, RolloutLiveUpdate, "",
			"interfaces[lan].state (the next start brings the interface)"},
	} {
		vmi := parsedVM(t, c.from(linkedText)).Draft(false)
		vmi.Status.Phase = c.phase
		if err := json.Unmarshal([]byte(c.status), &vmi.Status.Interfaces); err != nil {
			t.Fatal(err)
		}
		vm := parsedVM(t, c.to(linkedText))
		live := vm.Live(vmi, &KubeVirtConfiguration{VMRolloutStrategy: &c.rollout})
		told, staged := strings.Join(live.Told(live.Follow(vm, vm, vmi)), "; "), live.Staged.String()
		if (told == "") != (c.live == "") || !strings.HasSuffix(told, c.live) || (staged == "") != (c.staged == "") ||
			!strings.Contains(staged, c.staged) {
			t.Errorf("%s: told %q, staged %q", name, told, staged)
		}
		if !vm.IsOfTemplate(vmi) {
			t.Errorf("%s: the state of a link makes another template", name)
		}
		next := vm.Live(live.Follow(vm, vm, vmi), plain)
		if c.staged == "" && !next.IsCurrent() {
			t.Errorf("%s: the guest that followed is not current: %+v", name, next)
		}
	}
}
