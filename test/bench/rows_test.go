package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestRows holds what is measured, beside what, in which unit and with which budget. Each group is measured where nothing
// that it needs is there, and what it returns beside its error is listed. Rows that a group returns only when all was
// measured are made here.
func TestRows(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	if err := os.MkdirAll(filepath.Join(empty, "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "config", "crd"), filepath.Join(empty, "config", "crd")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", empty)
	t.Setenv("KUBECONFIG", filepath.Join(empty, "none"))
	b := &bench{repository: empty, work: t.TempDir(), qemu: "none", rounds: 1, accelerator: qemuargs.TCG, cluster: "none"}
	var w strings.Builder
	for _, g := range groups {
		rows, err := g.measure(t.Context(), b)
		if err == nil {
			t.Errorf("%s was measured", g.name)
		}
		switch g.name {
		case "start": // with libvirt
			rows[0].Beside = append(rows[0].Beside, series{Name: "libvirt, warm"}, series{Name: "libvirt, nothing cached"})
			rows[0].Parts, rows[0].Notes = startParts(), nil
		case "apply":
			rows = append(rows, row{ID: "apply-server", What: "the same, from when the API server has it", Unit: seconds,
				Ours: series{Name: "VMI"}, Beside: besidePods(), Parts: parts(nil)})
		case "idle-vms":
			busy, _ := plane(t.Context(), b, "control-plane-ten", fmt.Sprintf("control plane with %d idle VMs, PSS", manyVMs))
			rows = append(rows, busy)
		case "crds": // sizes of the CRDs are found
			rows[0].Parts = nil
		}
		for _, r := range rows {
			fmt.Fprintf(&w, "%s %s: %s\n  unit %s, budget %g, of ratio %t, none %t, on the cluster %t\n  ours: %s\n",
				g.name, r.ID, r.What, r.Unit, r.Limit, r.OfRatio, r.None, g.cluster, r.Ours.Name)
			list(&w, "beside", r.Beside)
			list(&w, "parts", r.Parts)
			for _, note := range r.Notes {
				list(&w, "notes", []series{{Name: note}})
			}
		}
	}
	golden.Compare(t, "testdata/rows.golden", w.String())
}

func list(w *strings.Builder, what string, all []series) {
	var names []string
	for _, s := range all {
		name := s.Name
		if s.Reference {
			name += " (reference)"
		}
		names = append(names, name)
	}
	if len(names) > 0 {
		fmt.Fprintf(w, "  %s: %s\n", what, strings.Join(names, " | "))
	}
}
