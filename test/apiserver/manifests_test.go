package apiserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRead: what a kustomization names is read in its order, with its labels.
func TestRead(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("kustomization.yaml", "resources: [within, one.yaml]\nlabels:\n- pairs: {outer: x}\n")
	write("within/kustomization.yaml", "resources: [two.yaml]\nlabels:\n- pairs: {inner: w}\n")
	write("within/two.yaml", "# a comment\n---\n{kind: A, metadata: {name: a, labels: {own: z}}}\n---\n{kind: B, metadata: {name: b}}\n")
	write("one.yaml", "kind: C\nmetadata: {name: c}\n")
	objects, err := Read(folder, filepath.Join(folder, "one.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		labels := ""
		for _, key := range []string{"own", "inner", "outer"} {
			labels += o.GetLabels()[key]
		}
		got = append(got, o.GetName()+labels)
	}
	if all := strings.Join(got, " "); all != "azwx bwx cx c" {
		t.Errorf("read %s", all)
	}
	write("kustomization.yaml", "resources: [one.yaml]\nnamePrefix: x\n")
	if _, err := Read(folder); err == nil || !strings.Contains(err.Error(), "namePrefix") {
		t.Errorf("of what is not known here: %v", err)
	}
}

// TestInstalls: a CRD that is not there is an error.
func TestInstalls(t *testing.T) {
	if err := Installs("virtualmachines", "nosuch")(nil); err == nil || !strings.Contains(err.Error(), "nosuch") {
		t.Error(err)
	}
}
