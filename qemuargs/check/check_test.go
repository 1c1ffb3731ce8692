package check_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/qemuargs/check"
	"github.com/kubeqemu/kubeqemu/qemuargs/schema"
)

const machines = "../resolve/testdata/machines/"

func schemas(t testing.TB) map[string]*schema.Schema {
	t.Helper()
	all, err := schema.All()
	if err != nil {
		t.Fatal(err)
	}
	byRelease := map[string]*schema.Schema{}
	for _, s := range all {
		byRelease[s.Release()] = s
	}
	return byRelease
}

// problems checks a text against the schema of a release, and returns a line for each problem.
func problems(t testing.TB, all map[string]*schema.Schema, release, text string) string {
	t.Helper()
	sections, err := check.Parse(text)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var lines strings.Builder
	for _, section := range sections {
		for _, p := range check.Arguments(section.Args, all[release], all["7.2"], all["10.0"], all["11.1"]) {
			lines.WriteString(p.String() + "\n")
		}
	}
	return strings.TrimSuffix(lines.String(), "\n")
}

// TestGoldens: QEMU takes every golden of the catalogue. One VMI names an old machine type; that is its owner's choice.
func TestGoldens(t *testing.T) {
	all := schemas(t)
	for _, release := range []string{"7.2", "11.1"} {
		files, err := filepath.Glob(machines + "*/" + release + ".args")
		if err != nil || len(files) < 80 {
			t.Fatalf("%d goldens for %s: %v", len(files), release, err)
		}
		for _, file := range files {
			if strings.HasPrefix(filepath.Base(filepath.Dir(file)), "arm64") {
				// The schemas are those of amd64's QEMU. It is said that they are.
				sections, err := check.Parse(read(t, file))
				if err != nil || len(sections) != 1 {
					t.Fatalf("%s: %d sections: %v", file, len(sections), err)
				}
				if p, other := check.Program(sections[0].Program, all[release]); !other || !strings.Contains(p.Text, "x86_64") {
					t.Errorf("%s is checked as if it were for amd64: %+v", file, p)
				}
				continue
			}
			want := ""
			if release == "11.1" && strings.Contains(file, "/machine-versioned/") {
				want = "-machine: warning: machine type pc-q35-6.2 is deprecated"
			}
			if got := problems(t, all, release, read(t, file)); got != want {
				t.Errorf("%s, want %q:\n%s", file, want, got)
			}
		}
	}
}

func read(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
