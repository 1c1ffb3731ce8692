package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// folderOf writes files into a folder of a test's own.
func folderOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestFilesAreNamedAlike: every command takes manifests with -f and as arguments, and reads standard input for - alone.
func TestFilesAreNamedAlike(t *testing.T) {
	dir := folderOf(t, map[string]string{"vm.yaml": vm, "vm.args": ""})
	manifest := filepath.Join(dir, "vm.yaml")
	if s := runCommand(t, "", "golden", "--update", manifest); s.code != 0 {
		t.Fatalf("%+v", s)
	}
	for _, command := range []string{"render", "golden", "check", "explain"} {
		bare, flagged := runCommand(t, "", command, manifest), runCommand(t, "", command, "-f", manifest)
		if bare.code != 0 || bare != flagged {
			t.Errorf("%s: %+v with an argument, %+v with -f", command, bare, flagged)
		}
		if s := runCommand(t, vm, command); s.code != exitUsage {
			t.Errorf("%s without a file: %+v, want usage", command, s)
		}
		s := runCommand(t, vm, command, "-")
		if want := map[string]int{"golden": exitUsage}[command]; s.code != want || want == 0 && s.out != strings.ReplaceAll(bare.out, manifest, "-") {
			t.Errorf("%s of standard input: %+v, want %+v", command, s, bare)
		}
	}
	for _, args := range [][]string{{manifest, "-"}, {"-f", manifest, "-f", "-"}, {"-f", "-", manifest}} {
		if s := runCommand(t, vm, append([]string{"diff"}, args...)...); s.code != 0 || s.out != "" {
			t.Errorf("diff %q: %+v", args, s)
		}
	}
	if s := runCommand(t, vm, "run"); s.code != exitUsage {
		t.Errorf("run without a file: %+v", s)
	}
}

// TestExplainTellsFieldsFromFiles: the text of an argument says which of the two it is.
func TestExplainTellsFieldsFromFiles(t *testing.T) {
	for text, want := range map[string]bool{"-": true, "vm.yaml": true, "sizes/": true, "./cpu": true, "a.json": true, "cpu": false,
		"cpu.cores": false, "nodeSelector[example.com/rack]": false, "disks[root].bootOrder": false} {
		if got := isFile(text); got != want {
			t.Errorf("%s is a file: %v", text, got)
		}
	}
}

// TestFolderGoesOnAfterWhatIsNoManifest: of a folder, what is no manifest is passed over with a warning, and of a name it is an error.
func TestFolderGoesOnAfterWhatIsNoManifest(t *testing.T) {
	const foreign = "apiVersion: vmoperator.example.com/v1\nkind: VirtualMachine\nmetadata: {name: theirs}\n"
	typed := "apiVersion: kubevirt.io/v1\nkind: VirtualMachineList\nitems:\n- {metadata: {name: listed}, spec: {runStrategy: Always, template: {spec: {domain: {memory: {guest: 64Mi}}}}}}\n"
	dir := folderOf(t, map[string]string{"a.yaml": "{{- if .Values.vm }}\n" + vm, "b.yaml": "- one\n- two\n", "c.yaml": foreign, "d.yaml": typed, "vm.yaml": vm})
	for _, command := range []string{"render", "check", "explain", "golden"} {
		args := []string{command, dir}
		if command == "golden" {
			args = []string{command, "--update", dir}
		}
		s := runCommand(t, "", args...)
		if s.code != 0 || strings.Count(s.err, "warning: ") != 3 {
			t.Errorf("%s: %+v, want three warnings", command, s)
		}
		for _, want := range []string{"a.yaml:1: ", "b.yaml:1: ", `c.yaml:1: VirtualMachine "theirs": is passed over`} {
			if !strings.Contains(s.err, want) {
				t.Errorf("%s: no %q in %s", command, want, s.err)
			}
		}
		if command == "render" && (!strings.Contains(s.out, "guest=default_listed,") || !strings.Contains(s.out, "guest=default_vm,")) {
			t.Errorf("render: %+v", s)
		}
	}
	if s := runCommand(t, "", "render", filepath.Join(dir, "b.yaml")); s.code != exitInvalid {
		t.Errorf("the list by its name: %+v", s)
	}
}

// TestTemplatesTakeMetadataAsTheAPIDoes: creationTimestamp: null stands in every template that a tool wrote.
func TestTemplatesTakeMetadataAsTheAPIDoes(t *testing.T) {
	const meta = "metadata: {creationTimestamp: null, labels: {a: b}}"
	const domain = "spec: {domain: {memory: {guest: 64Mi}, devices: {disks: [{name: d, disk: {}}]}}, volumes: [{name: d, dataVolume: {name: d}}]}"
	const volume = "dataVolumeTemplates: [{metadata: {name: d, creationTimestamp: null}, spec: {storage: {}, source: {blank: {}}}}]"
	for kind, spec := range map[string]string{
		"VirtualMachine":                   "runStrategy: Always, " + volume + ", template: {" + meta + ", " + domain + "}",
		"VirtualMachineInstanceReplicaSet": "replicas: 1, selector: {matchLabels: {a: b}}, template: {" + meta + ", " + domain + "}",
		"VirtualMachinePool": "replicas: 1, selector: {matchLabels: {a: b}}, virtualMachineTemplate: {" + meta +
			", spec: {runStrategy: Always, " + volume + ", template: {" + meta + ", " + domain + "}}}",
	} {
		group := "kubevirt.io/v1"
		if kind == "VirtualMachinePool" {
			group = "pool.kubevirt.io/v1beta1"
		}
		text := "apiVersion: " + group + "\nkind: " + kind + "\nmetadata: {name: x, creationTimestamp: null}\nspec: {" + spec + "}\n"
		if kind == "VirtualMachineInstanceReplicaSet" {
			text = strings.Replace(text, "dataVolume: {name: d}", "emptyDisk: {capacity: 1Gi}", 1)
		}
		if s := runCommand(t, text, "render", "-"); s.code != 0 {
			t.Errorf("%s: %+v", kind, s)
		}
		if s := runCommand(t, strings.Replace(text, "domain:", "nodeselector: {}, domain:", 1), "render", "-"); s.code != exitInvalid || !strings.Contains(s.err, "nodeselector") {
			t.Errorf("%s with an unknown field: %+v", kind, s)
		}
	}
}

// TestPresetGivesLUNsADevice: a LUN needs a device, and native I/O room on the node; a preset has both.
func TestPresetGivesLUNsADevice(t *testing.T) {
	const text = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: x}\nspec: {domain: {memory: {guest: 64Mi}, " +
		"devices: {disks: [{name: l, lun: {}}, {name: d, io: native, cache: none, disk: {}}]}}, " +
		"volumes: [{name: l, persistentVolumeClaim: {claimName: l}}, {name: d, persistentVolumeClaim: {claimName: d}}]}\n"
	if s := runCommand(t, text, "render", "-"); s.code != 0 || !strings.Contains(s.out, "scsi-block") || !strings.Contains(s.out, `"aio":"native"`) {
		t.Errorf("%+v", s)
	}
}

// TestExplainKeysOfMaps: a map's key is a field too, and one that is not set is answered as any field.
func TestExplainKeysOfMaps(t *testing.T) {
	text := strings.Replace(vm, "spec: {domain", "spec: {nodeSelector: {example.com/rack: r1}, domain", 1)
	for _, field := range []string{"nodeSelector[example.com/rack]", "nodeSelector[other]", "nodeSelector"} {
		if s := runCommand(t, text, "explain", "-", field); s.code != 0 || !strings.Contains(s.out, "makes no argument") {
			t.Errorf("%s: %+v", field, s)
		}
	}
}

// TestValuesAreCompleted: a shell completes the values of flags, and devices.
func TestValuesAreCompleted(t *testing.T) {
	for words, want := range map[string]string{
		"render --host ": "kvm-7.2", "diff --to ": "tcg", "check --schema ": "10.0", "render --arch ": "arm64", "render ": "yaml",
		"schema show ": "virtio-blk-pci", "explain -f ": "yaml",
	} {
		args := append([]string{"__complete"}, strings.Split(words, " ")...)
		if s := runCommand(t, "", args...); s.code != 0 || !slices.Contains(strings.Split(s.out, "\n"), want) {
			t.Errorf("%q: no %s in %+v", words, want, s)
		}
	}
}

// TestRefusedFieldIsNamedWhole: a field that is not supported yet is named as the API names it, and its parts are not called unknown.
func TestRefusedFieldIsNamedWhole(t *testing.T) {
	const domain = "spec: {domain: {memory: {guest: 64Mi}, devices: {gpus: [{name: a, deviceName: b}], downwardMetrics: {some: thing}}}}"
	const meta = "metadata: {labels: {a: b}}"
	const selector = "replicas: 1, selector: {matchLabels: {a: b}}, "
	head := func(group, kind, spec string) string {
		return "{apiVersion: " + group + ", kind: " + kind + ", metadata: {name: x, labels: {a: b}}, " + spec + "}\n"
	}
	preset := "---\n" + head("kubevirt.io/v1", "VirtualMachineInstancePreset", "spec: {selector: {matchLabels: {a: b}}, domain: {devices: {gpus: [{name: a}]}}}")
	size := "---\n" + head("instancetype.kubevirt.io/v1beta1", "VirtualMachineClusterInstancetype", "spec: {cpu: {guest: 1}, memory: {guest: 64Mi}, gpus: [{name: a, deviceName: b}]}")
	for text, want := range map[string]string{
		head("kubevirt.io/v1", "VirtualMachineInstance", domain):                                                                                                              "spec.domain.devices.gpus",
		head("kubevirt.io/v1", "VirtualMachine", "spec: {runStrategy: Always, template: {"+meta+", "+domain+"}}"):                                                             "spec.template.spec.domain.devices.gpus",
		head("kubevirt.io/v1", "VirtualMachineInstanceReplicaSet", "spec: {"+selector+"template: {"+meta+", "+domain+"}}"):                                                    "spec.template.spec.domain.devices.gpus",
		head("pool.kubevirt.io/v1beta1", "VirtualMachinePool", "spec: {"+selector+"virtualMachineTemplate: {"+meta+", spec: {runStrategy: Always, template: {"+domain+"}}}}"): "spec.virtualMachineTemplate.spec.template.spec.domain.devices.gpus",
		head("kubevirt.io/v1", "VirtualMachineInstance", "spec: {domain: {memory: {guest: 64Mi}}}") + preset:                                                                  "spec.domain.devices.gpus",
		head("kubevirt.io/v1", "VirtualMachine", "spec: {runStrategy: Always, instancetype: {name: x}, template: {spec: {domain: {}}}}") + size:                               "spec.gpus",
	} {
		s := runCommand(t, text, "render", "-")
		if s.code != exitInvalid || !strings.Contains(s.err, `"x": `+want+": Forbidden: ") || strings.Contains(s.err, "unknown") {
			t.Errorf("%s\n%+v, want %s", text, s, want)
		}
	}
}

// TestUnknownHostIsRefused: nobody knows what a QEMU takes that is not there yet.
func TestUnknownHostIsRefused(t *testing.T) {
	for _, host := range []string{"kvm-99.1", "kvm-11.2", "tcg-9.7", "kvm-7.1"} {
		if s := runCommand(t, vm, "render", "--host", host, "-"); s.code != exitUsage || !strings.Contains(s.err, "QEMU") {
			t.Errorf("%s: %+v", host, s)
		}
	}
}
