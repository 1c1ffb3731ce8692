package resolve

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestEarlierMachinesKeepTheirArguments: testdata/earlier has Machines of the first version of Kubeqemu whose guests could move (2026-11-26), and their arguments. A guest of such a
// Machine may still run, and may move: a target gets the same Machine, byte for byte, and starts QEMU with the same arguments. The present version may make
// another Machine of the same manifest. If this test fails, qemuargs.Version has to rise. These files are never written anew.
func TestEarlierMachinesKeepTheirArguments(t *testing.T) {
	files, err := filepath.Glob("testdata/earlier/*.json")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d Machines: %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			decoder := json.NewDecoder(bytes.NewReader(text))
			decoder.DisallowUnknownFields()
			var earlier qemuargs.Machine
			if err := decoder.Decode(&earlier); err != nil {
				t.Fatal(err)
			}
			vmi, host := load(t, filepath.Join("testdata/machines", name), hosts[len(hosts)-1])
			arrived, err := Replay(vmi, Origin{Machine: earlier, QEMUVersion: host.QEMUVersion}, host)
			if err != nil {
				t.Fatal(err)
			}
			again, err := json.MarshalIndent(arrived, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(text), string(again)+"\n"); diff != "" {
				t.Errorf("the target has another Machine:\n%s", diff)
			}
			args, err := os.ReadFile(strings.TrimSuffix(file, ".json") + ".args")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(args), qemuargs.Quote("qemu-system-x86_64", arrived.Args())); diff != "" {
				t.Errorf("the target's QEMU has other arguments:\n%s", diff)
			}
		})
	}
}
