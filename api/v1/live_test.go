package v1

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestWhichTemplateChangesNeedARestart: which changes of a template need a restart, and which a running guest follows.
func TestWhichTemplateChangesNeedARestart(t *testing.T) {
	migratable := VirtualMachineInstanceCondition{Type: ConditionLiveMigratable, Status: metav1.ConditionTrue}
	bridged := VirtualMachineInstanceCondition{Type: ConditionLiveMigratable, Status: metav1.ConditionFalse}
	bridged.Message = "the pod's address"
	moves := func(vm *VirtualMachine) { vm.Spec.Template.Spec.NodeSelector = map[string]string{"rack": "2"} }
	grows := func(vm *VirtualMachine) { vm.Spec.Template.Spec.Hostname = "other" }
	both := func(vm *VirtualMachine) { moves(vm); grows(vm) }
	sized := func(vm *VirtualMachine) {
		both(vm)
		vm.Spec.Instancetype = &InstancetypeMatcher{Name: "small"}
	}
	for what, c := range map[string]struct {
		edit       func(*VirtualMachine)
		phase      VirtualMachineInstancePhase
		conditions []VirtualMachineInstanceCondition
		rollout    RolloutStrategy
		staged     string
		follows    bool
	}{
		"nothing changed": {func(*VirtualMachine) {}, Running, nil, RolloutLiveUpdate, "", false},
		"placement": {moves, Running, []VirtualMachineInstanceCondition{migratable}, RolloutLiveUpdate,
			"", true},
		"placement, Stage": {moves, Running, []VirtualMachineInstanceCondition{migratable}, RolloutStage,
			"nodeSelector (the cluster's vmRolloutStrategy is Stage); this holds from the next start on", false},
		"placement, bridged": {moves, Running, []VirtualMachineInstanceCondition{bridged}, RolloutLiveUpdate,
			"the guest cannot migrate: the pod's address", false},
		"placement, unknown": {moves, Running, nil, RolloutLiveUpdate, "not known yet", false},
		"placement, starting": {moves, Scheduling, []VirtualMachineInstanceCondition{migratable},
			RolloutLiveUpdate, "does not run yet", false},
		"placement, ended": {moves, Succeeded, []VirtualMachineInstanceCondition{migratable}, RolloutLiveUpdate,
			"", false},
		"another field": {grows, Running, []VirtualMachineInstanceCondition{migratable}, RolloutLiveUpdate,
			"the template was changed: hostname is new; this holds from the next start on: virtctl restart web",
			false},
		"both": {both, Running, []VirtualMachineInstanceCondition{migratable}, RolloutLiveUpdate,
			"the template was changed: hostname is new;", true},
		"both, an instancetype": {sized, Running, []VirtualMachineInstanceCondition{migratable}, RolloutLiveUpdate,
			"hostname is new; instancetype; nodeSelector (the instancetype was changed, too, and may bring", false},
	} {
		vm := changedVM()
		vm.Spec.RunStrategy = ptr.To(RunStrategyAlways)
		vmi := vm.Instance(plain, false)
		Default(vmi)
		vmi.Status.Phase, vmi.Status.Conditions = c.phase, c.conditions
		vm.Generation++
		c.edit(vm)
		live := vm.Live(vmi, &KubeVirtConfiguration{VMRolloutStrategy: &c.rollout})
		if got := live.RestartRequired(vm); (got == "") != (c.staged == "") || !strings.Contains(got, c.staged) {
			t.Errorf("%s: staged %q, want %q", what, got, c.staged)
		}
		if got := slices.Contains(live.Taken, "nodeSelector"); got != c.follows {
			t.Errorf("%s: follows %v", what, got)
		}
		next := live.Follow(vm, vm, vmi)
		if c.follows && (next.Spec.NodeSelector["rack"] != "2" || next.Spec.Hostname != "") {
			t.Errorf("%s: the guest's spec is %+v", what, next.Spec)
		}
		current := next.Annotations[VMGenerationAnnotation] == strconv.FormatInt(vm.Generation, 10)
		if current != (c.staged == "" && !live.Behind) {
			t.Errorf("%s: the guest's generation is %s", what, next.Annotations[VMGenerationAnnotation])
		}
		if again := vm.Live(next, plain); len(again.Taken) != 0 && c.rollout == RolloutLiveUpdate {
			t.Errorf("%s: it follows once more: %+v", what, again)
		}
	}
}

// TestWhyClaimsStay: each volume that the template puts on another claim is named with both claims and with the reason,
// and a volume that becomes writable with nothing but that.
func TestWhyClaimsStay(t *testing.T) {
	migration := UpdateVolumesStrategyMigration
	for name, c := range map[string]struct {
		change  func(*VirtualMachine, *VirtualMachineInstance)
		rollout RolloutStrategy
		want    string
	}{
		"Replacement": {func(vm *VirtualMachine, _ *VirtualMachineInstance) { vm.Spec.UpdateVolumesStrategy = nil },
			RolloutLiveUpdate,
			"persistentVolumeClaim.claimName: data → b (nothing is copied; see spec.updateVolumesStrategy)"},
		"Stage": {func(*VirtualMachine, *VirtualMachineInstance) {}, RolloutStage,
			"persistentVolumeClaim.claimName: data → b (" + isStage + ")"},
		"a guest that never ran": {func(_ *VirtualMachine, vmi *VirtualMachineInstance) {
			vmi.Status.PhaseTransitionTimestamps = nil
		}, RolloutLiveUpdate, "persistentVolumeClaim.claimName: data → b (the guest has not run yet)"},
		"a disk that is only read": {func(_ *VirtualMachine, vmi *VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Disks[2].Disk.ReadOnly = true
		}, RolloutLiveUpdate, "persistentVolumeClaim.claimName: data → b (no migration can copy this disk)"},
		"a DataVolume": {func(vm *VirtualMachine, _ *VirtualMachineInstance) {
			vm.Spec.UpdateVolumesStrategy = nil
			vm.Spec.Template.Spec.Volumes[2] = Volume{Name: "data", DataVolume: &DataVolumeSource{Name: "b"}}
		}, RolloutLiveUpdate, "dataVolume.name: data → b (nothing is copied; see spec.updateVolumesStrategy)"},
		"readOnly": {func(vm *VirtualMachine, _ *VirtualMachineInstance) {
			vm.Spec.Template.Spec.Volumes[2] = volumeOn("data", "data")
			vm.Spec.Template.Spec.Volumes[2].PersistentVolumeClaim.ReadOnly = true
		}, RolloutLiveUpdate, "persistentVolumeClaim.readOnly is new"},
	} {
		vm := pageVM()
		vmi := vm.willing(nil)
		vm.Spec.UpdateVolumesStrategy = &migration
		vm.Spec.Template.Spec.Volumes[2].PersistentVolumeClaim.ClaimName = "b"
		c.change(vm, vmi)
		live := vm.Live(vmi, &KubeVirtConfiguration{VMRolloutStrategy: &c.rollout})
		if got := live.Staged.String(); got != "volumes[data]."+c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestRestartRequiredHasItsAdvice: whatever a node says of a guest, the condition ends with what to do.
func TestRestartRequiredHasItsAdvice(t *testing.T) {
	vm := pageVM()
	vmi := vm.willing(nil)
	vmi.Status.Conditions[0].Status, vmi.Status.Conditions[0].Message = metav1.ConditionFalse, strings.Repeat("é", 5000)
	vm.Spec.Template.Spec.Place(Placement{NodeSelector: map[string]string{"a": "b"}, Tolerations: []corev1.Toleration{{}}})
	got := vm.Live(vmi, plain).RestartRequired(vm)
	if len(got) > 1000 || !strings.HasSuffix(got, "virtctl restart web") || strings.Count(got, "cannot migrate") != 1 {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}

// TestLabelsWaitForTheNextGeneration: a guest that follows a change is not of the VM's generation while it has other
// labels.
func TestLabelsWaitForTheNextGeneration(t *testing.T) {
	vm := pageVM()
	vmi := vm.willing(nil)
	vm.Generation++
	vm.Spec.Template.ObjectMeta.Labels = map[string]string{"a": "b"}
	vm.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"}
	next := vm.Live(vmi, plain).Follow(vm, vm, vmi)
	if next.Spec.NodeSelector["a"] != "b" || next.Annotations[VMGenerationAnnotation] != "0" || vm.HasMetadata(next) {
		t.Errorf("annotations %v", next.Annotations)
	}
}

// TestDefaultsSaidWithAnInstancetypeNeedNoRestart: a template that begins to say what the guest has needs no restart.
func TestDefaultsSaidWithAnInstancetypeNeedNoRestart(t *testing.T) {
	vm := changedVM()
	vm.Spec.Instancetype = &InstancetypeMatcher{Name: "small"}
	vmi := vm.willing(nil)
	vm.Spec.Template.Spec.Domain.Machine = vmi.Spec.Domain.Machine.DeepCopy()
	if live := vm.Live(vmi, nil); !live.IsCurrent() {
		t.Errorf("%s", live.Staged)
	}
}

// TestMachineTypeThatIsGoneNeedsARestart: without the template's machine type, the next start has another one.
func TestMachineTypeThatIsGoneNeedsARestart(t *testing.T) {
	vm := changedVM()
	vm.Spec.Template.Spec.Domain.Machine = &Machine{Type: "pc-q35-8.0"}
	vmi := vm.willing(nil)
	for annotation, want := range map[string]string{
		"":            "domain.machine.type: pc-q35-8.0 → q35",
		"pc-q35-11.1": "domain.machine.type: pc-q35-8.0 → pc-q35-11.1",
	} {
		vm.Spec.Template.Spec.Domain.Machine = nil
		vm.Annotations = map[string]string{MachineTypeAnnotation: annotation}
		if got := vm.Live(vmi, nil).Staged.String(); got != want {
			t.Errorf("%q: %q, want %q", annotation, got, want)
		}
	}
	// A type that no template named is the VM's own, in whatever words the template says none.
	vm = changedVM()
	vmi = vm.willing(nil)
	vm.Annotations = map[string]string{MachineTypeAnnotation: "pc-q35-11.1"}
	vm.Spec.Template.Spec.Domain.Machine = &Machine{}
	if got := vm.Live(vmi, nil).Staged.String(); got != "" {
		t.Errorf("an empty machine: %q", got)
	}
	vmi = vm.willing(nil)
	vm.Spec.Template.Spec.Domain.Machine = nil
	if got := vm.Live(vmi, nil).Staged.String(); got != "" {
		t.Errorf("no empty machine: %q", got)
	}
}

// TestWhatIsNotTakenIsNotOfTheGeneration: a guest that follows a link and not the placement, because the instancetype
// is missing, is of the older generation.
func TestWhatIsNotTakenIsNotOfTheGeneration(t *testing.T) {
	vm := changedVM()
	vm.Spec.Instancetype = &InstancetypeMatcher{Name: "small"}
	vmi := vm.willing(nil)
	vm.Generation = 7
	vm.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"}
	vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].State = LinkDown
	next := vm.Live(vmi, nil).WithoutExpanded().Follow(vm, vm, vmi)
	if got := next.Annotations[VMGenerationAnnotation]; got != "0" {
		t.Errorf("generation %s", got)
	}
}

// TestGuestThatEndsIsOfItsTemplate: a guest that ends, or has ended, takes nothing over and needs no restart, but is
// not as the template says.
func TestGuestThatEndsIsOfItsTemplate(t *testing.T) {
	vm := changedVM()
	vmi := vm.willing(nil)
	vmi.Status.Phase = Succeeded
	if live := vm.Live(vmi, nil); !live.IsCurrent() {
		t.Errorf("%+v", live)
	}
	vm.Spec.Template.Spec.Hostname, vm.Spec.Template.Spec.NodeSelector = "x", map[string]string{"a": "b"}
	if live := vm.Live(vmi, nil); live.IsCurrent() || len(live.Taken) != 0 || len(live.Staged) != 0 {
		t.Errorf("%+v", live)
	}
}

// TestAbsentInterfaceIsTakenOutOfTheTemplate: an interface that the guest lacks may come into the template as absent,
// change there, and go, without a restart.
func TestAbsentInterfaceIsTakenOutOfTheTemplate(t *testing.T) {
	without, with := changedVM(), changedVM()
	spec := &with.Spec.Template.Spec
	spec.Domain.Devices.Interfaces = append(spec.Domain.Devices.Interfaces,
		Interface{Name: "lan", Bridge: &InterfaceBridge{}, State: LinkAbsent})
	spec.Networks = append(spec.Networks, Network{Name: "lan", Multus: &MultusNetwork{NetworkName: "lan"}})
	other := with.DeepCopy()
	other.Spec.Template.Spec.Domain.Devices.Interfaces[1].Model = "e1000e"
	for _, from := range []*VirtualMachine{without, with, other} {
		for _, to := range []*VirtualMachine{without, with, other} {
			if live := to.Live(from.willing(nil), nil); !live.IsCurrent() {
				t.Errorf("%+v", live)
			}
		}
	}
	// Beside an absent interface there is no default one: with it the guest loses that, and without it gets it.
	none := changedVM()
	none.Spec.Template.Spec.Domain.Devices.Interfaces, none.Spec.Template.Spec.Networks = nil, nil
	only := with.DeepCopy()
	spec = &only.Spec.Template.Spec
	spec.Domain.Devices.Interfaces, spec.Networks = spec.Domain.Devices.Interfaces[1:], spec.Networks[1:]
	for _, c := range [][2]*VirtualMachine{{none, only}, {only, none}} {
		if live := c[1].Live(c[0].willing(nil), nil); len(live.Staged) != 1 {
			t.Errorf("%+v", live)
		}
	}
}
