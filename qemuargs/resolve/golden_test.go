package resolve

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func TestMain(m *testing.M) {
	golden.Main(m, "testdata/machines/*/*.args", "testdata/machines/*/*.errors", "testdata/machines/*/machine.json", "testdata/refusals/*/errors",
		"testdata/become/*.txt", "testdata/become/*.steps")
}

// A case is a folder with a vmi.yaml that shows one feature. Where the node or the pod matter, a host.yaml says what of
// testdata/hosts is otherwise. Where an older host refuses the case, a file of that host's name and .errors holds the
// errors.
const (
	machineCases = "testdata/machines/*"
	refusalCases = "testdata/refusals/*"
)

// hosts are the nodes that every case is resolved for, by their files in testdata/hosts.
var hosts = []string{"7.2", "11.1"}

func cases(t *testing.T, pattern string) []string {
	t.Helper()
	dirs, err := filepath.Glob(pattern)
	if err != nil || len(dirs) < 30 {
		t.Fatalf("%d cases in %s: %v", len(dirs), pattern, err)
	}
	return dirs
}

// load reads a case for a host.
func load(t *testing.T, dir, host string) (*v1.VirtualMachineInstance, Host) {
	t.Helper()
	vmi, h := &v1.VirtualMachineInstance{}, Host{}
	read(t, filepath.Join(dir, "vmi.yaml"), vmi)
	read(t, filepath.Join("testdata/hosts", host+".yaml"), &h)
	if own := filepath.Join(dir, "host.yaml"); exists(own) {
		read(t, own, &h)
	}
	return vmi, h
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(data, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestGolden: the arguments of each feature, for each host, and the Machine that a
// launcher of the newer one records.
func TestGolden(t *testing.T) {
	for _, dir := range cases(t, machineCases) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			for _, name := range hosts {
				vmi, host := load(t, dir, name)
				before := vmi.DeepCopy()
				machine, errs := Machine(vmi, host)
				if refused := filepath.Join(dir, name+".errors"); exists(refused) && len(errs) > 0 {
					golden.Compare(t, refused, errs.ToAggregate().Error()+"\n")
					continue
				}
				if len(errs) > 0 {
					t.Fatal(errs.ToAggregate())
				}
				if !reflect.DeepEqual(before, vmi) {
					t.Error("Machine changed the VMI that it was given")
				}
				golden.Compare(t, filepath.Join(dir, name+".args"), qemuargs.Quote(machine.Arch.Program(), machine.Args()))
				if name == hosts[len(hosts)-1] {
					text, err := json.MarshalIndent(machine, "", "  ")
					if err != nil {
						t.Fatal(err)
					}
					golden.Compare(t, filepath.Join(dir, "machine.json"), string(text)+"\n")
				}
			}
		})
	}
}

// TestRefusals: each error has a line, and each host gives the same errors.
func TestRefusals(t *testing.T) {
	for _, dir := range cases(t, refusalCases) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			for _, name := range hosts {
				vmi, host := load(t, dir, name)
				machine, errs := Machine(vmi, host)
				if machine != nil || len(errs) == 0 {
					t.Fatal("it is not refused")
				}
				var lines strings.Builder
				for _, err := range errs {
					lines.WriteString(strings.ReplaceAll(err.Error(), host.QEMUVersion, "VERSION") + "\n")
				}
				golden.Compare(t, filepath.Join(dir, "errors"), lines.String())
			}
		})
	}
}

// TestReplayedMachineHasTheSameArguments: what a migration target decodes renders to the same arguments.
func TestReplayedMachineHasTheSameArguments(t *testing.T) {
	for _, dir := range cases(t, machineCases) {
		vmi, host := load(t, dir, hosts[len(hosts)-1])
		machine, errs := Machine(vmi, host)
		if len(errs) > 0 {
			t.Fatal(errs.ToAggregate())
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
