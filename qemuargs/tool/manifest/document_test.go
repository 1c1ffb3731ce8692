package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestLineOfAField: a field's line, or that of the nearest field above it.
func TestLineOfAField(t *testing.T) {
	const text = `# of the team
---
kind: A
---
# a comment
kind: B
metadata: {name: b, labels: {a.b/c: x}}
spec:
  disks:
  - name: one
    disk:
      bus: virtio
  - name: two
`
	set, err := Read("x.yaml", strings.NewReader(text))
	if err != nil || len(set) != 2 || set[0].line != 3 {
		t.Fatalf("%d documents, %v", len(set), err)
	}
	for path, want := range map[string]int{
		"": 6, "kind": 6, "metadata.labels[a.b/c]": 7, "spec": 8, "spec.disks": 9, "spec.disks[0]": 10, "spec.disks[0].disk.bus": 12,
		"spec.disks[1].name": 13, "spec.disks[1].disk.bus": 13, "spec.disks[7]": 9, "spec.none.at.all": 8,
	} {
		if got := set[1].Line(path); got != want {
			t.Errorf("%s is on line %d, want %d", path, got, want)
		}
	}
}

// TestOpenFolder: of a folder the manifests are read, those of other kinds among them, in order.
func TestOpenFolder(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b.yaml": "kind: B", "a/x.json": `{"kind": "X"}`, "c.yml": "kind: C\n---\nkind: D\n---\n\n", "notes.txt": "{", "c.args": "{"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	set, err := Open([]string{dir, Stdin}, strings.NewReader("kind: Z"))
	var kinds []string
	for _, d := range set {
		kinds = append(kinds, d.Kind)
	}
	if err != nil || !slices.Equal(kinds, []string{"X", "B", "C", "D", "Z"}) {
		t.Errorf("%v, %v", kinds, err)
	}
	pipes := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(pipes, "a.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, names := range [][]string{{filepath.Join(dir, "none.yaml")}, {Stdin}, {pipes}} {
		if _, err := Open(names, nil); err == nil {
			t.Errorf("%v could be read", names)
		}
	}
}

// TestOpenConfigMap: kubelet's folders behind the files of a ConfigMap are not read again.
func TestOpenConfigMap(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "..2026_11_01")
	if err := errors.Join(os.Mkdir(data, 0o755), os.WriteFile(filepath.Join(data, "a.yaml"), []byte("kind: A"), 0o600),
		os.Symlink("..2026_11_01", filepath.Join(dir, "..data")), os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml"))); err != nil {
		t.Fatal(err)
	}
	if set, err := Open([]string{dir}, nil); err != nil || len(set) != 1 {
		t.Errorf("%d documents, %v", len(set), err)
	}
	t.Chdir(data)
	if set, err := Open([]string{"../..2026_11_01"}, nil); err != nil || len(set) != 1 {
		t.Errorf("the folder itself: %d documents, %v", len(set), err)
	}
}

// TestErrorsNameLineObjectAndField: an error names the line of the file, the object and the field.
func TestErrorsNameLineObjectAndField(t *testing.T) {
	const head = "%YAML 1.2\n---\nkind: Other\n---\napiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n"
	for text, want := range map[string]string{
		head + "metadata: {name: a}\nspec:\n  domain:\n    cpu: {cores: many}\n":                                       `x.yaml:10: VirtualMachineInstance "a": spec.domain.cpu.cores: Invalid value: string, want uint32`,
		head + "metadata: {name: a}\nspec:\n  domain:\n    memory:\n      guest: much\n":                               `x.yaml:11: VirtualMachineInstance "a": spec.domain.memory.guest: Invalid value: quantities must match`,
		head + "metadata: {name: a}\nspec:\n  domain:\n    devices:\n      disks:\n      - name: x\n        dsk: {}\n": `x.yaml:13: VirtualMachineInstance "a": unknown field "spec.domain.devices.disks[0].dsk"`,
		head + "metadata: {name: a}\nspec:\n  domain: {}\n  domain: {}\n":                                              `line 10: key "domain" already set in map`,
		head + "metadata: {name: a}\nspec:\n  domain:\n   x: 1\n  - y\n":                                               `yaml: line 10: did not find expected key`,
		head + "metadata: {generateName: a-}\nspec: {domain: {memory: {guest: 64Mi}}}\n":                               `x.yaml:7: VirtualMachineInstance "": metadata.name: Required value: `,
		head + "metadata: {name: \"a\\n-S\"}\nspec: {domain: {memory: {guest: 64Mi}}}\n":                               `metadata.name: Invalid value: "a\n-S": `,
		head + "metadata: {name: a, namespace: x/y}\nspec: {domain: {memory: {guest: 64Mi}}}\n":                        `x.yaml:7: VirtualMachineInstance "a": metadata.namespace: Invalid value: "x/y": `,
	} {
		set, err := Read("x.yaml", strings.NewReader(text))
		if err == nil {
			_, err = set.Instances()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
}

// TestErrorsAreBounded: each error is looked up in the text, which takes time. (The decoder itself ends at 100.)
func TestErrorsAreBounded(t *testing.T) {
	const head = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: a}\nspec:\n  domain: {memory: {guest: 64Mi}}\n"
	var text strings.Builder
	text.WriteString(head)
	for n := range 1000 {
		fmt.Fprintf(&text, "  unknown%d: 1\n", n)
	}
	set, err := Read("x.yaml", strings.NewReader(text.String()))
	if err == nil {
		_, err = set.Instances()
	}
	if err == nil || strings.Count(err.Error(), "\n") != maxProblems || !strings.Contains(err.Error(), "errors more") {
		t.Errorf("%.4000v", err)
	}
}

// TestCulpritOfLongList: a bad quantity is found at the end of a long list, after a few decodings.
func TestCulpritOfLongList(t *testing.T) {
	var text strings.Builder
	text.WriteString("apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: a}\nspec:\n  domain: {memory: {guest: 64Mi}}\n  volumes:\n")
	for n := range 4999 {
		fmt.Fprintf(&text, "  - {name: v%d, emptyDisk: {capacity: 1Mi}}\n", n)
	}
	text.WriteString("  - {name: bad, emptyDisk: {capacity: much}}\n")
	set, err := Read("x.yaml", strings.NewReader(text.String()))
	if err == nil {
		_, err = set.Instances()
	}
	if want := "x.yaml:5006: VirtualMachineInstance \"a\": spec.volumes[4999].emptyDisk.capacity: "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%.500v", err)
	}
}

// TestCulpritIsBounded: the budget ends the search.
func TestCulpritIsBounded(t *testing.T) {
	text := []byte(`{"spec":{"domain":{"memory":{"guest":"much"}}}}`)
	into := &v1.VirtualMachineInstance{}
	cause := json.Unmarshal(text, into)
	c := newCulprit(text, into, cause)
	if path := c.path(); path != "spec.domain.memory.guest" {
		t.Errorf("the path is %q", path)
	}
	c.budget = 2 * len(text)
	if path := c.path(); path == "spec.domain.memory.guest" || c.budget < -2*len(text) {
		t.Errorf("the path is %q, after %d bytes too many", path, -c.budget)
	}
}

// TestListOfKubectlIsRead: what kubectl get prints is read, with the lines of the file, and the status is not.
func TestListOfKubectlIsRead(t *testing.T) {
	const vmi = "- apiVersion: kubevirt.io/v1\n  kind: VirtualMachineInstance\n  metadata:\n    name: NAME\n  spec: {domain: {memory: {guest: 64Mi}}}\n  status: {unknown: 1}\n"
	named := func(name string) string { return strings.ReplaceAll(vmi, "NAME", name) }
	for text, want := range map[string]string{
		"# x\n---\napiVersion: v1\nkind: List\nitems:\n" + named("a") + named("b"):                                         "a 9, b 15",
		"apiVersion: v1\nkind: List\nitems: []\n":                                                                          "",
		"apiVersion: v1\nkind: List\nitems:\n" + strings.Replace(named("a"), "64Mi", "much", 1):                            `x.yaml:8: VirtualMachineInstance "a": spec.domain.memory.guest: Invalid value`,
		"apiVersion: v1\nkind: List\nitems: {}\n":                                                                          `x.yaml:3: List "": items: Invalid value`,
		"apiVersion: v1\nkind: List\nitems: [1]\n":                                                                         `x.yaml:3: List "": items[0]: Invalid value`,
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: List}\n":                                             "a List within",
		"apiVersion: v1\nkind: List\nitems: [*a]\n":                                                                        "is no YAML",
		"apiVersion: v1\nkind: List\nitems:\n- {kind: A, kind: B}\n":                                                       `key "kind" already set`,
		strings.TrimPrefix(strings.ReplaceAll(named("a"), "\n  ", "\n"), "- "):                                             "a 4",
		strings.Replace(strings.TrimPrefix(strings.ReplaceAll(named("a"), "\n  ", "\n"), "- "), "status:", "statuses:", 1): `unknown field "statuses"`,
	} {
		set, err := Read("x.yaml", strings.NewReader(text))
		var instances []Instance
		if err == nil {
			instances, err = set.Instances()
		}
		var got []string
		for _, i := range instances {
			o, _ := i.Lineage().Of("metadata.name")
			got = append(got, fmt.Sprintf("%s %d", i.Name, o.Line))
		}
		if err != nil && (want == "" || !strings.Contains(err.Error(), want)) || err == nil && strings.Join(got, ", ") != want {
			t.Errorf("%s\ngot  %v, %v\nwant %s", text, got, err, want)
		}
	}
}

// TestInstancetypeOfNamespace: an instancetype is that of the VM's namespace.
func TestInstancetypeOfNamespace(t *testing.T) {
	const vm = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: a, namespace: blue}\n" +
		"spec: {runStrategy: Halted, instancetype: {name: small, kind: KIND}, template: {spec: {domain: {devices: {}}}}}\n---\n"
	const size = "apiVersion: instancetype.kubevirt.io/v1beta1\nkind: KIND\nmetadata: {name: small, namespace: SPACE}\nspec: {cpu: {guest: 1}, memory: {guest: MEMORY}}\n---\n"
	for _, c := range []struct {
		kind, spaces string
		want         int64 // MiB; 0 for an error
	}{
		{"VirtualMachineInstancetype", "green", 0},
		{"VirtualMachineInstancetype", "green blue", 128},
		{"VirtualMachineClusterInstancetype", "green", 64},
	} {
		text := vm
		for i, space := range strings.Fields(c.spaces) {
			text += strings.NewReplacer("SPACE", space, "MEMORY", fmt.Sprintf("%dMi", 64<<i)).Replace(size)
		}
		set, err := Read("x.yaml", strings.NewReader(strings.ReplaceAll(text, "KIND", c.kind)))
		if err != nil {
			t.Fatal(err)
		}
		found, err := set.Instances()
		if (err != nil) != (c.want == 0) || err == nil && found[0].Spec.Domain.Memory.Guest.Value() != c.want<<20 {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestInstancesSayAllErrorsAtOnce: all that is wrong is said at once, each with its place.
func TestInstancesSayAllErrorsAtOnce(t *testing.T) {
	const text = `apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: good}
spec: {domain: {memory: {guest: 64Mi}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: sized}
spec:
  runStrategy: Always
  instancetype: {name: small, kind: VirtualMachineInstancetype}
  template: {spec: {domain: {memory: {guest: 1Gi}}}}
---
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachineInstancetype
metadata: {name: small}
spec: {cpu: {guest: 1}, memory: {guest: 64Mi}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceReplicaSet
metadata: {name: set}
spec:
  replicas: -1
  template: {spec: {domain: {memory: {guest: 64Mi}}}}
---
apiVersion: v1
kind: Service
`
	set, err := Read("x.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	found, err := set.Instances()
	if len(found) != 1 || found[0].Name != "good" || found[0].Namespace != "default" || found[0].UID != UID {
		t.Errorf("found %+v", found)
	}
	var problem *Error
	if !errors.As(err, &problem) || problem.Line != 12 || problem.Object != `VirtualMachine "sized"` {
		t.Errorf("the first error: %+v", problem)
	}
	for _, want := range []string{`x.yaml:12: VirtualMachine "sized": spec.template.spec.domain.memory`, `x.yaml:23: VirtualMachineInstanceReplicaSet "set": spec.replicas`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %q in it", err, want)
		}
	}
}

func TestParseHost(t *testing.T) {
	for name, want := range map[string]string{"kvm": "kvm 11.1.3", "tcg": "tcg 11.1.3", "tcg-7.2": "tcg 7.2"} {
		if h, err := ParseHost(name); err != nil || string(h.preset.Accelerator)+" "+h.preset.QEMUVersion != want || h.String() != name {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
	file := filepath.Join(t.TempDir(), "host.yaml")
	for text, good := range map[string]bool{"accelerator: kvm\nqemuVersion: \"10.0\"\n": true, "speed: 1\n": false, "[": false,
		"accelerator: foo\nqemuVersion: \"10.0\"\n": false, "accelerator: kvm\n": false, "accelerator: tcg\nqemuVersion: \"7.1\"\n": false, "# " + strings.Repeat("x", maxDocument): false} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ParseHost(file); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, name := range []string{"kvm-99", "tcg-0.1", "kvm-", "kvm-7.1.9", "kvm-11.x", "kvm-9999999999999999999.1", "tcg-8.0.1.1", filepath.Dir(file), "/dev/zero"} {
		if _, err := ParseHost(name); err == nil {
			t.Errorf("%s is a host", name)
		}
	}
	if _, err := ParseHost("xen"); err == nil || !strings.Contains(err.Error(), "no preset") {
		t.Errorf("xen: %v", err)
	}
}

// FuzzRead: whatever the input, it is read into VMIs that render, or into an error with a place.
func FuzzRead(f *testing.F) {
	samples, err := filepath.Glob("../../../config/samples/*.yaml")
	if err != nil || len(samples) == 0 {
		f.Fatalf("no samples: %v", err)
	}
	for _, sample := range samples {
		text, err := os.ReadFile(sample)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("---\n--- # x\n{")
	f.Add("x: &x {items: [{kind: A}]}\n<<: *x\napiVersion: v1\nkind: List\n")
	f.Add("apiVersion: v1\nkind: List\nitems:\n- {kind: VirtualMachineInstance, apiVersion: kubevirt.io/v1, metadata: {name: a}, spec: {domain: {}}}\n")
	f.Add("a: &a [*a]\nkind: VirtualMachine\napiVersion: kubevirt.io/v1\n")
	host, err := ParseHost(DefaultHost)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := Read("x.yaml", strings.NewReader(text))
		if err != nil {
			return
		}
		instances, err := set.Instances()
		var problem *Error
		if err != nil && (!errors.As(err, &problem) || problem.Line < 1 || problem.Line > strings.Count(text, "\n")+1) {
			t.Errorf("no place: %+v in %v", problem, err)
		}
		for _, i := range instances {
			m, err := i.Machine(host)
			if err == nil && len(m.Args()) == 0 || err != nil && !errors.As(err, &problem) {
				t.Errorf("%v: %v", m, err)
			}
		}
	})
}

// TestOlderVersionMakesTheSameMachine: an object of an older version makes the same machine.
func TestOlderVersionMakesTheSameMachine(t *testing.T) {
	const vm = "kind: VirtualMachine\nmetadata: {name: vm}\nspec: {runStrategy: Always, template: {spec: {domain: {memory: {guest: 128Mi}, devices: {}}}}}\n"
	var machines []*qemuargs.Machine
	for _, version := range []string{"kubevirt.io/v1alpha3", "kubevirt.io/v1"} {
		set, err := Open([]string{Stdin}, strings.NewReader("apiVersion: "+version+"\n"+vm))
		if err != nil {
			t.Fatal(err)
		}
		instances, err := set.Instances()
		if err != nil || len(instances) != 1 {
			t.Fatalf("%s: %d machines (%v)", version, len(instances), err)
		}
		host, err := ParseHost(DefaultHost)
		if err != nil {
			t.Fatal(err)
		}
		m, err := instances[0].Machine(host)
		if err != nil {
			t.Fatal(err)
		}
		machines = append(machines, m)
	}
	if diff := cmp.Diff(machines[1], machines[0]); diff != "" {
		t.Errorf("-v1 +v1alpha3:\n%s", diff)
	}
}
