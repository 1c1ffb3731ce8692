package explain

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// guestOf returns the manifest of a guest with some disks, and with fields of its spec besides.
func guestOf(fields string, disks ...string) string {
	text := `apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: x, annotations: {kubevirt.io/disablePCIHole64: "true"}}
spec:
` + fields + `  domain:
    memory: {guest: 1Gi}
    clock: {timer: {pit: {tickPolicy: delay}}}
    devices:
      disks:
`
	for _, name := range disks {
		text += fmt.Sprintf("      - {name: %s, disk: {bus: scsi}}\n", name)
	}
	text += "  volumes:\n"
	for _, name := range disks {
		text += fmt.Sprintf("  - {name: %s, emptyDisk: {capacity: 1Gi}}\n", name)
	}
	return text
}

// numbered returns names of disks.
func numbered(count int) (names []string) {
	for n := range count {
		names = append(names, fmt.Sprint("d", n))
	}
	return names
}

// sourcesOf returns the fields of all sources of an argument and of its properties.
func sourcesOf(m *Machine, argument string) (fields []string) {
	for _, a := range m.Arguments {
		if a.Flag+" "+a.ID != argument {
			continue
		}
		reasons := []Reason{a.Reason}
		for _, p := range a.Properties {
			reasons = append(reasons, p.Reason)
		}
		for _, r := range reasons {
			for _, s := range r.Sources {
				fields = append(fields, s.Field)
			}
		}
	}
	return fields
}

// TestNamesThatAreWithinOthers: each disk is there for its own name, whatever other names have that name within them.
func TestNamesThatAreWithinOthers(t *testing.T) {
	names := []string{"a", "a-z", "data-z", "other", "otherz"}
	m := machineOf(t, guestOf("", names...))
	for n, name := range names {
		own := fmt.Sprintf("spec.domain.devices.disks[%d].name", n)
		for _, property := range []string{"there", "id", "drive", "device_id"} {
			if !hasSource(m, "-device disk-"+name, property, own) {
				t.Errorf("%s of disk %s does not name %s", property, name, own)
			}
		}
		for _, field := range sourcesOf(m, "-device disk-"+name) {
			if strings.HasSuffix(field, ".name") && field != own {
				t.Errorf("disk %s names %s", name, field)
			}
		}
	}
}

// TestOneNameOfTwoKinds: a disk and an interface of one name are each there for their own.
func TestOneNameOfTwoKinds(t *testing.T) {
	text := guestOf("  networks: [{name: a, pod: {}}]\n", "a")
	m := machineOf(t, strings.Replace(text, "devices:", "devices:\n      interfaces: [{name: a, masquerade: {}}]", 1))
	const disk, nic = "spec.domain.devices.disks[0].name", "spec.domain.devices.interfaces[0].name"
	if fields := sourcesOf(m, "-device nic-a"); !slices.Contains(fields, nic) || slices.Contains(fields, disk) {
		t.Errorf("the interface is there for %q", fields)
	}
	if fields := sourcesOf(m, "-device disk-a"); !slices.Contains(fields, disk) || slices.Contains(fields, nic) {
		t.Errorf("the disk is there for %q", fields)
	}
}

// TestWhatIsNoSource: what only moves with a change is not made by what changes.
func TestWhatIsNoSource(t *testing.T) {
	with := func(changes ...string) *Machine {
		return machineOf(t, strings.NewReplacer(changes...).Replace(guestOf("", "a")))
	}
	m := with()
	for _, a := range m.Arguments {
		for _, p := range a.Properties {
			if strings.Contains(p.Name, "pci-hole64") || strings.Contains(p.Name, "lost_tick") {
				if p.Reason.makes("spec.domain.features.acpi.enabled") {
					t.Errorf("%s names acpi", a.Text)
				}
			}
		}
	}
	// Without its disk a volume would get another one, which is on bus sata.
	m = with("{bus: scsi}", "{bus: scsi}, blockSize: {custom: {logical: 4096, physical: 4096}}")
	for _, field := range []string{"spec.domain.devices.disks", "spec.domain.devices"} {
		if hasSource(m, "-machine", "sata", field) {
			t.Error("sata names", field)
		}
	}
	m = with("disk: {bus: scsi}", "cdrom: {}", "emptyDisk: {capacity: 1Gi}", "cloudInitNoCloud: {userData: x}")
	if hasSource(m, "-blockdev disk-a", "read-only", "spec.domain.devices.disks[0].name") {
		t.Error("read-only names the disk's name")
	}
	// An object that is set says more than a field of it that is not.
	m = with("devices:", "devices:\n      tpm: {persistent: true}")
	if !hasSource(m, "-device tpm0", "there", "spec.domain.devices.tpm") {
		t.Error("the TPM is not there for spec.domain.devices.tpm")
	}
	m = with("devices:", "features: {hyperv: {evmcs: {enabled: true}}}\n    devices:")
	if answer, err := m.Field("features.hyperv.evmcs"); err != nil || !strings.Contains(fmt.Sprint(answer.Arguments), "{ vmx=on") {
		t.Errorf("evmcs makes %v, %v", answer.Arguments, err)
	}
}

// TestManyEntriesAreToldAsOne: what many entries of a list make names them as one.
func TestManyEntriesAreToldAsOne(t *testing.T) {
	names := numbered(many + 3)
	m := machineOf(t, guestOf("", names...))
	last := "-device disk-" + names[len(names)-1]
	const all, first = "spec.domain.devices.disks[*].disk.bus", "spec.domain.devices.disks[0].disk.bus"
	if !hasSource(m, last, "lun", all) || hasSource(m, last, "lun", first) {
		t.Errorf("%s is there for %q", last, sourcesOf(m, last))
	}
	if answer, err := m.Field("disks[0].disk.bus"); err != nil || len(answer.Arguments) < 2 {
		t.Errorf("the first disk's bus makes %v, %v", answer.Arguments, err)
	}
}

// TestMachineThatIsTooLarge: what is in no list is tried first, and the answer says that not all was.
func TestMachineThatIsTooLarge(t *testing.T) {
	if machineOf(t, guestOf("", "a")).Untried {
		t.Error("a small machine was not tried")
	}
	i := instanceIn(t, guestOf("", numbered(30)...))
	m, err := of(i, hostOf(t, "kvm"), 1300<<10)
	if err != nil || !m.Untried {
		t.Fatalf("all of it was tried: %v", err)
	}
	for _, want := range []struct{ of, property, source string }{
		{"-m", "size", "spec.domain.memory.guest"}, {"-accel", "", "host.accelerator"},
		{"-machine", "", "host.qemuVersion"},
	} {
		if !hasSource(m, want.of, want.property, want.source) {
			t.Errorf("%s does not name %s", want.of, want.source)
		}
	}
	var out strings.Builder
	if err := m.Write(&out, nil); err != nil || !strings.Contains(out.String(), tooLarge) {
		t.Errorf("%v: %.200s", err, out.String())
	}
	if answer, err := m.Field("volumes[29].emptyDisk"); err != nil || !strings.Contains(answer.Note, tooLarge) {
		t.Errorf("%+v, %v", answer, err)
	}
}
