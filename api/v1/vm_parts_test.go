package v1

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// TestParts: what says the same has the same parts, in every version. If they change, a running guest of an earlier
// version looks outdated: a field was added to the API that is written although it is not set.
func TestParts(t *testing.T) {
	vm := parsedVM(t, specText)
	const want = `["domain.devices.disks[root]=45240818","domain.devices.interfaces[one]=06a89813",` +
		`"domain.devices.interfaces[two]=8ea4b0e6","domain.devices.interfaces[three]=caaae1b7",` +
		`"domain.memory.guest=e3011aa0","domain.resources.requests=7a50bb94","networks[one]=5d4de173",` +
		`"volumes[root]=1b8419ec","metadata.labels=db4a7ecb"]`
	if got := vm.Parts().String(); got != want {
		t.Errorf("the parts are %s, want %s", got, want)
	}
	for what, edit := range map[string]func(*VirtualMachine){
		"run strategy": func(vm *VirtualMachine) { vm.Spec.RunStrategy = ptr.To(RunStrategyHalted) },
		"1024Mi":       func(vm *VirtualMachine) { vm.Spec.Template.Spec.Domain.Memory = memory(t, "1024Mi") },
		"what holds anyway": func(vm *VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Devices.DisableHotplug = ptr.To(false)
			vm.Spec.Template.Spec.Domain.Resources.OvercommitGuestOverhead = ptr.To(false)
		},
		"an empty object": func(vm *VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU = &CPU{} },
		"a link that is up": func(vm *VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].State = LinkUp
		},
	} {
		edited := vm.DeepCopy()
		edit(edited)
		if diff := edited.Parts().since(vm.Parts()); len(diff) != 0 {
			t.Errorf("%s: %v differ", what, diff)
		}
	}
}

// TestPartsTellWhatDiffers: since names each part that is new, gone or changed, by its path. It names a list by its own
// path if entries have changed places. A part that a guest has taken over is not named any more.
func TestPartsTellWhatDiffers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*VirtualMachine)
		want   string
	}{
		"nothing": {func(*VirtualMachine) {}, ""},
		"a field": {func(vm *VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU.Cores = 4 }, "domain.cpu.cores"},
		"two new": {func(vm *VirtualMachine) {
			vm.Spec.Template.Spec.Place(Placement{NodeSelector: map[string]string{"a": "b"}})
			vm.Spec.Template.Spec.Hostname = "x"
		}, "hostname nodeSelector"},
		"gone": {func(vm *VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU = nil }, "domain.cpu.cores"},
		"an entry": {func(vm *VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Devices.Disks[1].Serial = "s"
		}, "domain.devices.disks[seed]"},
		"a link": {func(vm *VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].State = LinkDown
		}, "domain.devices.interfaces[default].state"},
		"an order": {func(vm *VirtualMachine) {
			slices.Reverse(vm.Spec.Template.Spec.Domain.Devices.Disks)
		}, "domain.devices.disks"},
		"one first": {func(vm *VirtualMachine) {
			disks := &vm.Spec.Template.Spec.Domain.Devices.Disks
			*disks = append([]Disk{{Name: "data"}}, *disks...)
		}, "domain.devices.disks[data]"},
		"entries of one name": {func(vm *VirtualMachine) { vm.Spec.Template.Spec.Domain.Devices.Disks[1].Name = "root" },
			"domain.devices.disks domain.devices.disks[root] domain.devices.disks[seed]"},
		"an instancetype": {func(vm *VirtualMachine) {
			vm.Spec.Instancetype = &InstancetypeMatcher{Name: "small"}
		}, "instancetype"},
		"a preference": {func(vm *VirtualMachine) {
			vm.Spec.Preference = &PreferenceMatcher{Name: "linux"}
		}, "preference"},
		"a label": {func(vm *VirtualMachine) {
			vm.Spec.Template.ObjectMeta.Labels = map[string]string{"a": "c"}
		}, "metadata.labels"},
		"an annotation": {func(vm *VirtualMachine) {
			vm.Spec.Template.ObjectMeta.Annotations = map[string]string{"a": "c"}
		}, "metadata.annotations"},
		"a pool's revision": {func(vm *VirtualMachine) {
			vm.Spec.Template.ObjectMeta.Labels = map[string]string{PoolRevisionLabel: "web-1"}
		}, ""},
		"what follows into the guest's objects": {func(vm *VirtualMachine) {
			vm.Spec.Template.ObjectMeta.Annotations = map[string]string{
				"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""}
		}, ""},
		"the VM's own labels": {func(vm *VirtualMachine) { vm.Labels = map[string]string{"e": "f"} }, ""},
	} {
		vm := changedVM()
		old := vm.Parts()
		if c.change(vm); strings.Join(vm.Parts().since(old), " ") != c.want {
			t.Errorf("%s: %v differ, want %s", name, vm.Parts().since(old), c.want)
		}
		vmi := vm.Draft(false)
		read, known := vmi.madeFrom()
		if !known || read.String() != vm.Parts().String() || len(vm.Parts().since(read)) != 0 {
			t.Errorf("%s: read back, the parts are %s, and were %s", name, read, vm.Parts())
		}
		taken := old.with(vm.Parts(), vm.Parts().since(old))
		if left := vm.Parts().since(taken); c.want != "domain.devices.disks" && len(left) != 0 {
			t.Errorf("%s: taken over, %v still differ", name, left)
		}
	}
}

// TestGuestWithoutPartsFollowsNothing: nothing is said of a guest whose annotation is gone, or is no list of parts.
func TestGuestWithoutPartsFollowsNothing(t *testing.T) {
	for _, text := range []string{"", "{}", "[1]", `["domain"]`, "[", `"a=b"`, "null"} {
		vm := changedVM()
		vmi := vm.Instance(plain, false)
		vmi.Annotations[TemplatePartsAnnotation] = text
		vm.Spec.Template.Spec.Hostname, vm.Spec.Template.Spec.NodeSelector = "x", map[string]string{"a": "b"}
		if live := vm.Live(vmi, plain); !live.IsCurrent() || !vm.HasMetadata(vmi) {
			t.Errorf("%q: %+v", text, live)
		}
	}
}

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
	list := make([]string, 7000)
	for i := range list {
		list[i] = fmt.Sprintf("%x=", i)
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	vmi.Annotations[TemplatePartsAnnotation] = string(text)
	if _, known := vmi.madeFrom(); !known {
		t.Fatalf("%d bytes are too many", len(text))
	}
	begun := time.Now()
	live := vm.Live(vmi, nil)
	if took := time.Since(begun); len(live.Staged) != 0 || took > 5*time.Second {
		t.Errorf("%d changes after %s: %s", len(live.Staged), took, live.Staged)
	}
}
