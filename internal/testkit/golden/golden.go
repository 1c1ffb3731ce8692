// Package golden compares texts that tests make with files that are committed. The flag
// -update rewrites the files; a reviewer reads the diff.
package golden

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var compared struct {
	sync.Mutex
	paths []string
}

// Compare compares a text with a file, or with -update writes the text there. The path
// begins in the package's folder.
func Compare(t testing.TB, path, got string) {
	t.Helper()
	compared.Lock()
	compared.paths = append(compared.paths, filepath.Clean(path))
	compared.Unlock()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (%s writes it; review the diff)", err, command())
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s differs (-golden +now); %s rewrites it:\n%s", path, command(), diff)
	}
}

// Tests is a package's tests, such as *testing.M.
type Tests interface{ Run() (code int) }

// Main runs a package's tests. When all of them pass, every file that a pattern matches
// must have been compared; -update removes the others.
func Main(m Tests, patterns ...string) {
	code := m.Run()
	if code == 0 && all() {
		for _, path := range stale(patterns) {
			if *update {
				os.Remove(path)
				continue
			}
			fmt.Fprintf(os.Stderr, "no test compares anything with %s; %s removes it\n", path, command())
			code = 1
		}
	}
	os.Exit(code)
}

// all says whether every test of the package ran.
func all() bool {
	for _, name := range []string{"run", "skip", "list", "fuzz"} {
		if f := flag.Lookup("test." + name); f != nil && f.Value.String() != "" {
			return false
		}
	}
	return true
}

// stale lists the files that match a pattern and that no test has compared.
func stale(patterns []string) (out []string) {
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			panic(fmt.Sprintf("no golden file matches %s: %v", pattern, err))
		}
		for _, path := range files {
			if !slices.Contains(compared.paths, path) {
				out = append(out, path)
			}
		}
	}
	return out
}

// command is the command that rewrites the golden files of this package.
func command() string {
	folder, err := os.Getwd()
	for root := folder; err == nil && root != "/"; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			folder, _ = filepath.Rel(root, folder)
			break
		}
	}
	return "go test ./" + folder + " -update"
}
