package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/explain"
)

// explained are runs of explain, each with its golden.
var explained = []struct{ golden, command string }{
	{"web", "explain -f web.yaml -f sizes.yaml"},
	{"web-kvm-7.2-machine", "explain -f web.yaml -f sizes.yaml --host kvm-7.2 machine.type"},
	{"web-boot-order", "explain -f web.yaml -f sizes.yaml disks.bootOrder"},
	{"ordered-boot-order", "explain -f ordered.yaml -f sizes.yaml disks.bootOrder"},
	{"web-cpu", "explain -f web.yaml -f sizes.yaml cpu.sockets spec.instancetype evictionStrategy"},
	{"web-disk", "explain -f web.yaml -f sizes.yaml disks[scratch]"},
}

// TestExplainText: what a person reads.
func TestExplainText(t *testing.T) {
	for _, c := range explained {
		var s said
		t.Run(c.golden, func(t *testing.T) {
			t.Chdir("testdata/explain") // so that the output names the files as a person does
			if s = runCommand(t, "", strings.Fields(c.command)...); s.code != 0 || s.err != "" {
				t.Errorf("exit code %d, %s", s.code, s.err)
			}
		})
		golden.Compare(t, "testdata/explain/"+c.golden+".txt", s.out)
	}
}

// TestExplainPageIsUpToDate: the page shows what the command prints.
func TestExplainPageIsUpToDate(t *testing.T) {
	page, err := os.ReadFile("../../docs/qemuargs.md")
	if err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	for _, c := range explained {
		text, err := os.ReadFile("testdata/explain/" + c.golden + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		printed.Write(text)
	}
	_, section, _ := strings.Cut(string(page), "## Hunt for a boot problem")
	section, _, _ = strings.Cut(section, "\n## ")
	shown := 0
	for n, block := range strings.Split(section, "```") {
		output, isOutput := strings.CutPrefix(block, "\n")
		if n%2 == 0 || !isOutput {
			continue // text, or a command
		}
		if strings.HasPrefix(output, "$ ") {
			_, output, _ = strings.Cut(output, "\n")
		}
		if shown++; !strings.Contains(printed.String(), output) {
			t.Errorf("docs/qemuargs.md shows what explain does not print:\n%s", output)
		}
	}
	if shown < 4 {
		t.Errorf("the page shows %d outputs", shown)
	}
}

// TestExplainJSON: one object for each machine, of all arguments or of the fields.
func TestExplainJSON(t *testing.T) {
	var all, some explain.Explained
	s := runCommand(t, vm, "explain", "--json", "-")
	if err := json.Unmarshal([]byte(s.out), &all); err != nil || all.Object != "VirtualMachine default/vm" || len(all.Fields) > 0 || len(all.Arguments) < 30 || all.Arguments[0].Flag != "-name" ||
		all.Arguments[0].Properties[0].Sources[0].Field != "metadata.name" || all.Arguments[0].Properties[0].Sources[0].Line != 3 {
		t.Errorf("%v, %+v", err, s)
	}
	s = runCommand(t, vm, "explain", "--json", "memory.guest", "-f", "-")
	if err := json.Unmarshal([]byte(s.out), &some); err != nil || len(some.Arguments) > 0 || len(some.Fields) != 1 || string(some.Fields[0].Value) != `"64Mi"` || some.Fields[0].Arguments[0].Flag != "-m" {
		t.Errorf("%v, %+v", err, s)
	}
}

// TestExplainRefuses: an unknown field is wrong usage, and an invalid manifest is not.
func TestExplainRefuses(t *testing.T) {
	other := strings.ReplaceAll(vm, "name: vm", "name: other")
	for name, c := range map[string]struct {
		manifest, field string
		code            int
		want            string
	}{
		"unknown field":      {vm, "devices.disk", exitUsage, `a VirtualMachine has no field "devices.disk"; near it: spec.template.spec.domain.devices.disks`},
		"unknown in two":     {vm + "---\n" + other, "cpu.core", exitUsage, "near it: spec.template.spec.domain.cpu.cores"},
		"no such entry":      {vm, "disks[0]", exitInvalid, "VirtualMachine default/vm: spec.template.spec.domain.devices.disks has no entry 0"},
		"invalid manifest":   {strings.Replace(vm, "64Mi", "0", 1), "cpu", exitInvalid, "-:4: VirtualMachine \"vm\""},
		"nothing to explain": {"apiVersion: v1\nkind: Service\n", "cpu", exitInvalid, "there is no VirtualMachineInstance"},
	} {
		if s := runCommand(t, c.manifest, "explain", "-", c.field); s.code != c.code || !strings.Contains(s.err, c.want) || s.out != "" {
			t.Errorf("%s: %+v, want %q", name, s, c.want)
		}
	}
	// A field that one of the machines has is explained.
	seeded := strings.Replace(other, "memory: {guest: 64Mi}", "memory: {guest: 64Mi}, devices: {inputs: [{name: a, type: tablet}]}", 1)
	if s := runCommand(t, vm+"---\n"+seeded, "explain", "-", "inputs[a]"); s.code != 0 || !strings.Contains(s.out, "# VirtualMachine default/vm\ninputs[a] is not here") || !strings.Contains(s.out, "-device input-a") {
		t.Errorf("one of two: %+v", s)
	}
}
