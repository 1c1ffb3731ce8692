package resolve

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// smallest is the case that the others are this one and a feature.
const smallest = "minimal"

// becoming returns the machine of one case, and what it is to become to be the machine of another.
func becoming(t *testing.T, from, to string) (was, next *qemuargs.Machine, errs field.ErrorList) {
	t.Helper()
	vmi, host := load(t, filepath.Join("testdata/machines", from), "11.1")
	other, otherHost := load(t, filepath.Join("testdata/machines", to), "11.1")
	other.ObjectMeta = vmi.ObjectMeta
	was, errs = Machine(vmi, host)
	if len(errs) > 0 {
		return nil, nil, errs
	}
	next, errs = Amend(other, otherHost, was)
	return was, next, errs
}

// summary returns what becomes of a machine, in a line: the parts that change, each with the number of its steps, and
// what needs a restart.
func summary(changes []qemuargs.Change, restart []string) string {
	var parts []string
	for _, c := range changes {
		parts = append(parts, fmt.Sprintf("%s %d", c.Part, len(c.Steps)))
	}
	if len(restart) > 0 {
		parts = append(parts, "restart: "+strings.Join(restart, " "))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// TestWhatBecomesOfEachCase: a golden has, of each case of the catalogue, what the smallest machine does to become it,
// and what it does to become the smallest one. Whatever the changes leave is named.
func TestWhatBecomesOfEachCase(t *testing.T) {
	var table strings.Builder
	for _, dir := range cases(t, machineCases) {
		name := filepath.Base(dir)
		for _, pair := range [][2]string{{smallest, name}, {name, smallest}} {
			was, next, errs := becoming(t, pair[0], pair[1])
			line := ""
			if len(errs) > 0 {
				line = "refused: " + errs.ToAggregate().Error()
			} else {
				changes, restart := qemuargs.Become(was, next, was.Sets())
				line = summary(changes, restart)
				holdsBecome(t, was, next, changes, restart)
			}
			fmt.Fprintf(&table, "%s → %s: %s\n", pair[0], pair[1], line)
		}
	}
	golden.Compare(t, "testdata/become/table.txt", table.String())
}

// holdsBecome checks that a machine that has become another has nothing more to do, and that one that is to become what
// it is has nothing to do.
func holdsBecome(t *testing.T, was, next *qemuargs.Machine, changes []qemuargs.Change, restart []string) {
	t.Helper()
	now := *was
	for _, c := range changes {
		now = now.Apply(c)
	}
	if more, left := qemuargs.Become(&now, next, now.Sets()); len(more) > 0 || !reflect.DeepEqual(left, restart) {
		t.Errorf("%s became %s: there is more to do: %s", was.Name, next.Name, summary(more, left))
	}
	if more, left := qemuargs.Become(next, next, next.Sets()); len(more) > 0 || len(left) > 0 {
		t.Errorf("%s becomes itself by %s", next.Name, summary(more, left))
	}
}

// hands are changes of a machine that no manifest makes yet.
var hands = map[string]func(*qemuargs.Machine){
	"cdrom-empty": func(m *qemuargs.Machine) { m.Disks[1].Image = qemuargs.Image{} },
	"cdrom-other": func(m *qemuargs.Machine) { m.Disks[1].Image.Path += ".other" },
	"link-down":   func(m *qemuargs.Machine) { m.NICs[0].Down = true },
	"cpus": func(m *qemuargs.Machine) {
		m.CPU.Plugged = []qemuargs.PluggedCPU{{ID: "cpu-2-0-0", Socket: 2}, {ID: "cpu-3-0-0", Socket: 3}}
	},
	"memory-places": func(m *qemuargs.Machine) { m.Memory = &qemuargs.MemoryPlaces{MaxBytes: 4 << 30} },
	"memory":        func(m *qemuargs.Machine) { plugMemory(m, 64<<20) },
	"memory-less":   func(m *qemuargs.Machine) { plugMemory(m, 32<<20) },
}

// plugMemory gives a machine a memory device in its first spare port. The guest is to have so many bytes of it.
func plugMemory(m *qemuargs.Machine, bytes int64) {
	spare := slices.IndexFunc(m.RootPorts, func(p qemuargs.RootPort) bool { return p.Spare })
	m.RootPorts[spare].Spare = false
	m.Memory = &qemuargs.MemoryPlaces{MaxBytes: 4 << 30, Devices: []qemuargs.MemoryDevice{{
		ID: "memory-1", Bytes: 128 << 20, BlockBytes: 2 << 20, RequestedBytes: bytes, Address: 4 << 30,
		PCI: qemuargs.PCIAddress{Bus: m.RootPorts[spare].ID}}}}
}

// changedBy returns a case's machine after changes by hand.
func changedBy(t *testing.T, name string, changes ...string) *qemuargs.Machine {
	t.Helper()
	m, errs := Machine(load(t, filepath.Join("testdata/machines", name), "11.1"))
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	for _, change := range changes {
		hands[change](m)
	}
	return m
}

// TestSteps: the steps of each kind of part.
func TestSteps(t *testing.T) {
	for _, pair := range [][2]string{
		{smallest, "disk-virtio"}, {smallest, "disk-scsi"}, {"disk-scsi", smallest}, {smallest, "disk-long-name"},
		{smallest, "volume-claim"}, {"volume-claim", smallest}, {smallest, "interface-masquerade"},
		{"interface-masquerade", smallest}, {smallest, "interface-vhost-multiqueue"}, {smallest, "cdrom-scsi"},
		{smallest, "io-threads-dedicated"}, {smallest, "disk-sata"}, {smallest, "disk-usb"},
	} {
		name := pair[0] + "--" + pair[1]
		t.Run(name, func(t *testing.T) {
			was, next, errs := becoming(t, pair[0], pair[1])
			if len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			compareSteps(t, name, was, next)
		})
	}
	for name, pair := range map[string][2][]string{
		"cdrom-eject":        {{"cdrom-scsi"}, {"cdrom-scsi", "cdrom-empty"}},
		"cdrom-insert":       {{"volume-claim-cdrom", "cdrom-empty"}, {"volume-claim-cdrom"}},
		"cdrom-other-medium": {{"cdrom-sata"}, {"cdrom-sata", "cdrom-other"}},
		"link-down":          {{"interface-masquerade"}, {"interface-masquerade", "link-down"}},
		"cpus":               {{"cpu-max-sockets"}, {"cpu-max-sockets", "cpus"}},
		"memory":             {{smallest, "memory-places"}, {smallest, "memory"}},
		"memory-less":        {{smallest, "memory"}, {smallest, "memory-less"}},
		"memory-gone":        {{smallest, "memory"}, {smallest, "memory-places"}},
	} {
		t.Run(name, func(t *testing.T) {
			compareSteps(t, name, changedBy(t, pair[0][0], pair[0][1:]...), changedBy(t, pair[1][0], pair[1][1:]...))
		})
	}
}

// compareSteps holds the steps from one machine to another against a golden.
func compareSteps(t *testing.T, name string, was, next *qemuargs.Machine) {
	t.Helper()
	var text strings.Builder
	changes, restart := qemuargs.Become(was, next, was.Sets())
	for _, c := range changes {
		fmt.Fprintf(&text, "%s\n", c.Part)
		for _, s := range c.Steps {
			fmt.Fprintf(&text, "  %s\n", s)
		}
	}
	for _, path := range restart {
		fmt.Fprintf(&text, "needs a restart: %s\n", path)
	}
	golden.Compare(t, "testdata/become/"+name+".steps", text.String())
}
