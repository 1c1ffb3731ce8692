package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// said is what a run of the command printed, and its exit code.
type said struct {
	out, err string
	code     int
}

func runCommand(t *testing.T, stdin string, args ...string) said {
	t.Helper()
	var out, err bytes.Buffer
	code := run(args, strings.NewReader(stdin), &out, &err)
	return said{out.String(), err.String(), code}
}

// TestRenderSamples: the shipped samples render, each and all together.
func TestRenderSamples(t *testing.T) {
	samples, err := filepath.Glob("../../config/samples/vm*.yaml")
	if err != nil || len(samples) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, sample := range samples {
		if s := runCommand(t, "", "render", "--shell", sample); s.code != 0 || !strings.Contains(s.out, "qemu-system-x86_64 \\\n  -name guest=") {
			t.Errorf("%s: exit code %d, %s\n%s", sample, s.code, s.err, s.out)
		}
	}
	if s := runCommand(t, "", "render", "../../config/samples"); s.code != 0 || strings.Count(s.out, "\n# Virtual") < len(samples)-1 {
		t.Errorf("the folder: exit code %d, %s\n%s", s.code, s.err, s.out)
	}
}

const vm = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: vm, uid: 5d307ca9-b3ef-428c-8861-06e72d69f223}\n" +
	"spec: {running: false, template: {metadata: {creationTimestamp: null, labels: {a: b}}, spec: {domain: {memory: {guest: 64Mi}}}}}\n"

// TestRenderVMAsItsVMI: a VM is rendered as the VMI that it is started as.
func TestRenderVMAsItsVMI(t *testing.T) {
	s := runCommand(t, vm, "render", "-")
	for _, want := range []string{"guest=default_vm", "\n-uuid ", "5d307ca9-b3ef-428c-8861-06e72d69f223", "serial="} {
		if s.code != 0 || !strings.Contains(s.out, want) {
			t.Errorf("exit code %d, %s; want %s in it:\n%s", s.code, s.err, want, s.out)
		}
	}
}

// TestRenderAsJSON: --json and --machine print JSON, one value for each object.
// TestRenderWarnsAsVirtAPIDoes: what the cluster does otherwise than a manifest says is said here too, and the arguments are those of the cluster.
func TestRenderWarnsAsVirtAPIDoes(t *testing.T) {
	const manifest = `{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: rhel}, spec: {runStrategy: Always, template: {spec: {domain: {machine: {type: pc-q35-rhel9.4.0}, memory: {guest: 1Gi}, devices: {}}}}}}`
	s := runCommand(t, manifest, "render", "-")
	if s.code != 0 || !strings.Contains(s.out, "pc-q35-8.2,") || !strings.Contains(s.err, "warning: spec.template.spec.domain.machine.type: pc-q35-rhel9.4.0 runs as pc-q35-8.2") {
		t.Errorf("exit code %d, %s\n%s", s.code, s.err, s.out)
	}
}

func TestRenderAsJSON(t *testing.T) {
	var object rendered
	s := runCommand(t, vm, "render", "--json", "-")
	if err := json.Unmarshal([]byte(s.out), &object); err != nil || object.Object != "VirtualMachine default/vm" || object.File != "-" || object.Args[0] != "-name" {
		t.Errorf("--json: %v, %+v", err, object)
	}
	var machine struct{ Name string }
	s = runCommand(t, vm, "render", "--machine", "-")
	if err := json.Unmarshal([]byte(s.out), &machine); err != nil || machine.Name != "default_vm" {
		t.Errorf("--machine: %v, %+v", err, machine)
	}
	two := runCommand(t, vm+"---\n"+strings.ReplaceAll(vm, "name: vm", "name: other"), "render", "-")
	if two.code != 0 || !strings.HasPrefix(two.out, "# VirtualMachine default/vm\n") || !strings.Contains(two.out, "\n\n# VirtualMachine default/other\n") {
		t.Errorf("two: %+v", two)
	}
}

// TestRenderGolden: with the host's facts, the command prints the golden.
func TestRenderGolden(t *testing.T) {
	dir := "../../qemuargs/resolve/testdata/machines/minimal/"
	want, err := os.ReadFile(dir + "11.1.args")
	if err != nil {
		t.Fatal(err)
	}
	if s := runCommand(t, "", "render", "--shell", "--host", dir+"../../hosts/11.1.yaml", dir+"vmi.yaml"); s.code != 0 || s.out != string(want) {
		t.Errorf("exit code %d, %s\n%s", s.code, s.err, s.out)
	}
}

// TestRenderRefuses: an error names file, line, object and field, and nothing is printed.
func TestRenderRefuses(t *testing.T) {
	const head = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: bad}\n"
	for name, c := range map[string]struct{ manifest, want string }{
		"unknown field":   {head + "spec:\n  domain:\n    memory:\n      guest: 64Mi\n      gest: 1\n", `-:8: VirtualMachineInstance "bad": unknown field "spec.domain.memory.gest"`},
		"no memory":       {head + "spec:\n  domain: {devices: {autoattachPodInterface: false}}\n", `-:5: VirtualMachineInstance "bad": spec.domain.memory.guest: Required value`},
		"not supported":   {head + "spec:\n  domain:\n    memory: {guest: 64Mi}\n    devices:\n      downwardMetrics: {}\n", `-:8: VirtualMachineInstance "bad": spec.domain.devices.downwardMetrics`},
		"another kind":    {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n", "there is no VirtualMachineInstance"},
		"VM's template":   {"---\n# of the team\napiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: bad}\nspec:\n  running: true\n  template: {spec: {domain: {}}}\n", `-:8: VirtualMachine "bad": spec.template.spec.domain.memory.guest`},
		"not YAML at all": {"{", "-:1: document: is no YAML of an object"},
		"a List":          {"apiVersion: v2\nkind: List\nitems: []\n", `-:3: List "": a List within`},
		"no kind":         {"apiVersion: kubevirt.io/v1\nkind: VirtualMachin\nmetadata: {name: typo}\n---\n" + vm, `-:2: VirtualMachin "typo": the group kubevirt.io has no kind "VirtualMachin": want one of KubeVirt, VirtualMachine,`},
		"a template":      {"{{- if .Values.vm }}\n" + vm + "{{- end }}\n", "it looks like a template: render it first, as in: helm template"},
		"an old version":  {"apiVersion: kubevirt.io/v1alpha2\nkind: VirtualMachine\nmetadata: {name: old}\n", `-:1: VirtualMachine "old": the version kubevirt.io/v1alpha2 is not supported`},
		"no instancetype": {vm + "  \n---\n" + strings.Replace(vm, "spec: {", "spec: {instancetype: {name: big}, ", 1), `-:10: VirtualMachine "vm": VirtualMachineClusterInstancetype "big" is not among the manifests: name its file too`},
		"a known size":    {vm + "  \n---\n" + strings.Replace(vm, "spec: {", "spec: {instancetype: {name: u1.small}, ", 1), `"u1.small" is not among the manifests: name its file too, with -f config/instancetypes/objects.yaml`},
	} {
		t.Run(name, func(t *testing.T) {
			if s := runCommand(t, c.manifest, "render", "-"); s.code != exitInvalid || !strings.Contains(s.err, c.want) || s.out != "" {
				t.Errorf("%+v, want an error with %q", s, c.want)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"rendre"}, {"render", "--no-such-flag"}, {"render", "--shell", "--json"}, {"golden"}, {"diff", "a"}, {"render", "--host", "none"}, {"render", "--arch", "riscv64"}, {"explain", "--no-such-flag"}} {
		if s := runCommand(t, "", args...); s.code != exitUsage || !strings.Contains(s.err, "--help") {
			t.Errorf("%q: %+v, want usage", args, s)
		}
	}
	for _, command := range []string{"render", "explain", "host", "golden", "diff", "schema", "check", "run"} {
		if s := runCommand(t, "", command, "--help"); s.code != 0 || !strings.Contains(s.out, "Examples:\n  qemuargs "+command) {
			t.Errorf("%s --help: %+v", command, s)
		}
	}
}

// TestGoldenNamesTheChangedDevice: a folder of 30 manifests is recorded; when one field of one of them changes, the
// difference is of that device alone.
func TestGoldenNamesTheChangedDevice(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	disk := func(bus string) string {
		return "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: one}\nspec:\n  domain:\n    memory: {guest: 64Mi}\n    devices: {disks: [{name: data, disk: {bus: " + bus + "}}, {name: more, disk: {}}]}\n" +
			"  volumes: [{name: data, emptyDisk: {capacity: 1Gi}}, {name: more, emptyDisk: {capacity: 1Gi}}]\n"
	}
	write("one.yaml", disk("virtio"))
	for i := range 29 {
		write("vm"+string(rune('a'+i%26))+strings.Repeat("x", i/26)+".yaml", strings.ReplaceAll(vm, "name: vm", "name: vm"+string(rune('a'+i%26))+strings.Repeat("x", i/26)))
	}
	if s := runCommand(t, "", "golden", dir); s.code != exitInvalid || strings.Count(s.out, "is new") != 30 {
		t.Errorf("before there is a golden: %+v", s)
	}
	if s := runCommand(t, "", "golden", "--update", dir); s.code != 0 || strings.Count(s.out, "wrote ") != 30 {
		t.Errorf("the first update: %+v", s)
	}
	if s := runCommand(t, "", "golden", dir); s.code != 0 || s.out != "" {
		t.Errorf("nothing has changed: %+v", s)
	}
	write("one.yaml", strings.Replace(disk("virtio"), "{name: more, disk: {}}", "{name: more, serial: abc, disk: {}}", 1))
	s := runCommand(t, "", "golden", dir)
	if s.code != exitInvalid || strings.Count(s.out, "disk more (the guest sees it)") != 1 || strings.Count(s.out, "\n") != 4 || !strings.Contains(s.out, "    ~ -device disk-more\n        serial: unset → \"abc\"\n") {
		t.Errorf("a changed disk: %+v", s)
	}
	if err := os.Remove(filepath.Join(dir, "vma.yaml")); err != nil {
		t.Fatal(err)
	}
	if s := runCommand(t, "", "golden", dir); !strings.Contains(s.out, "VirtualMachine default/vma\n  is gone") {
		t.Errorf("a manifest that is gone: %+v", s)
	}
	if s := runCommand(t, "", "golden", "--update", dir); s.code != 0 || strings.Count(s.out, "wrote ") != 1 || strings.Count(s.out, "removed ") != 1 {
		t.Errorf("the second update: %+v", s)
	}
	if _, err := os.Stat(filepath.Join(dir, "vma.args")); !os.IsNotExist(err) {
		t.Errorf("the golden of no manifest: %v", err)
	}
}

// TestDiffOfTwoHosts: two hosts differ by what the release of QEMU brings.
func TestDiffOfTwoHosts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "vm.yaml")
	if err := os.WriteFile(file, []byte(vm), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := runCommand(t, "", "diff", file, file); s.code != 0 || s.out != "" {
		t.Errorf("the same: %+v", s)
	}
	s := runCommand(t, "", "diff", "--host", "kvm-7.2", "--to", "kvm-11.1", file, file)
	for _, want := range []string{"machine (the guest sees it)", "- -machine pc-q35-7.2", "+ -machine pc-q35-11.1", "monitor (the host alone)"} {
		if s.code != exitInvalid || !strings.Contains(s.out, want) {
			t.Errorf("want %q in %+v", want, s)
		}
	}
}

// TestGoldenFolders: a folder behind a link is a folder, one without manifests is an error, and
// files of others stay.
func TestGoldenFolders(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"real/vm.yaml": vm, "real/jvm.args": "# JVM options\n-Xmx1g\n", "empty/notes.txt": ""} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	if s := runCommand(t, "", "golden", "--update", link); s.code != 0 || s.out != "wrote "+filepath.Join(link, "vm.args")+"\n" {
		t.Errorf("behind a link: %+v", s)
	}
	if _, err := os.Stat(filepath.Join(dir, "real/jvm.args")); err != nil {
		t.Error(err)
	}
	if s := runCommand(t, "", "golden", filepath.Join(dir, "empty")); s.code != exitInvalid || !strings.Contains(s.err, "there is no VirtualMachineInstance") {
		t.Errorf("an empty folder: %+v", s)
	}
}

// TestRenderDocumentOnSeparatorLine: a document may begin on the separator's line.
func TestRenderDocumentOnSeparatorLine(t *testing.T) {
	other := strings.ReplaceAll(vm, "name: vm", "name: other")
	for _, separator := range []string{"---\n", "--- # next\n", "--- !!map\n", "---\t\n"} {
		if s := runCommand(t, vm+separator+other, "render", "-"); s.code != 0 || strings.Count(s.out, "# VirtualMachine ") != 2 {
			t.Errorf("%q: %+v", separator, s)
		}
	}
}

// TestManualPagesHaveExamples: each command has a manual page, with its examples.
func TestManualPagesHaveExamples(t *testing.T) {
	dir := t.TempDir()
	if s := runCommand(t, "", "man", dir); s.code != 0 {
		t.Fatalf("exit code %d, %s", s.code, s.err)
	}
	for _, c := range newCommand().Commands() {
		if c.Hidden {
			continue
		}
		page, err := os.ReadFile(filepath.Join(dir, "qemuargs-"+c.Name()+".1"))
		if err != nil || !strings.Contains(string(page), ".SH EXAMPLE") {
			t.Errorf("%s: %v; want examples:\n%s", c.Name(), err, page)
		}
	}
	if s := runCommand(t, "", "man", filepath.Join(dir, "none")); s.code != exitInvalid || !strings.Contains(s.err, "no folder") {
		t.Errorf("a folder that is missing: exit code %d, %s", s.code, s.err)
	}
}

// TestErrorsAreMadePrintable: an error holds no characters that a terminal obeys.
func TestErrorsAreMadePrintable(t *testing.T) {
	if got, want := printable("a\x1b]0;b\x07\r\n\tü\u009b"), "a\ufffd]0;b\ufffd\ufffd\n\tü\ufffd"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
