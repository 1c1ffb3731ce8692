package check_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/check"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

const machines = "../../resolve/testdata/machines/"

// known are the embedded schemas, by architecture and release.
type known map[string]map[string]*schema.Schema

func schemas(t testing.TB) known {
	t.Helper()
	all := known{}
	for _, arch := range schema.Architectures() {
		of, err := schema.All(arch)
		if err != nil {
			t.Fatal(err)
		}
		all[arch] = map[string]*schema.Schema{}
		for _, s := range of {
			all[arch][s.Release()] = s
		}
	}
	return all
}

// problems checks a text against the schema of a release, for the architecture that the program's name has, and returns a line for
// each problem.
func problems(t testing.TB, every known, release, text string) string {
	t.Helper()
	sections, err := check.Parse(text)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var lines strings.Builder
	for _, section := range sections {
		all := every["x86_64"]
		if section.Program == "qemu-system-aarch64" {
			all = every["aarch64"]
		}
		for _, p := range check.Arguments(section.Args, all[release], all["7.2"], all["10.0"], all["11.1"]) {
			lines.WriteString(p.String() + "\n")
		}
	}
	return strings.TrimSuffix(lines.String(), "\n")
}

// unlisted matches a property of a -device that a check takes for one of those that QEMU does not list: an entry of a list,
// or a part of an object.
var unlisted = regexp.MustCompile(`-device '[^']*"(len-[^"]*|[a-z_-]+[.\[][^"]*)":`)

// TestNoMistakeIsFoundInGoldens: QEMU takes every golden of the catalogue. One VMI names an old machine type; that is its owner's choice.
func TestNoMistakeIsFoundInGoldens(t *testing.T) {
	all, foreign := schemas(t), 0
	for _, release := range []string{"7.2", "11.1"} {
		files, err := filepath.Glob(machines + "*/" + release + ".args")
		if err != nil || len(files) < 80 {
			t.Fatalf("%d goldens for %s: %v", len(files), release, err)
		}
		for _, file := range files {
			want, text := "", read(t, file)
			if strings.HasPrefix(text, "qemu-system-aarch64") {
				foreign++
			}
			if release == "11.1" && strings.Contains(file, "/machine-versioned/") {
				want = "-machine: warning: machine type pc-q35-6.2 is deprecated"
			}
			if got := problems(t, all, release, text); got != want {
				t.Errorf("%s, want %q:\n%s", file, want, got)
			}
			if name := unlisted.FindString(text); name != "" {
				t.Errorf("%s: the check passes over a property such as %s, which QEMU does not list", file, name)
			}
		}
	}
	if foreign < 80 {
		t.Errorf("only %d goldens of arm64", foreign)
	}
}

// TestNoMistakeIsFoundBetweenTheGoldens: a release that has no goldens, between two that have, takes every machine of the catalogue.
func TestNoMistakeIsFoundBetweenTheGoldens(t *testing.T) {
	const release = "10.0"
	all := schemas(t)
	dirs, err := filepath.Glob(machines + "*")
	if err != nil || len(dirs) < 80 {
		t.Fatalf("%d machines: %v", len(dirs), err)
	}
	for _, dir := range dirs {
		vmi, host := &v1.VirtualMachineInstance{}, resolve.Host{}
		decode(t, filepath.Join(dir, "vmi.yaml"), vmi)
		decode(t, filepath.Join(machines, "../hosts/11.1.yaml"), &host)
		if own := filepath.Join(dir, "host.yaml"); exists(own) {
			decode(t, own, &host)
		}
		host.QEMUVersion = release + ".0"
		machine, errs := resolve.Machine(vmi, host)
		if len(errs) > 0 {
			t.Fatalf("%s: %v", dir, errs.ToAggregate())
		}
		want, text := "", qemuargs.Quote(machine.Arch.Program(), machine.Args())
		if filepath.Base(dir) == "machine-versioned" {
			want = "-machine: warning: machine type pc-q35-6.2 is deprecated"
		}
		if got := problems(t, all, release, text); got != want {
			t.Errorf("%s, want %q:\n%s", dir, want, got)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// decode reads a file of YAML.
func decode(t *testing.T, path string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(read(t, path)), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// TestSchemaOfOtherArchitectureIsTold: whoever checks arguments with the schemas of another architecture is told.
func TestSchemaOfOtherArchitectureIsTold(t *testing.T) {
	for arch, other := range map[string]string{"x86_64": "aarch64", "aarch64": "x86_64"} {
		if p, told := check.Program("qemu-system-"+other, schemas(t)[arch]["11.1"]); !told || !strings.Contains(p.Text, arch) {
			t.Errorf("arguments of %s with the schema of %s: %+v", other, arch, p)
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
