// Package release tests config/release.sh without building images. test/release/check.sh builds a release and installs
// it.
package release

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// sourced returns what a line of Bash prints that knows the functions of config/release.sh.
func sourced(t *testing.T, line string) (string, error) {
	t.Helper()
	cmd := exec.Command("bash", "-c", "source ../../config/release.sh; source=../..; "+line)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if stderr.Len() > 0 {
		t.Logf("%s: %s", line, &stderr)
	}
	return string(out), err
}

func TestVersionsAreSemantic(t *testing.T) {
	for version, want := range map[string]bool{
		"v0.1.0": true, "v1.20.300": true, "v0.1.0-rc.1": true, "v0.1.0-alpha": true, "v1.0.0-0.3.7": true,
		"": false, "0.1.0": false, "v0.1": false, "v01.1.0": false, "v0.1.0-": false, "v0.1.0-rc.01": false,
		"v0.1.0-rc..1": false, "v0.1.0+dirty": false, "v0.1.0 ": false, "v0.1.0\nv0.1.0": false, "v0.1.0/..": false,
		"latest": false, "v0.1.0-$(id)": false,
	} {
		_, err := sourced(t, "is_version '"+version+"'")
		if got := err == nil; got != want {
			t.Errorf("is_version %q is %v", version, got)
		}
	}
}

// repository returns a repository of one commit, with what a release begins with.
func repository(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{"config/release.sh", "config/packages.sh", "config/images/packages.txt"} {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	git(t, folder, "init", "-q")
	git(t, folder, "add", ".")
	git(t, folder, "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "one")
	return folder
}

func git(t *testing.T, folder string, args ...string) {
	t.Helper()
	if out, err := exec.Command("git", append([]string{"-C", folder}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
}

// refusal returns what a release of a repository that cannot be built says.
func refusal(t *testing.T, folder, version string) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(folder, "config/release.sh"), version).CombinedOutput()
	if err == nil {
		t.Fatalf("release.sh %s succeeded: %s", version, out)
	}
	if _, err := os.Stat(filepath.Join(folder, "_output")); err == nil {
		t.Errorf("release.sh %s began to build: %s", version, out)
	}
	return string(out)
}

func TestReleaseRefusesWhatIsNoVersionOrNotCommitted(t *testing.T) {
	folder := repository(t)
	if got := refusal(t, folder, "0.1"); !strings.Contains(got, `"0.1" is no version`) {
		t.Errorf("a bad version: %s", got)
	}
	if got := refusal(t, folder, ""); !strings.Contains(got, `"" is no version`) {
		t.Errorf("no version: %s", got)
	}
	file := filepath.Join(folder, "new")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := refusal(t, folder, "v0.1.0"); !strings.Contains(got, "not committed") || !strings.Contains(got, "new") {
		t.Errorf("a file that is not committed: %s", got)
	}
	git(t, folder, "add", ".")
	git(t, folder, "tag", "v0.1.0")
	git(t, folder, "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "two")
	if got := refusal(t, folder, "v0.1.0"); !strings.Contains(got, "tag of another commit") {
		t.Errorf("the tag of another commit: %s", got)
	}
}

func TestOrdinaryUserHearsWhatBuildingNeeds(t *testing.T) {
	folder := repository(t)
	as := func(line string) string {
		cmd := exec.Command("bash", "-c", line)
		if os.Geteuid() == 0 {
			cmd = exec.Command("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "bash", "-c", line)
		}
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("%s succeeded: %s", line, out)
		}
		return string(out)
	}
	script, err := os.ReadFile(filepath.Join(folder, "config/packages.sh"))
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string][]string{
		"--root 'building images' bash":            {"building images needs", "root"},
		"--root 'building images' no-such-package": {"building images needs", "root", "no-such-package"},
		"no-such-package":                          {"root", "no-such-package"},
	} {
		got := as("bash -s -- " + args + " <<'SCRIPT'\n" + string(script) + "\nSCRIPT\n")
		for _, word := range want {
			if !strings.Contains(got, word) {
				t.Errorf("packages.sh %s does not say %q: %s", args, word, got)
			}
		}
	}
}

func TestFailedBuildLeavesNoRelease(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("the test needs root, as a release and make test do")
	}
	folder := repository(t) // which has nothing to compile
	cmd := exec.Command(filepath.Join(folder, "config/release.sh"), "v0.1.0")
	cmd.Env = append(os.Environ(), "ARCHES=amd64")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "compiling kubectl") {
		t.Errorf("a release of an empty tree: %v: %s", err, out)
	}
	left, err := os.ReadDir(filepath.Join(folder, "_output/release"))
	if err != nil || len(left) != 1 || left[0].Name() != ".lock" {
		t.Errorf("a build that failed left %v, %v; want the lock alone", left, err)
	}
}

func TestManifestsOfAReleaseNameItsImages(t *testing.T) {
	kubectl, err := filepath.Abs("../../_output/bin/kubectl")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kubectl); err != nil {
		testkit.Lacks(t, "kubectl", "make cluster", err)
	}
	for _, overlay := range []string{"config/default", "config/datavolumes"} {
		got, err := sourced(t, "version=v9.8.7 kubectl="+kubectl+"; manifests "+overlay)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(got, ":dev") {
			t.Errorf("%s names an image of a checkout", overlay)
		}
		for _, image := range []string{"virt-launcher", "virt-components"} {
			if !strings.Contains(got, "localhost/kubeqemu/"+image+":v9.8.7") {
				t.Errorf("%s does not name the release's %s", overlay, image)
			}
		}
	}
}

func TestSamplesOfAReleaseNameItsImages(t *testing.T) {
	line := `version=v9.8.7; for i in "${samples[@]}"; do with_version <../../config/samples/$i || exit; done`
	got, err := sourced(t, line)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(got, ":dev") || !strings.Contains(got, "localhost/kubeqemu/tiny-container-disk:v9.8.7") {
		t.Errorf("the samples are %s", got)
	}
}

func TestNotesSumUpCommits(t *testing.T) {
	got, err := sourced(t, `printf '%s\n' @ docs/a docs/b launcher/life/c '' @ docs/a 'a b' @ | parts`)
	if want := "| docs | 2 |\n| files beside the folders | 1 |\n| launcher | 1 |\n"; err != nil || got != want {
		t.Errorf("parts writes %q, %v; want %q", got, err, want)
	}
}

func TestChangedByteIsFound(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{"a b": "one", "images/x.tar": "two"} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sourced(t, "folder="+folder+" work="+t.TempDir()+"; write_sums"); err != nil {
		t.Fatal(err)
	}
	check := func() error {
		cmd := exec.Command("sha256sum", "--quiet", "-c", "SHA256SUMS")
		cmd.Dir = folder
		return cmd.Run()
	}
	if err := check(); err != nil {
		t.Fatalf("the sums do not fit: %v", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "images/x.tar"), []byte("tvo"), 0o644); err != nil {
		t.Fatal(err)
	}
	if check() == nil {
		t.Error("a changed byte was not found")
	}
}
