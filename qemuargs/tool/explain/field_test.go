package explain

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// TestFieldsOfNoArgumentAreTheAPIs: each field that is known to make no argument is one of the API.
func TestFieldsOfNoArgumentAreTheAPIs(t *testing.T) {
	for _, e := range elsewhereFields {
		if path, refused, ok := lookUp(vmiType, e.field); !ok || refused || path != e.field {
			t.Errorf("%s is no field of the API (%q)", e.field, path)
		}
	}
}

// TestFieldsOfTheAPIAreFound: every field that a default VMI has, and all that are suggested, are
// found.
func TestFieldsOfTheAPIAreFound(t *testing.T) {
	all := fields()
	for _, path := range all {
		if found, refused, ok := lookUp(vmiType, path); !ok || refused || found != path {
			t.Errorf("%s: found %q, %t", path, found, ok)
		}
	}
	for _, want := range []string{"spec.domain.cpu.cores", "spec.domain.devices.disks[*].disk.bus", "spec.domain.firmware.kernelBoot.container.kernelPath", "spec.evictionStrategy", "spec.volumes[*].cloudInitNoCloud.secretRef.name"} {
		if !slices.Contains(all, want) {
			t.Errorf("%s is not among the %d fields", want, len(all))
		}
	}
}

const machineManifest = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: web}
spec:
  runStrategy: Always
  instancetype: {name: small}
  preference: {name: linux}
  template:
    spec:
      evictionStrategy: None
      domain:
        devices: {autoattachMemBalloon: false,
          disks: [{name: root, serial: S1}, {name: data, disk: {bus: sata}}]}
      volumes: [{name: root, emptyDisk: {capacity: 1Gi}}, {name: data, emptyDisk: {capacity: 1Gi}}]
---
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachineClusterInstancetype
metadata: {name: small}
spec: {cpu: {guest: 2}, memory: {guest: 1Gi}}
---
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachineClusterPreference
metadata: {name: linux}
spec: {devices: {preferredDiskBus: virtio, preferredRng: {}}}
`

func machineOf(t *testing.T, text string) *Machine {
	t.Helper()
	m, err := Of(instanceIn(t, text), hostOf(t, manifest.DefaultHost))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// instanceIn returns the only VMI of a manifest.
func instanceIn(t *testing.T, text string) manifest.Instance {
	t.Helper()
	set, err := manifest.Read("vm.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	instances, err := set.Instances()
	if err != nil || len(instances) != 1 {
		t.Fatalf("%d VMIs, %v", len(instances), err)
	}
	return instances[0]
}

func hostOf(t *testing.T, preset string) manifest.Host {
	t.Helper()
	host, err := manifest.ParseHost(preset)
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// TestFieldByAnyOfItsNames: a field by any of its names, and what it makes.
func TestFieldByAnyOfItsNames(t *testing.T) {
	m := machineOf(t, machineManifest)
	const disks = "spec.template.spec.domain.devices.disks"
	const whole = "holds the whole VirtualMachineInstance: name a field below it, such as domain.cpu"
	const refusedNote = "is refused: Kubeqemu does not support it yet"
	for name, want := range map[string]struct {
		heading string
		made    string // flags, ids and properties
		note    string
	}{
		disks + "[0].serial":                  {disks + "[0].serial: S1 (vm.yaml:13)", "-device disk-root serial", ""},
		"spec.domain.devices.disks[0].serial": {disks + "[0].serial: S1 (vm.yaml:13)", "-device disk-root serial", ""},
		"domain.devices.disks[root].serial":   {disks + "[0].serial: S1 (vm.yaml:13)", "-device disk-root serial", ""},
		"devices.disks[*].serial":             {disks + "[*].serial", "-device disk-root serial", ""},
		"disks.serial":                        {disks + "[*].serial", "-device disk-root serial", ""},
		"cpu.model":                           {"spec.template.spec.domain.cpu.model: host-model (Kubeqemu's default)", "-cpu  ", ""},
		"memory.guest":                        {`spec.template.spec.domain.memory.guest: 1Gi (instancetype "small", vm.yaml:19)`, "-m  size; -object pc.ram size", ""},
		"metadata.name":                       {"metadata.name: web (vm.yaml:3)", "-name  guest", ""},
		"spec.instancetype":                   {"spec.instancetype is not set", "-device disk-root num-queues; -m  size; -object pc.ram size; -smp   sockets cores threads", ""},
		"evictionStrategy":                    {"spec.template.spec.evictionStrategy: None (vm.yaml:10)", "", "makes no argument: the cluster looks at it when a pod is evicted"},
		"runStrategy":                         {"spec.runStrategy is not set", "", "makes no argument: it is not of the VirtualMachineInstance, but of the VirtualMachine around it"},
		"devices.downwardMetrics":             {"spec.template.spec.domain.devices.downwardMetrics is not set", "", "is refused: Kubeqemu does not support it yet"},
		"devices.autoattachMemBalloon":        {"spec.template.spec.domain.devices.autoattachMemBalloon: false (vm.yaml:12)", "", "makes no argument of this machine; with another value there could be -device balloon0"},
		"devices.watchdog":                    {"spec.template.spec.domain.devices.watchdog is not set", "", "is not set, and makes no argument of this machine; docs/arguments.md shows what it would make"},
		"spec.template.spec":                  {"spec.template.spec is not set", "", whole},
		"spec.template":                       {"spec.template is not set", "", whole},
		"template":                            {"spec.template is not set", "", whole},
		"template.spec":                       {"spec.template.spec is not set", "", whole},
		"preference":                          {"spec.preference is not set", "-device disk-data bus; -device disk-root driver bus addr num-queues queue-size; -device pci.5 ; -device rng0 ; -object objrng0 ", ""},
		"memory.hugepages.pageSize":           {"spec.template.spec.domain.memory.hugepages.pageSize is not set", "-object pc.ram qom-type", ""},
		"launchSecurity.sev":                  {"spec.template.spec.domain.launchSecurity is not set", "", refusedNote},
		"firmware.acpi.slicNameRef":           {"spec.template.spec.domain.firmware.acpi.slicNameRef is not set", "", "is not set, and makes no argument of this machine; docs/arguments.md shows what it would make"},
		"firmware.bootloader.efi.persistent":  {"spec.template.spec.domain.firmware.bootloader.efi.persistent is not set", "", "is not set, and makes no argument of this machine; docs/arguments.md shows what it would make"},
		"firmware.bootloader.efi.secureBoot":  {"spec.template.spec.domain.firmware.bootloader.efi.secureBoot is not set", "-device video0 driver vgamem_mb", ""},
		"disks[data].disk.readonly":           {disks + "[1].disk.readonly is not set", "", "is not set, and makes no argument of this machine; docs/arguments.md shows what it would make"},
	} {
		answer, err := m.Field(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var made []string
		for _, a := range answer.Arguments {
			line := a.Flag + " " + a.ID
			for _, p := range a.Properties {
				line += " " + p.Name
			}
			if len(a.Properties) == 0 {
				line += " "
			}
			made = append(made, line)
		}
		slices.Sort(made)
		wanted := strings.Split(want.made, "; ")
		slices.Sort(wanted)
		if got := strings.Join(made, "; "); answer.Source.String() != want.heading || got != strings.Join(wanted, "; ") || answer.Note != want.note {
			t.Errorf("%s: %s makes %q, %s", name, answer.Source, got, answer.Note)
		}
	}
}

// TestFieldOfPool: the path of a pool's field may begin below spec, and what holds the VMI says so.
func TestFieldOfPool(t *testing.T) {
	pool, err := os.ReadFile("../../../config/samples/vmpool-tiny.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m := machineOf(t, string(pool))
	for name, want := range map[string]string{
		"virtualMachineTemplate.spec.template.spec.domain.cpu.cores": "spec.virtualMachineTemplate.spec.template.spec.domain.cpu.cores, ",
		"spec.virtualMachineTemplate":                                "spec.virtualMachineTemplate, holds the whole VirtualMachineInstance: name a field below it, such as domain.cpu",
	} {
		answer, err := m.Field(name)
		if got := answer.Field + ", " + answer.Note; err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, want)
		}
	}
}

// TestUnknownField: an error names fields that are near, or the list that lacks the entry.
func TestUnknownField(t *testing.T) {
	m := machineOf(t, machineManifest)
	for name, want := range map[string]string{
		"devices.disk":           `a VirtualMachine has no field "devices.disk"; near it: spec.template.spec.domain.devices.disks`,
		"spec.domain.cpu.core":   "near it: spec.template.spec.domain.cpu.cores",
		"evicitonStrategy":       "near it: spec.template.spec.evictionStrategy",
		"zzzzzzzzzzzz":           `a VirtualMachine has no field "zzzzzzzzzzzz"`,
		"disks[7].serial":        "spec.template.spec.domain.devices.disks has no entry 7",
		"disks[nil].serial":      "spec.template.spec.domain.devices.disks has no entry nil",
		"disks[":                 "a VirtualMachine has no field",
		"":                       "a VirtualMachine has no field",
		"spec":                   "a VirtualMachine has no field",
		"domain.cpu.cores.x":     "a VirtualMachine has no field",
		"cpu[0]":                 "a VirtualMachine has no field",
		"memory.guest.format":    "a VirtualMachine has no field",
		"resources[0].x":         "a VirtualMachine has no field",
		"devices.disks[root][0]": "a VirtualMachine has no field",
	} {
		_, err := m.Field(name)
		var unknown *UnknownField
		if err == nil || !strings.Contains(err.Error(), want) || errors.As(err, &unknown) != strings.Contains(want, "field") {
			if strings.HasPrefix(want, "near") && err != nil && strings.Contains(err.Error(), want) {
				continue
			}
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}

// TestOriginSaysWhereAValueIsWritten: a source says whose the value is, and where it is written.
func TestOriginSaysWhereAValueIsWritten(t *testing.T) {
	pool, err := os.ReadFile(filepath.Join("../../../config/samples/vmpool-tiny.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const vmi = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: x, namespace: team}\nspec:\n  domain:\n    resources: {requests: {memory: 64Mi, cpu: 1500m}}\n  volumes:\n  - {name: a, emptyDisk: {capacity: 1Mi}}\n"
	topology := strings.ReplaceAll(machineManifest, "spec: {devices:", "spec: {cpu: {preferredCPUTopology: cores}, devices:")
	for name, c := range map[string]struct{ manifest, field, want string }{
		"written":           {machineManifest, "disks[1].disk.bus", "sata (vm.yaml:13)"},
		"instancetype":      {machineManifest, "cpu.sockets", `2 (instancetype "small", vm.yaml:19)`},
		"preference":        {machineManifest, "disks[0].disk.bus", `virtio (preference "linux", vm.yaml:24)`},
		"both":              {topology, "cpu.cores", `2 (instancetype "small" with preference "linux", vm.yaml:24)`},
		"both, one of them": {topology, "cpu.threads", `1 (instancetype "small", vm.yaml:19)`},
		"default":           {machineManifest, "machine.type", "q35 (Kubeqemu's default)"},
		"UID":               {machineManifest, "firmware.uuid", "00000000-0000-4000-8000-000000000000 (made of the object's UID)"},
		"no UID":            {machineManifest, "metadata.uid", "00000000-0000-4000-8000-000000000000 (stands for the UID that the API server gives)"},
		"no namespace":      {machineManifest, "metadata.namespace", "default (the namespace where none is named)"},
		"namespace":         {vmi, "metadata.namespace", "team (vm.yaml:3)"},
		"from the request":  {vmi, "memory.guest", "64Mi (Kubeqemu's default, made of spec.domain.resources.requests.memory: 64Mi (vm.yaml:6))"},
		"from CPU request":  {vmi, "cpu.sockets", "2 (Kubeqemu's default, made of spec.domain.resources.requests.cpu: 1500m (vm.yaml:6))"},
		"from the volume":   {vmi, "disks[0].name", "a (Kubeqemu's default, made of spec.volumes[0].name: a (vm.yaml:8))"},
		"from a switch":     {vmi, "interfaces[0].name", "default (Kubeqemu's default, as spec.domain.devices.autoattachPodInterface is not set)"},
		"pool":              {string(pool), "spec.virtualMachineTemplate.spec.template.spec.domain.memory.guest", "(vm.yaml:"},
	} {
		answer, err := machineOf(t, c.manifest).Field(c.field)
		if got := answer.Source.String(); err != nil || !strings.HasSuffix(got, ": "+c.want) && !(name == "pool" && strings.Contains(got, c.want)) {
			t.Errorf("%s: %s, %v; want %s", name, got, err, c.want)
		}
	}
}

// TestWhetherAPathNamesAField: a path names the field itself, what the field is within, and entries by [*].
func TestWhetherAPathNamesAField(t *testing.T) {
	for _, c := range []struct {
		path, field string
		want        bool
	}{
		{"spec.domain.cpu.cores", "spec.domain.cpu.cores", true},
		{"spec.domain.cpu.cores", "spec.domain.cpu", true},
		{"spec.domain.cpu", "spec.domain.cpu.cores", false},
		{"spec.domain.cpu", "spec.domain.cp", false},
		{"spec.disks[*].bus", "spec.disks[7].bus", true},
		{"spec.disks[7].bus", "spec.disks[*].bus", true},
		{"spec.disks[0].bus", "spec.disks", true},
		{"spec.disks[0].bus", "spec.disks[1]", false},
		{"nics[a.b].mtu", "nics[a.b]", true},
		{"nics[a.b].mtu", "nics[a]", false},
		{"a[", "a", true},
		{"", "a", false},
	} {
		if got := names(c.path, c.field); got != c.want {
			t.Errorf("%q names %q: %t", c.path, c.field, got)
		}
	}
}

// TestFieldOfRequest: what a default is made of makes the arguments too.
func TestFieldOfRequest(t *testing.T) {
	m := machineOf(t, "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: x}\nspec: {domain: {resources: {requests: {memory: 64Mi}}}}\n")
	answer, err := m.Field("resources.requests.memory")
	flags := map[string]bool{}
	for _, a := range answer.Arguments {
		flags[a.Flag] = true
	}
	if err != nil || !flags["-m"] || !flags["-object"] {
		t.Errorf("%v makes %v, %v", answer.Source, slices.Sorted(maps.Keys(flags)), err)
	}
}

// FuzzField: any name is a field or an error.
func FuzzField(f *testing.F) {
	for _, name := range []string{"devices.disks", "disks[root].serial", "spec[", "a[b.c].d", "metadata.labels[a.b/c]", "disks[*]", "disks[-1]", "disks[99999999999999999999]", "...", "]["} {
		f.Add(name)
	}
	set, err := manifest.Read("vm.yaml", strings.NewReader(machineManifest))
	if err != nil {
		f.Fatal(err)
	}
	instances, err := set.Instances()
	if err != nil {
		f.Fatal(err)
	}
	host, err := manifest.ParseHost("kvm")
	if err != nil {
		f.Fatal(err)
	}
	m, err := Of(instances[0], host)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name string) {
		answer, err := m.Field(name)
		if err == nil && len(answer.Arguments) == 0 && answer.Note == "" {
			t.Errorf("%q: nothing is said", name)
		}
	})
}
