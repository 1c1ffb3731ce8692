package v1

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

const templateChangesIntroduction = `# What a change of a VM does to its running guest

` + "`kubectl patch vm`, `kubectl edit vm` and `kubectl apply`" + ` change a VM's template while its guest runs.
The guest follows some changes at once. The others wait for its next start: virt-api warns, the VM has the condition
RestartRequired with an event, and ` + "`kubectl get vm -o wide`" + ` has it in a column. The condition names each
field and what to do:

    the template was changed: domain.cpu.cores: 2 → 4; this holds from the next start on: virtctl restart web

- The VMI's annotation ` + "`kubeqemu.io/template-parts`" + ` holds the parts of the template that the guest
  has, each with a short hash of what the user wrote. virt-controller compares them with the template's. Defaults have
  no part, so an upgrade that adds some changes nothing. A VMI without the annotation follows nothing.
- With ` + "`configuration.vmRolloutStrategy: Stage`" + ` in the [KubeVirt object](kubevirt.md), guests follow
  nothing.
- A change that only says in other words what the guest has needs no restart: 1024Mi for 1Gi, or a default.
- With an instancetype, a preference or a preset, a field that the template no longer names is named without values.
- ` + "`qemuargs diff --live OLD NEW`" + ` says which steps of QEMU a change would take ([qemuargs](qemuargs.md)).

This page is made from the code by ` + "`go test ./api/v1 -update`" + `: each field is changed, and this is what
comes of it.

| field below ` + "`spec.template.spec`" + ` | a running guest | the condition names |
|---|---|---|
`

// TestTemplateChangesPageIsUpToDate: docs/template-changes.md says of each field of a template, and of what else makes
// a guest, what a running guest does about a change.
func TestTemplateChangesPageIsUpToDate(t *testing.T) {
	page := &strings.Builder{}
	page.WriteString(templateChangesIntroduction)
	row := func(field string, config *KubeVirtConfiguration, edit func(*VirtualMachine)) {
		vm := pageVM()
		vmi := vm.willing(nil)
		edit(vm)
		live, how, says := vm.Live(vmi, config), "", ""
		copied, _ := vm.VolumeUpdates(vmi, config.Rollout())
		switch {
		case len(live.Staged) > 0:
			how, says = "at its next start", live.Staged.String()
		case len(live.Taken) > 0:
			how = "follows " + followerOf(live.Taken[0]).how()
		case len(copied) > 0:
			how = "follows by a migration that copies the disk"
		case live.OldMetadata:
			how = "at its next start, without RestartRequired"
		default:
			how = "has it already"
		}
		if says != "" {
			says = "`" + strings.ReplaceAll(says, "|", "\\|") + "`"
		}
		fmt.Fprintf(page, "| %s | %s | %s |\n", field, how, says)
	}
	var fields func(path string, of reflect.Type, index []int)
	fields = func(path string, of reflect.Type, index []int) {
		for i := range of.NumField() {
			f := of.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			below := strings.TrimPrefix(path+"."+name, ".")
			at := append(append([]int{}, index...), i)
			if isRefused(f.Type) {
				continue
			}
			if inner := f.Type; splits(below) {
				if inner.Kind() == reflect.Pointer {
					inner = inner.Elem()
				}
				fields(below, inner, at)
				continue
			}
			title := "`" + below + "`"
			if entry := entryType(f.Type); f.Type.Kind() == reflect.Slice && entry.Kind() == reflect.Struct {
				if _, has := entry.FieldByName("Name"); has {
					title = "`" + below + "[NAME]`"
				}
			}
			row(title, nil, func(vm *VirtualMachine) {
				fill(reflect.ValueOf(&vm.Spec.Template.Spec).Elem().FieldByIndex(at))
			})
		}
	}
	fields("", reflect.TypeFor[VirtualMachineInstanceSpec](), nil)
	nic := func(state InterfaceState) func(vm *VirtualMachine) {
		return func(vm *VirtualMachine) { vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].State = state }
	}
	row("`domain.devices.interfaces[NAME].state`: `down`", nil, nic(LinkDown))
	row("the same: `absent`", nil, nic(LinkAbsent))
	row("the same: `down`, Stage", &KubeVirtConfiguration{VMRolloutStrategy: ptr.To(RolloutStage)},
		nic(LinkDown))
	claim := func(vm *VirtualMachine) {
		vm.Spec.Template.Spec.Volumes[2].PersistentVolumeClaim.ClaimName = "other"
	}
	row("`volumes[NAME].persistentVolumeClaim.claimName`", nil, claim)
	row("the same, with the VM's `spec.updateVolumesStrategy: Migration`", nil, func(vm *VirtualMachine) {
		claim(vm)
		vm.Spec.UpdateVolumesStrategy = ptr.To(UpdateVolumesStrategyMigration)
	})
	row("the order of a list", nil, func(vm *VirtualMachine) {
		disks := vm.Spec.Template.Spec.Domain.Devices.Disks
		disks[0], disks[1] = disks[1], disks[0]
	})
	row("the VM's `spec.instancetype`", nil, func(vm *VirtualMachine) {
		vm.Spec.Instancetype = &InstancetypeMatcher{Name: "small"}
	})
	row("the VM's `spec.preference`", nil, func(vm *VirtualMachine) {
		vm.Spec.Preference = &PreferenceMatcher{Name: "small"}
	})
	row("labels and annotations of the template", nil, func(vm *VirtualMachine) {
		vm.Spec.Template.ObjectMeta.Labels = map[string]string{"a": "b"}
	})
	golden.Compare(t, "../../docs/template-changes.md", page.String())
}

// pageVM returns a VM whose guest has each object that holds others, and a disk on a claim.
func pageVM() *VirtualMachine {
	vm := changedVM()
	spec := &vm.Spec.Template.Spec
	spec.Domain.CPU.Sockets, spec.Domain.CPU.Threads = 1, 1
	spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks,
		Disk{Name: "data", Disk: &DiskTarget{Bus: DiskBusVirtio}})
	spec.Volumes = append(spec.Volumes, volumeOn("data", "data"))
	return vm
}

// isRefused reports whether fields of a type are refused.
func isRefused(of reflect.Type) bool {
	name := entryType(of).Name()
	return strings.HasPrefix(name, "Unsupported") || strings.HasPrefix(name, "Never")
}

// entryType returns what a pointer or a list is of.
func entryType(of reflect.Type) reflect.Type {
	for (of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice) && of.Name() == "" {
		of = of.Elem()
	}
	return of
}

// fill gives a field another value: a pointer its object, and a list one entry more.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		next := reflect.New(v.Type().Elem())
		if !v.IsNil() {
			next.Elem().Set(v.Elem())
		}
		fill(next.Elem())
		v.Set(next)
	case reflect.Slice:
		entry := reflect.New(v.Type().Elem()).Elem()
		fill(entry)
		v.Set(reflect.Append(v, entry))
	case reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("other").Convert(v.Type().Key()), value)
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.String:
		v.SetString("other")
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[resource.Quantity]() {
			v.Set(reflect.ValueOf(resource.MustParse("3Gi")))
			return
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !isRefused(f.Type) {
				fill(v.Field(i))
				return
			}
		}
	}
}
