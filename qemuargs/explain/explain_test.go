package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	sigsyaml "sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/compare"
	"github.com/kubeqemu/kubeqemu/qemuargs/manifest"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// The catalogue is the goldens of package resolve.
const catalogue = "../resolve/testdata/machines/*"

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

// instanceOf is the VMI of a manifest. ok is false where the manifest is invalid.
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

// explained explains an example, or a change of it. ok is false where that is invalid.
func explained(t *testing.T, tree map[string]any, host manifest.Host, depth depth) (m *Machine, ok bool) {
	t.Helper()
	i, ok := instanceOf(t, tree)
	if !ok {
		return nil, false
	}
	m, err := of(i, host, depth)
	return m, err == nil
}

// TestNothingIsWithoutSource: for every golden of the catalogue, every argument and every
// property has a field, a fact or a rule; and what is explained is the golden.
func TestNothingIsWithoutSource(t *testing.T) {
	for _, release := range releases {
		for _, e := range examples(t, release) {
			m, ok := explained(t, e.tree, manifest.HostOf(e.name, e.host), shallow)
			if !ok {
				t.Fatalf("%s is invalid", e.name)
			}
			if err := m.Check(); err != nil {
				t.Errorf("%s: %v", e.name, err)
			}
			machine, err := m.instance.Machine(manifest.HostOf(e.name, e.host))
			if err != nil {
				t.Fatal(err)
			}
			for n, a := range compare.Arguments(machine.Args()) {
				if m.Arguments[n].Text != string(a) {
					t.Errorf("%s: explained is %s, and QEMU gets %s", e.name, m.Arguments[n].Text, a)
				}
			}
		}
	}
}

// step is a change of one or several leaves of a tree.
type step struct {
	paths []string // what changes
	words string
	tree  map[string]any
	name  string // that gets an x at its end, where a name changes
	// coarse: a whole object goes, which proves nothing about its fields.
	coarse bool
}

// otherTexts are the values that a field can have, by the field's own name.
var otherTexts = map[string][]string{
	"bus": {"virtio", "sata", "scsi", "usb"}, "model": {"virtio", "e1000", "e1000e", "Haswell", "host-model"},
	"type": {"q35", "pc-q35-6.2", "pc-q35-7.2", "vga", "virtio", "bochs", "ramfb"}, "action": {"reset", "poweroff", "shutdown"},
	"tickPolicy": {"delay", "discard", "catchup"}, "track": {"guest", "wall"}, "guest": {"256Mi", "4Gi", "8Gi"}, "pageSize": {"2Mi", "1Gi"}, "maxGuest": {"2Gi", "8Gi"}, "memory": {"256Mi", "8Gi"}, "cpu": {"3"},
	"policy": {"require", "disable"}, "timezone": {"America/New_York"}, "uuid": {"5d307ca9-b3ef-428c-8861-06e72d69f223"}, "uid": {"5d307ca9-b3ef-428c-8861-06e72d69f224"}, "macAddress": {"52:54:00:00:00:77"}, "mac": {"0a:58:0a:f4:00:99"},
	"cache": {"none", "writethrough", "writeback"}, "io": {"native", "threads"}, "errorPolicy": {"stop", "ignore", "report", "enospace"},
	"accelerator": {"kvm", "tcg"}, "qemuVersion": {"7.2.22", "8.2.0", "10.1.0", "11.1.3"}, "format": {"raw", "qcow2"},
}

// absent are fields that the catalogue sets seldom or never, which are set in every case.
var absent = map[string]any{
	"spec.domain.devices.autoattachSerialConsole": false, "spec.domain.devices.autoattachMemBalloon": false, "spec.domain.devices.autoattachGraphicsDevice": true,
	"spec.domain.firmware.bootloader.efi": map[string]any{"secureBoot": false}, "spec.domain.features.smm.enabled": true,
	"spec.domain.memory.hugepages": map[string]any{"pageSize": "2Mi"}, "spec.domain.memory.maxGuest": "16Gi", "spec.domain.cpu.maxSockets": 8, "spec.domain.cpu.dedicatedCpuPlacement": true,
	"spec.domain.features.acpi.enabled": false, "spec.domain.devices.networkInterfaceMultiqueue": true, "spec.domain.firmware.serial": "SN-1",
	"spec.domain.devices.video.type": "ramfb", "spec.domain.cpu.threads": 2, "spec.domain.cpu.sockets": 2, "spec.domain.cpu.cores": 4,
	"spec.domain.devices.disks[0].bootOrder": 3, "spec.domain.devices.disks[1].bootOrder": 4, "spec.domain.devices.interfaces[0].bootOrder": 2,
	"spec.domain.devices.interfaces[0].macAddress": "52:54:00:00:00:77", "spec.domain.devices.disks[0].serial": "S1", "spec.domain.devices.disks[1].serial": "S2",
	"spec.domain.devices.disks[0].disk.readonly": true, "spec.domain.devices.disks[1].disk.readonly": true,
	"spec.domain.machine.type": "pc-q35-6.2", "spec.domain.cpu.model": "Haswell", "metadata.namespace": "other",
	"spec.domain.clock.timer.hyperv.present": false, "spec.domain.clock.timer.pit.tickPolicy": "discard", "spec.volumes[0].containerDisk.path": "/x/y.raw",
	"spec.domain.devices.disks[1].cache": "writeback", "spec.domain.devices.disks[1].blockSize.matchVolume.enabled": false,
	"spec.volumes[1].persistentVolumeClaim.readOnly": true, "spec.domain.devices.interfaces[0].model": "e1000",
}

// changesOf are the changes of a tree of JSON.
func changesOf(tree map[string]any) []step {
	var out []step
	add := func(value any, paths ...string) {
		changed, old := any(tree), any(nil)
		for _, path := range paths {
			old, _ = at(tree, steps(path))
			changed = with(changed, steps(path), value)
		}
		if !inTheMiddle.MatchString(paths[0]) {
			out = append(out, step{paths: paths, words: fmt.Sprint(paths, old, value), tree: changed.(map[string]any)})
		}
	}
	leaves := leavesOf(tree)
	named := map[string][]string{}
	for _, path := range slices.Sorted(maps.Keys(leaves)) {
		if strings.HasPrefix(path, "kind") || strings.HasPrefix(path, "apiVersion") {
			continue
		}
		add(nil, path)
		switch v := leaves[path].(type) {
		case bool:
			add(!v, path)
		case float64:
			add(v+1, path)
			add(2*v, path)
		case string:
			add(v+"x", path)
			name := strings.TrimRight(path[strings.LastIndexByte(path, '.')+1:], "]0123456789[")
			for _, text := range otherTexts[name] {
				add(text, path)
			}
			if name == "name" && strings.HasPrefix(path, "spec.") {
				named[v] = append(named[v], path)
			}
		}
	}
	for name, paths := range named {
		add(name+"x", paths...) // a disk and its volume, an interface and its network
		if n := len(out) - 1; n >= 0 && out[n].paths[0] == paths[0] {
			out[n].name = name
		}
	}
	for _, path := range objectsOf(tree) {
		add(nil, path)
		if n := len(out) - 1; n >= 0 && out[n].paths[0] == path {
			out[n].coarse = true
		}
		for old, other := range map[string]string{".bridge": ".masquerade", ".masquerade": ".passtBinding", ".passtBinding": ".masquerade", ".disk": ".cdrom"} {
			if entry, ok := strings.CutSuffix(path, old); ok && !inTheMiddle.MatchString(path) {
				add(nil, path, entry+other)
				last := &out[len(out)-1]
				last.tree = with(last.tree, steps(entry+other), map[string]any{}).(map[string]any)
			}
		}
	}
	if _, isVMI := tree["spec"]; isVMI {
		for _, path := range slices.Sorted(maps.Keys(absent)) {
			add(absent[path], path)
		}
	}
	return out
}

// inTheMiddle are entries of long lists, of which the first and the last are enough.
var inTheMiddle = regexp.MustCompile(`\[([2-5]|[89]|[1-9][0-9])\]`)

var inBrackets = regexp.MustCompile(`\[[^]]*\]`)

// descriptors are the numbers of inherited files, which move whenever a device comes or goes.
var (
	descriptors = regexp.MustCompile(`^((vhost)?fds?|set)$`)
	fdset       = regexp.MustCompile(`/dev/fdset/\d+`)
	inherited   = regexp.MustCompile(`^{"type":"fd","str":"\d+"}$`)
	digits      = regexp.MustCompile(`\d+`)
)

func unnumbered(p Property) string {
	if descriptors.MatchString(p.Name) || inherited.MatchString(p.Value) {
		return digits.ReplaceAllString(p.Value, "N")
	}
	return fdset.ReplaceAllString(p.Value, "/dev/fdset/N")
}

// difference is a property that changes, or an argument that comes or goes, which has no
// property then.
type difference struct {
	key, property string
}

// bare are the arguments without what made them. They have the key that they had before
// something got another name.
func bare(m *qemuargs.Machine, renamed string) []Argument {
	var out []Argument
	before := strings.NewReplacer("["+renamed+"x]", "["+renamed+"]")
	for _, a := range m.Args() {
		argument := Argument{Flag: a.Flag, Text: fmt.Sprint(qemuargs.Strings([]qemuargs.Arg{a})), key: before.Replace(keyOf(a))}
		for _, p := range a.Properties() {
			argument.Properties = append(argument.Properties, Property{Name: p.Name, Value: p.Value})
		}
		out = append(out, argument)
	}
	return out
}

func byKey(all []Argument) map[string]Argument {
	found := map[string]Argument{}
	for _, a := range all {
		if _, twice := found[a.key]; twice {
			panic(a.key + " stands there twice")
		}
		found[a.key] = a
	}
	return found
}

func byName(a Argument) map[string]Property {
	found := map[string]Property{}
	for n, p := range a.Properties {
		name := p.Name
		if a.Flag == "-cpu" && n > 0 {
			name = p.Value
		}
		found[name] = p
	}
	return found
}

func differences(before, after []Argument) []difference {
	var out []difference
	a, b := byKey(before), byKey(after)
	for _, key := range slices.Sorted(maps.Keys(union(a, b))) {
		x, inA := a[key]
		y, inB := b[key]
		if inA != inB {
			out = append(out, difference{key: key})
		} else if x.Text != y.Text {
			old, now := byName(x), byName(y)
			for name := range union(old, now) {
				if unnumbered(old[name]) != unnumbered(now[name]) {
					out = append(out, difference{key, "property " + name})
				}
			}
		}
	}
	return out
}

func union[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// says are the paths of a reason that name a field or fact.
func (r Reason) says(path string, isFact bool) (patterns []string) {
	for _, field := range r.fields {
		if !isFact && (resolve.Names(field, path) || resolve.Names(path, field) && !several(field) && isEmptyObject(r, field)) {
			patterns = append(patterns, field)
		}
	}
	for _, s := range r.Sources {
		if isFact && s.Fact != "" && resolve.Names(s.Fact, path) {
			patterns = append(patterns, "host."+s.Fact)
		}
	}
	return patterns
}

// isEmptyObject says whether the source is an object, which is there or not.
func isEmptyObject(r Reason, field string) bool {
	return slices.ContainsFunc(r.Sources, func(s Source) bool { return s.Field == field && bytes.HasPrefix(s.Value, []byte("{")) })
}

// claimsOf are what the properties say of what made them, with the lists' entries as one.
func claimsOf(m *Machine) map[string]bool {
	out := map[string]bool{}
	for _, a := range m.Arguments {
		for _, p := range a.Properties {
			for _, field := range p.fields {
				out[claim(a.Flag+" "+p.Name, field)] = true
			}
			for _, s := range p.Sources {
				if s.Fact != "" {
					out[claim(a.Flag+" "+p.Name, "host."+s.Fact)] = true
				}
			}
		}
	}
	return out
}

// kindsOf are the kinds of properties that a machine has.
func kindsOf(m *Machine) []string {
	kinds := map[string]bool{}
	for _, a := range m.Arguments {
		for _, p := range a.Properties {
			kinds[a.Flag+" "+p.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(kinds))
}

func claim(what, from string) string {
	if strings.HasPrefix(what, "-cpu ") {
		what = "-cpu "
	}
	return what + " from " + inBrackets.ReplaceAllString(from, "[]")
}

// witness collects which claims a change has shown to be true.
type witness struct {
	claimed, seen map[string]bool
	done          map[string]bool
	only          *regexp.Regexp // fields that are changed, if not all
}

// isNew says whether a change was not seen yet together with one of the kinds of properties: the
// cases have much in common.
func (w *witness) isNew(c step, kinds []string) bool {
	found := false
	for _, kind := range kinds {
		found = found || !w.done[c.words+kind]
		w.done[c.words+kind] = true
	}
	return found
}

// named says whether a machine's explanation of a difference names what a change was of, and
// marks what it claims as seen.
func (w *witness) named(m *Machine, d difference, c step, isFact bool) bool {
	a, ok := byKey(m.Arguments)[d.key]
	if !ok {
		return false
	}
	reasons := map[string]Reason{"": a.Reason}
	for name, p := range byName(a) {
		reasons["property "+name] = p.Reason
	}
	named := false
	for name, r := range reasons {
		if d.property != "" && d.property != name {
			continue
		}
		for _, path := range c.paths {
			// A fact of the host is known by the name of what it is about.
			named = named || name == d.property && c.name != "" && slices.ContainsFunc(r.Sources, func(s Source) bool { return strings.Contains(s.Fact, "["+c.name+"]") })
			for _, pattern := range r.says(path, isFact) {
				named = named || name == d.property
				if !c.coarse {
					w.seen[claim(a.Flag+" "+strings.TrimPrefix(name, "property "), pattern)] = true
				}
			}
		}
	}
	return named
}

// change is a machine that a change makes, and its explanation.
type change struct {
	machine *qemuargs.Machine
	explain func(depth) *Machine
}

// watch changes a tree, and holds what changes of the arguments against what the explanation
// says. make makes the machine of a tree, and returns nil where the tree is invalid.
func (w *witness) watch(t *testing.T, name string, before *Machine, tree map[string]any, isFact bool, make func(tree map[string]any) *change) {
	t.Helper()
	maps.Copy(w.claimed, claimsOf(before))
	kinds := kindsOf(before)
	for _, c := range changesOf(tree) {
		if w.only != nil && !w.only.MatchString(c.paths[0]) || !w.isNew(c, kinds) {
			continue
		}
		if slices.Contains(c.paths, "spec.architecture") {
			continue // of another architecture the guest has another board, and nothing of it is the same
		}
		made := make(c.tree)
		if made == nil {
			continue
		}
		var after *Machine
		for _, d := range differences(before.Arguments, bare(made.machine, c.name)) {
			if w.named(before, d, c, isFact) {
				continue
			}
			if after == nil {
				after = made.explain(shallow)
			}
			if !w.named(after, d, c, isFact) && !w.named(made.explain(deep), d, c, isFact) {
				t.Errorf("%s: with %s, %s changes of %q, and nothing there names it", name, c.words, d.property, d.key)
			}
		}
	}
}

// notSeen are claims that no change of the catalogue can show.
var notSeen = []*regexp.Regexp{
	// A folder that is named has Debian's files, and the launcher's image has others: no folder's name shows it.
	regexp.MustCompile(`^-blockdev driver from host\.firmwareDir$`),
	// With another architecture nothing is the same.
	regexp.MustCompile(` from spec\.architecture$`),
	// Only a launcher finds out what is in an image.
	regexp.MustCompile(` from spec\.(volumes\[\]\.containerDisk|domain\.firmware\.kernelBoot\.container)\.image$`),
	// What is in a volume is decided about as one: a descriptor, and of what.
	regexp.MustCompile(`^-blockdev (filename|locking) from host\.claims\[\]\.block$`),
	// Several queues are for several CPUs, and the catalogue has those as cores.
	regexp.MustCompile(`^-(device mq|netdev fd) from spec\.domain\.cpu\.(sockets|threads)$`),
	// A card of the node is such a card or none, and its address with a letter more is no address.
	regexp.MustCompile(`^-device (driver|host) from (spec\.domain\.devices\.interfaces\[\]\.sriov|host\.nics\[\]\.device)$`),
	// Another name is that of no plugin.
	regexp.MustCompile(`^-device mac from spec\.domain\.devices\.interfaces\[\]\.binding\.name$`),
	// An input's driver follows whether the input has a PCI address, and not which.
	regexp.MustCompile(`^-device driver from spec\.domain\.devices\.(disks\[\]\.disk|interfaces\[\])\.pciAddress$`),
	// What a virtio card has, it has in both models.
	regexp.MustCompile(`^-device (host|guest|rx|tx)_\w+ from spec\.domain\.devices\.useVirtioTransitional$`),
	// A disk is a LUN or none, and of a LUN alone QEMU knows no write cache.
	regexp.MustCompile(`^-(device|machine) [\w-]+ from spec\.domain\.devices\.disks\[\]\.lun$`),
	regexp.MustCompile(`^-device write-cache from spec\.domain\.devices\.(disks\[\]\.(disk|cdrom)\.bus|useVirtioTransitional)$`),
	// Every host of the catalogue has pods. qemuargs' TestOriginsAreTrue has a host without.
	regexp.MustCompile(`^-netdev (type|(vhost)?fds?|vhost|server|addr) from host\.nics\[\]\.user$`),
	// Each change is tried once, and the bus of a second disk changes where that disk is no disk of files.
	regexp.MustCompile(`^-blockdev (read-only|discard) from spec\.domain\.devices\.disks\[\]\.disk\.bus$`),
	// The changes add a letter to a name, and no CPU feature has such a name.
	regexp.MustCompile(`^-cpu  from spec\.domain\.cpu\.features\[\]\.name$`),
	// With other pages than 2 MiB a guest of two nodes is too small for these changes; and of its fields for the number of CPUs the catalogue has sockets.
	regexp.MustCompile(`^-(numa cpus|object size) from spec\.domain\.(memory\.hugepages\.pageSize|cpu\.cores|cpu\.threads)$`),
	regexp.MustCompile(`^-object size from host\.cpuNodes\[\]$`),
	// The changes leave a list its other items, and a host's CPU has many flags.
	regexp.MustCompile(`^-cpu  from host\.hostModel$`),
	// The changes know no annotations.
	regexp.MustCompile(` from metadata\.annotations\[\]$`),
	// A volume is of one kind, and the fields of others are not in its place.
	regexp.MustCompile(` from spec\.volumes\[\]\.(containerDisk|ephemeral|hostDisk|configMap|secret|downwardAPI|serviceAccount|sysprep)$`),
}

// TestExplanationsAreTrue changes each field of each case of the catalogue, and each fact of its
// host. Whatever changes of the arguments names the field or fact in its explanation; and
// whatever names a field or fact changes with it, in some case.
func TestExplanationsAreTrue(t *testing.T) {
	w := &witness{claimed: map[string]bool{}, seen: map[string]bool{}, done: map[string]bool{}}
	// A preset's facts follow names and paths of the manifest.
	onPreset := &witness{claimed: w.claimed, seen: w.seen, done: map[string]bool{}, only: regexp.MustCompile(`(?i)(name|path)$`)}
	preset, err := manifest.ParseHost("tcg")
	if err != nil {
		t.Fatal(err)
	}
	on := func(host manifest.Host) func(tree map[string]any) *change {
		return func(tree map[string]any) *change {
			vmi := &v1.VirtualMachineInstance{}
			data, err := json.Marshal(tree)
			if err != nil || json.Unmarshal(data, vmi) != nil {
				return nil
			}
			if vmi.Namespace == "" {
				vmi.Namespace = "default"
			}
			if vmi.UID == "" {
				vmi.UID = manifest.UID
			}
			machine, errs := resolve.Machine(vmi, host.Of(manifest.Instance{VirtualMachineInstance: vmi}))
			if len(errs) > 0 {
				return nil
			}
			return &change{machine, func(depth depth) *Machine {
				m, ok := explained(t, tree, host, depth)
				if !ok {
					t.Fatalf("%s is invalid", data)
				}
				return m
			}}
		}
	}
	all := examples(t, "11.1")
	// Guests of arm64 come last: much that can be changed in others would make them invalid, and shows nothing.
	slices.SortStableFunc(all, func(a, b example) int {
		foreign := func(e example) int { return strings.Count(e.name, "arm64") }
		return foreign(a) - foreign(b)
	})
	for _, e := range all {
		host := manifest.HostOf(e.name, e.host)
		before, ok := explained(t, e.tree, host, deep)
		if !ok {
			t.Fatalf("%s is invalid", e.name)
		}
		w.watch(t, e.name, before, e.tree, false, on(host))
		w.watch(t, e.name, before, asTree(t, e.host), true, func(tree map[string]any) *change {
			var other resolve.Host
			data, err := json.Marshal(tree)
			if err != nil || json.Unmarshal(data, &other) != nil {
				return nil
			}
			return changed(t, before.instance, manifest.HostOf(e.name, other))
		})
		if before, ok := explained(t, e.tree, preset, deep); ok {
			onPreset.watch(t, e.name+" on tcg", before, e.tree, false, on(preset))
		}
	}
	for _, c := range slices.Sorted(maps.Keys(w.claimed)) {
		if !w.seen[c] && !slices.ContainsFunc(notSeen, func(r *regexp.Regexp) bool { return r.MatchString(c) }) {
			t.Errorf("nothing shows that it is true: %s", c)
		}
	}
	if len(w.claimed) < 100 {
		t.Errorf("only %d claims", len(w.claimed))
	}
}

func changed(t *testing.T, i manifest.Instance, host manifest.Host) *change {
	machine, err := i.Machine(host)
	if err != nil {
		return nil
	}
	return &change{machine, func(depth depth) *Machine {
		m, err := of(i, host, depth)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}}
}

func asTree(t *testing.T, value any) map[string]any {
	t.Helper()
	data, err := json.Marshal(value)
	var out map[string]any
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// leavesOf are the values of a tree of JSON that hold no others, by their paths.
func leavesOf(tree any) map[string]any {
	out := map[string]any{}
	var walk func(path string, value any)
	walk = func(path string, value any) {
		v := reflect.ValueOf(value)
		switch {
		case v.Kind() == reflect.Map && v.Len() > 0:
			for key, child := range value.(map[string]any) {
				below := "." + key
				if isName := path == "containerDisks" || path == "claims" || path == "nics"; isName {
					below = "[" + key + "]"
				}
				walk(strings.TrimPrefix(path+below, "."), child)
			}
		case v.Kind() == reflect.Slice && v.Len() > 0:
			for n, child := range value.([]any) {
				walk(path+"["+strconv.Itoa(n)+"]", child)
			}
		default:
			out[path] = value
		}
	}
	walk("", tree)
	return out
}

// isBinding matches the bindings of an interface, which are often empty objects.
var isBinding = regexp.MustCompile(`\.(bridge|masquerade|passtBinding)$`)

// objectsOf are the paths of the objects of a VMI that are no entries of lists.
func objectsOf(tree any) []string {
	found := map[string]bool{}
	for path := range leavesOf(tree) {
		for end := range path {
			if path[end] == '.' && path[end-1] != ']' && strings.HasPrefix(path, "spec.") {
				found[path[:end]] = true
			}
		}
		if isBinding.MatchString(path) {
			found[path] = true
		}
	}
	delete(found, "spec")
	return slices.Sorted(maps.Keys(found))
}

// steps splits a.b[0].c into a, b, 0 and c.
func steps(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]", r) })
}

func at(tree any, path []string) (any, bool) {
	for _, s := range path {
		switch v := tree.(type) {
		case map[string]any:
			tree = v[s]
		case []any:
			n, err := strconv.Atoi(s)
			if err != nil || n >= len(v) {
				return nil, false
			}
			tree = v[n]
		}
	}
	return tree, tree != nil
}

// with is a copy of a tree with another value at a path, or without one.
func with(tree any, path []string, value any) any {
	if len(path) == 0 {
		return value
	}
	if list, ok := tree.([]any); ok {
		n, err := strconv.Atoi(path[0])
		if err != nil || n >= len(list) {
			return list
		}
		out := slices.Clone(list)
		out[n] = with(out[n], path[1:], value)
		return out
	}
	if n, err := strconv.Atoi(path[0]); err == nil && n >= 0 {
		return tree // no such list
	}
	object, _ := tree.(map[string]any)
	out := maps.Clone(object)
	if out == nil {
		out = map[string]any{}
	}
	if child := with(out[path[0]], path[1:], value); child == nil {
		delete(out, path[0])
	} else {
		out[path[0]] = child
	}
	return out
}
