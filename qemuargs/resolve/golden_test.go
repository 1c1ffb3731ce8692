package resolve

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// cases are the folders of testdata; each has vmi.yaml and host.yaml.
func cases(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("testdata/*/vmi.yaml")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no cases in testdata: %v", err)
	}
	for i := range dirs {
		dirs[i] = filepath.Dir(dirs[i])
	}
	return dirs
}

func load(t *testing.T, dir string) (*v1.VirtualMachineInstance, Host) {
	t.Helper()
	vmi, host := &v1.VirtualMachineInstance{}, Host{}
	for name, into := range map[string]any{"vmi.yaml": vmi, "host.yaml": &host} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = yaml.UnmarshalStrict(data, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", filepath.Join(dir, name), err)
		}
	}
	return vmi, host
}

// golden compares with a golden file; nil means that the file must not exist.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if got == nil {
			os.Remove(path)
		} else if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil && (got != nil || !os.IsNotExist(err)) {
		t.Fatalf("%v (go test ./qemuargs/... -update writes it; review the diff)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites it):\n%s", path, diff)
	}
}

func TestGolden(t *testing.T) {
	for _, dir := range cases(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			vmi, host := load(t, dir)
			before := vmi.DeepCopy()
			machine, errs := Machine(vmi, host)
			if !reflect.DeepEqual(before, vmi) {
				t.Error("Machine changed the VMI that it was given")
			}
			var machineJSON, args, failure []byte
			if len(errs) > 0 {
				failure = []byte(errs.ToAggregate().Error() + "\n")
			} else {
				machineJSON, _ = json.MarshalIndent(machine, "", "  ")
				machineJSON = append(machineJSON, '\n')
				args = []byte(qemuargs.Quote("qemu-system-x86_64", machine.Args()))
			}
			golden(t, filepath.Join(dir, "machine.golden.json"), machineJSON)
			golden(t, filepath.Join(dir, "args.golden"), args)
			golden(t, filepath.Join(dir, "err.golden"), failure)
		})
	}
}

// TestReplay: what a migration target decodes renders to the same arguments.
func TestReplay(t *testing.T) {
	for _, dir := range cases(t) {
		vmi, host := load(t, dir)
		machine, errs := Machine(vmi, host)
		if len(errs) > 0 {
			continue
		}
		data, err := json.Marshal(machine)
		if err != nil {
			t.Fatal(err)
		}
		var replayed qemuargs.Machine
		if err := json.Unmarshal(data, &replayed); err != nil {
			t.Fatal(err)
		}
		want, got := machine.Args(), replayed.Args()
		if diff := cmp.Diff(qemuargs.Strings(want), qemuargs.Strings(got)); diff != "" {
			t.Errorf("%s: arguments changed over JSON:\n%s", dir, diff)
		}
	}
}
