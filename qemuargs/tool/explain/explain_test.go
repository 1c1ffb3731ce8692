package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	sigsyaml "sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/compare"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/experiment"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// The catalogue is the goldens of package resolve.
const catalogue = "../../resolve/testdata/machines/*"

var releases = []string{"7.2", "11.1"}

// example is a case of the catalogue on a host.
type example struct {
	name string
	tree map[string]any // the manifest
	host resolve.Host
}

func examples(t *testing.T, release string) []example {
	t.Helper()
	dirs, err := filepath.Glob(catalogue)
	if err != nil || len(dirs) < 50 {
		t.Fatalf("%d cases: %v", len(dirs), err)
	}
	var out []example
	for _, dir := range dirs {
		if exists(filepath.Join(dir, release+".errors")) {
			continue // the host refuses it
		}
		e := example{name: filepath.Base(dir) + " on " + release, tree: map[string]any{}}
		read(t, filepath.Join(dir, "vmi.yaml"), &e.tree)
		read(t, filepath.Join(dir, "../../hosts", release+".yaml"), &e.host)
		if own := filepath.Join(dir, "host.yaml"); exists(own) {
			read(t, own, &e.host)
		}
		out = append(out, e)
	}
	return out
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = sigsyaml.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// instanceOf returns the VMI of a manifest. ok is false where the manifest is invalid.
func instanceOf(t *testing.T, tree map[string]any) (i manifest.Instance, ok bool) {
	t.Helper()
	data, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	set, err := manifest.Read("vmi.yaml", bytes.NewReader(data))
	if err != nil {
		return i, false
	}
	found, err := set.Instances()
	if err != nil || len(found) != 1 {
		return i, false
	}
	return found[0], true
}

// explained explains an example.
func explained(t *testing.T, e example) *Machine {
	t.Helper()
	i, ok := instanceOf(t, e.tree)
	if !ok {
		t.Fatalf("%s is invalid", e.name)
	}
	m, err := Of(i, manifest.HostOf(e.name, e.host))
	if err != nil {
		t.Fatalf("%s: %v", e.name, err)
	}
	return m
}

// telling returns those examples that have a kind of property, or set a field, that none before has.
func telling(t *testing.T) []example {
	t.Helper()
	seen := map[string]bool{}
	var out []example
	for _, release := range []string{"11.1", "7.2"} {
		for _, e := range examples(t, release) {
			known := len(seen)
			for _, o := range observedOf(t, e) {
				for n, p := range o.properties {
					seen[o.arg.Flag+" "+plain(o.properties[0].Value)+" "+propertyKey(o.arg.Flag, n, p)] = true
				}
			}
			for path := range experiment.Leaves(e.tree["spec"]) {
				seen[inBrackets.ReplaceAllString(path, "[]")] = true
			}
			if len(seen) > known {
				out = append(out, e)
			}
		}
	}
	return out
}

// observedOf returns an example's arguments.
func observedOf(t *testing.T, e example) []observed {
	t.Helper()
	i, ok := instanceOf(t, e.tree)
	if !ok {
		t.Fatalf("%s is invalid", e.name)
	}
	machine, err := i.Machine(manifest.HostOf(e.name, e.host))
	if err != nil {
		t.Fatalf("%s: %v", e.name, err)
	}
	return observe(machine, "", "")
}

var inBrackets = regexp.MustCompile(`\[[^]]*\]`)

// TestNothingIsWithoutSource: every argument of the catalogue, and every property of one, has a field, a fact or a
// rule; what is explained is the golden; and each field makes an argument somewhere, or is known
// to make none.
func TestNothingIsWithoutSource(t *testing.T) {
	set, made := map[string]string{}, map[string]bool{}
	for _, e := range telling(t) {
		m := explained(t, e)
		if err := m.Check(); err != nil {
			t.Errorf("%s: %v", e.name, err)
		}
		for n, o := range observedOf(t, e) {
			if want := string(compare.Arguments([]qemuargs.Arg{o.arg})[0]); m.Arguments[n].Text != want {
				t.Errorf("%s: explained is %s, and QEMU gets %s", e.name, m.Arguments[n].Text, want)
			}
		}
		for _, path := range m.lineage.Fields() {
			pattern := inBrackets.ReplaceAllString(path, "[]")
			if value, _ := m.lineage.Of(path); value.Value == "{}" || value.Value == "false" {
				continue // what is off takes arguments away
			}
			why, isElsewhere := elsewhere(path)
			set[pattern] = e.name
			if made[pattern] = made[pattern] || isElsewhere; m.makes(path) {
				made[pattern] = true
				if isElsewhere {
					t.Errorf("%s: %s makes an argument, and is known to make none: %s", e.name, path, why)
				}
			}
		}
	}
	for pattern, example := range set {
		if strings.HasPrefix(pattern, "spec.") && !made[pattern] {
			t.Errorf("%s, which is set in %s, makes no argument anywhere, and is not known to make none", pattern, example)
		}
	}
}

// makes reports whether a field makes an argument of the machine.
func (m *Machine) makes(path string) bool {
	return slices.ContainsFunc(m.Arguments, func(a Argument) bool {
		return a.Reason.makes(path) || slices.ContainsFunc(a.Properties, func(p Property) bool { return p.Reason.makes(path) })
	})
}

// TestEachRuleIsOfSomeArgument: a rule that no argument of the catalogue has, or only after another rule, is about
// nothing.
func TestEachRuleIsOfSomeArgument(t *testing.T) {
	told, seen := map[rule]bool{}, map[string]bool{}
	all := slices.Concat(rules, lastResorts)
	for _, release := range releases {
		for _, e := range examples(t, release) {
			for _, o := range observedOf(t, e) {
				if text := fmt.Sprint(o.arg.Flag, o.properties); seen[text] {
					continue
				} else {
					seen[text] = true
				}
				about := rulesOf(all, o)
				for _, r := range about {
					told[r] = told[r] || r.isAbout("there")
				}
				for _, p := range o.properties {
					if n := slices.IndexFunc(about, func(r rule) bool { return r.tells(p) }); n >= 0 {
						told[about[n]] = true
					}
				}
			}
		}
	}
	for _, r := range all {
		if !told[r] {
			t.Errorf("no argument of the catalogue has the rule of %s %s %s: %s", r.of, r.properties, r.value, r.says)
		}
	}
}

// TestWhatChangesIsTold: a field or a fact is told where the argument changes with it.
func TestWhatChangesIsTold(t *testing.T) {
	for _, tt := range []struct{ example, of, property, source string }{
		{"minimal", "-smp", "cores", "spec.domain.cpu.cores"},
		{"minimal", "-m", "size", "spec.domain.memory.guest"},
		{"minimal", "-accel", "", "host.accelerator"},
		{"minimal", "-machine", "", "spec.domain.machine.type"},
		{"minimal", "-machine", "", "host.qemuVersion"},
		{"minimal", "-name", "guest", "metadata.name"},
		{"minimal", "-uuid", "", "spec.domain.firmware.uuid"},
		{"minimal", "-device disk-root", "driver", "spec.domain.devices.disks[0].disk.bus"},
		{"minimal", "-device disk-root", "num-queues", "spec.domain.cpu.sockets"},
		{"minimal", "-device disk-root", "there", "spec.domain.devices.disks[0].name"},
		{"interface-bridge", "-device disk-root", "bus", "spec.domain.devices.interfaces[0].model"},
		{"minimal", "-device disk-root", "bootindex", "spec.domain.devices.disks[0].bootOrder"},
		{"minimal", "-blockdev disk-root.basefile", "filename", "host.containerDisks[root].path"},
		{"minimal", "-blockdev disk-root.basefile", "there", "spec.domain.devices.disks[0].disk.readonly"},
		{"interface-bridge", "-device nic-default", "mac", "spec.domain.devices.interfaces[0].macAddress"},
		{"interface-bridge", "-device nic-default", "host_mtu", "host.nics[default].mtu"},
		{"minimal", "-device balloon0", "there", "spec.domain.devices.autoattachMemBalloon"},
		{"minimal", "-device serial0", "there", "spec.domain.devices.autoattachSerialConsole"},
	} {
		all := examples(t, "11.1")
		e := all[slices.IndexFunc(all, func(e example) bool { return e.name == tt.example+" on 11.1" })]
		if !hasSource(explained(t, e), tt.of, tt.property, tt.source) {
			t.Errorf("%s: %s of %s does not name %s", tt.example, tt.property, tt.of, tt.source)
		}
	}
}

func hasSource(m *Machine, of, property, source string) bool {
	for _, a := range m.Arguments {
		if strings.TrimSpace(a.Flag+" "+a.ID) != of && a.Flag != of {
			continue
		}
		reasons := map[string]Reason{"there": a.Reason}
		for _, p := range a.Properties {
			reasons[p.Name] = p.Reason
		}
		return slices.ContainsFunc(reasons[property].Sources, func(s Source) bool {
			return s.Field == source || s.Fact != "" && "host."+s.Fact == source
		})
	}
	return false
}

// TestSentencesAreOfWhatTheyStandAt: what is true of most arguments of a kind is not said of the others.
func TestSentencesAreOfWhatTheyStandAt(t *testing.T) {
	for _, tt := range []struct{ example, of, property, says string }{
		{"efi", "-blockdev pflash1.file", "filename", "the launcher's copy of the template"},
		{"efi-persistent", "-blockdev pflash1.file", "filename",
			"a descriptor of what is in a volume: of a device, or of a file that QEMU locks"},
		{"sound-ich9", "-device sound0-codec0", "bus", "the sound card's"},
		{"chassis", "-smbios ", "serial", ""},
		{"chassis", "-smbios ", "manufacturer", ""}, // of the chassis, which is the last
	} {
		all := examples(t, "11.1")
		e := all[slices.IndexFunc(all, func(e example) bool { return e.name == tt.example+" on 11.1" })]
		var says string
		for _, o := range observedOf(t, e) {
			for _, p := range o.properties {
				if o.arg.Flag+" "+o.id() == tt.of && p.Name == tt.property {
					says = strings.Join(ofProperty(rulesOf(rules, o), p), "; ")
				}
			}
		}
		if says != tt.says {
			t.Errorf("%s: of %s of %s it says %q, want %q", tt.example, tt.property, tt.of, says, tt.says)
		}
	}
}

// TestPropertiesAreWhatQEMUGets: the properties of an argument together are the argument.
func TestPropertiesAreWhatQEMUGets(t *testing.T) {
	for _, e := range examples(t, "11.1") {
		for _, o := range observedOf(t, e) {
			var parts []string
			var options qemuargs.Options
			for _, p := range o.properties {
				parts = append(parts, fmt.Sprintf("%q:%s", p.Name, p.Value))
				options = append(options, qemuargs.Option{Key: p.Name, Value: p.Value})
			}
			want := []string{o.arg.Flag, options.String()}
			switch o.arg.Value.(type) {
			case nil:
				want = want[:1]
			case string:
				want[1] = o.properties[0].Value
			case qemuargs.Options:
			default:
				want[1] = "{" + strings.Join(parts, ",") + "}"
			}
			if got := qemuargs.Strings([]qemuargs.Arg{o.arg}); !slices.Equal(got, want) {
				t.Errorf("%s: QEMU gets %q, and its properties are %q", e.name, got, want)
			}
		}
	}
}
