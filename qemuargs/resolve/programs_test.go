package resolve

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// imageRoot is the root of the launcher's image, as it is packed.
const imageRoot = "../../_output/cache/launcher-root"

// program is a QEMU to test with.
type program struct {
	path    string // of the executable
	root    string // of another Debian, with whose loader and libraries it runs; or empty
	version string // such as 11.1.3
}

// qemus returns the host's QEMU and that of the launcher's image. Tests with them need root: they make taps and lend
// huge pages.
func qemus(t testing.TB) []program {
	t.Helper()
	if os.Geteuid() != 0 {
		testkit.Lacks(t, "the right to make taps", "run it as root", nil)
	}
	host, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		testkit.Lacks(t, "Debian's qemu-system-x86 and qemu-utils", "make packages", err)
	}
	root, err := filepath.Abs(imageRoot)
	if err == nil {
		_, err = os.Stat(root)
	}
	if err != nil {
		testkit.Lacks(t, "the launcher's image", "make image-launcher", err)
	}
	all := []program{{path: host}, {path: root + "/usr/bin/qemu-system-x86_64", root: root}}
	for i := range all {
		all[i].ask(t)
	}
	return all
}

func (p *program) ask(t testing.TB) {
	t.Helper()
	out, err := p.command("--version").Output()
	match := regexp.MustCompile(`version ([0-9]+\.[0-9]+\.[0-9]+)`).FindSubmatch(out)
	if err != nil || match == nil {
		t.Fatalf("%s --version: %v: %s", p.path, err, out)
	}
	p.version = string(match[1])
	if p.root == "" {
		return
	}
	// Launchers go by what is written in the image.
	if written, err := os.ReadFile(p.root + "/usr/share/kubeqemu/qemu-version"); err != nil || string(written) != p.version+"\n" {
		t.Errorf("the image says that its QEMU is %q, and it is %s: %v", written, p.version, err)
	}
}

// command runs QEMU or swtpm, one of another Debian by that one's own loader. It ends with
// the test.
func (p program) command(args ...string) *exec.Cmd {
	cmd := exec.Command(p.path, args...)
	if p.root != "" {
		libraries := p.root + "/usr/lib/x86_64-linux-gnu"
		loaded := []string{"--inhibit-cache", "--library-path", libraries + ":" + libraries + "/swtpm", p.path}
		if strings.HasPrefix(filepath.Base(p.path), "qemu-") {
			loaded = append(loaded, "-L", p.root+"/usr/share/qemu", "-L", p.root+"/usr/share/seabios")
		}
		cmd = exec.Command(p.root+"/usr/lib64/ld-linux-x86-64.so.2", append(loaded, args...)...)
		cmd.Env = append(os.Environ(), fmt.Sprintf("QEMU_MODULE_DIR=%s/qemu", libraries))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}
