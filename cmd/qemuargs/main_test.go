package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func runCommand(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	err = run(args, strings.NewReader(stdin), &out, &errOut)
	return out.String(), errOut.String(), err
}

// TestRenderSamples: what is shipped as a sample renders.
func TestRenderSamples(t *testing.T) {
	samples, err := filepath.Glob("../../config/samples/vm*.yaml")
	if err != nil || len(samples) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, sample := range samples {
		stdout, _, err := runCommand(t, "", "render", sample)
		if err != nil || !strings.HasPrefix(stdout, "qemu-system-x86_64 \\\n") {
			t.Errorf("%s: %v\n%s", sample, err, stdout)
		}
	}
}

// TestRenderMachine: a VM is rendered as the VMI that it is started as.
func TestRenderMachine(t *testing.T) {
	const vm = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: vm, uid: 5d307ca9-b3ef-428c-8861-06e72d69f223}\n" +
		"spec: {running: false, template: {metadata: {creationTimestamp: null, labels: {a: b}}, spec: {domain: {memory: {guest: 64Mi}}}}}\n"
	stdout, _, err := runCommand(t, vm, "render")
	for _, want := range []string{"guest=default_vm", "5d307ca9-b3ef-428c-8861-06e72d69f223", "serial="} {
		if err != nil || !strings.Contains(stdout, want) {
			t.Errorf("%v, want %s in it:\n%s", err, want, stdout)
		}
	}
}

// TestRenderGolden: with the host's facts, the command prints the golden.
func TestRenderGolden(t *testing.T) {
	dir := "../../qemuargs/resolve/testdata/machines/minimal/"
	want, err := os.ReadFile(dir + "11.1.args")
	if err != nil {
		t.Fatal(err)
	}
	stdout, _, err := runCommand(t, "", "render", "--host", dir+"../../hosts/11.1.yaml", dir+"vmi.yaml")
	if err != nil || stdout != string(want) {
		t.Errorf("%v\n%s", err, stdout)
	}
}

func TestRenderRefuses(t *testing.T) {
	const head = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: bad}\n"
	for name, c := range map[string]struct{ manifest, want string }{
		"unknown field":   {head + "spec: {domain: {memory: {guest: 64Mi, gest: 1}}}\n", "spec.domain.memory.gest"},
		"no memory":       {head + "spec: {domain: {devices: {autoattachPodInterface: false}}}\n", "spec.domain.memory.guest"},
		"not supported":   {head + "spec: {domain: {memory: {guest: 64Mi}, devices: {tpm: {}}}}\n", "spec.domain.devices.tpm"},
		"another kind":    {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n", "holds no VirtualMachineInstance"},
		"VM's template":   {"apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: bad}\nspec: {running: true, template: {spec: {domain: {}}}}\n", "spec.template.spec.domain.memory.guest"},
		"not YAML at all": {"{", "yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, _, err := runCommand(t, c.manifest, "render")
			if err == nil || !strings.Contains(err.Error(), c.want) || stdout != "" {
				t.Errorf("got %v and %q, want an error with %q", err, stdout, c.want)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"rendre"}, {"render", "--no-such-flag"}} {
		if _, stderr, err := runCommand(t, "", args...); !errors.Is(err, errUsage) || !strings.Contains(stderr, "sage") {
			t.Errorf("%q: got %v and %q, want usage", args, err, stderr)
		}
	}
}
