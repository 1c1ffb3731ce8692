package v1

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// TestForgedPartsCostLittle: a user may write the annotation of a VirtualMachineInstance. Parts that neither the guest
// nor the template has are not named, and as many as an annotation can have cost little.
func TestForgedPartsCostLittle(t *testing.T) {
	vm := changedVM()
	spec := &vm.Spec.Template.Spec
	for i := range 250 {
		name := fmt.Sprintf("disk%d", i)
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, Disk{Name: name, Disk: &DiskTarget{}})
		spec.Volumes = append(spec.Volumes,
			Volume{Name: name, EmptyDisk: &EmptyDiskSource{Capacity: resource.MustParse("1Gi")}})
	}
	vmi := vm.willing(nil)
	list := make([]string, 34000)
	for i := range list {
		list[i] = fmt.Sprintf("%x=", i)
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	vmi.Annotations[TemplatePartsAnnotation] = string(text)
	begun := time.Now()
	live := vm.Live(vmi, nil)
	if took := time.Since(begun); len(live.Staged) != 0 || took > 5*time.Second {
		t.Errorf("%d changes after %s: %s", len(live.Staged), took, live.Staged)
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

// TestWhatIsNotTakenIsNotOfTheGeneration: a guest that follows a link and not the placement, because the instancetype is
// missing, is of the older generation.
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
