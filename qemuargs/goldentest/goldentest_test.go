package goldentest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/qemuargs/goldentest"
)

// failures is a goldentest.T that keeps what a test would print.
type failures struct{ said []string }

func (*failures) Helper() {}

func (*failures) Logf(string, ...any) {}

func (f *failures) Errorf(format string, args ...any) {
	f.said = append(f.said, fmt.Sprintf(format, args...))
}

// A project keeps its manifests in a folder, with the goldens that "qemuargs golden --update"
// has written beside them. Its test is one line:
//
//	func TestManifests(t *testing.T) { goldentest.Check(t, "testdata") }
//
// Here a manifest has been changed since.
func ExampleCheck() {
	dir, _ := os.MkdirTemp("", "manifests")
	defer os.RemoveAll(dir)
	manifest, _ := os.ReadFile("testdata/web.yaml")
	golden, _ := os.ReadFile("testdata/web.args")
	changed := strings.Replace(string(manifest), "guest: 1Gi", "guest: 2Gi", 1)
	os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(changed), 0o600)
	os.WriteFile(filepath.Join(dir, "web.args"), golden, 0o600)

	t := &failures{} // a test has its *testing.T
	goldentest.Check(t, dir)
	fmt.Println(strings.ReplaceAll(strings.Join(t.said, ""), dir, "manifests"))
	// Output:
	// manifests/web.args: VirtualMachine default/web
	//   memory (the guest sees it)
	//     - -m size=1024M
	//     + -m size=2048M
	//     ~ -object pc.ram
	//         size: 1073741824 → 2147483648
	// (qemuargs golden --update manifests accepts the difference)
}

func TestCheck(t *testing.T) {
	goldentest.Check(t, "testdata")
	for host, want := range map[string]string{"none": "is no preset", "tcg": "accelerator (the guest sees it)"} {
		f := &failures{}
		if goldentest.CheckOn(f, "testdata", host); !strings.Contains(strings.Join(f.said, ""), want) {
			t.Errorf("host %s: %q, want %q in it", host, f.said, want)
		}
	}
}
