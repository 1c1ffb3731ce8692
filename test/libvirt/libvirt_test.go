//go:build long

package libvirt

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/compare"
)

// patience is how long libvirtd may take for all domains.
const patience = 15 * time.Minute

// TestAgainstLibvirt: libvirt's arguments for the machines of the catalogue differ from ours
// only where the reviewed list says so, and each line of the list is needed.
func TestAgainstLibvirt(t *testing.T) {
	kvm := hasKVM()
	accelerators := []qemuargs.Accelerator{qemuargs.TCG, qemuargs.KVM}
	if !kvm {
		t.Log("THIS MACHINE HAS NO KVM: machines with KVM are not compared")
		accelerators = accelerators[:1]
	}
	all := catalogue(t, accelerators...)
	theirs := libvirtArguments(t, all)
	groups, err := Reviewed(reviewedFile)
	if err != nil {
		t.Fatal(err)
	}
	needed, unknown := map[Pattern]bool{}, map[string][]string{}
	for _, f := range all {
		their, compared := theirs[f.name]
		if !compared {
			continue // libvirtArguments has said why
		}
		for _, d := range compare.Differences(compare.Arguments(f.machine.Args()), their) {
			if p, ok := covering(groups, f.name, d); ok {
				needed[p] = true
			} else {
				unknown[d.String()] = append(unknown[d.String()], f.name)
			}
		}
	}
	for _, d := range slices.Sorted(maps.Keys(unknown)) {
		t.Errorf("%s does not list %s (%d domains, such as %s)", reviewedFile, d, len(unknown[d]), unknown[d][0])
	}
	for _, g := range groups {
		for _, p := range g.Differences {
			if !needed[p] && (kvm || !p.KVM) {
				t.Errorf("%s: %q: no domain differs like this: %+v", reviewedFile, g.Title, p)
			}
		}
	}
	t.Logf("%d domains compared with libvirt's", len(theirs))
}

// covering returns the first pattern for a difference.
func covering(groups []Group, domain string, d compare.Difference) (Pattern, bool) {
	for _, g := range groups {
		for _, p := range g.Differences {
			if p.Covers(domain, d) {
				return p, true
			}
		}
	}
	return Pattern{}, false
}

// hasKVM says whether KVM makes machines.
func hasKVM() bool {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	const createVM = 0xae01 // KVM_CREATE_VM, which returns a file
	vm, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), createVM, 0)
	if errno != 0 {
		return false
	}
	unix.Close(int(vm))
	return true
}

// libvirtArguments asks libvirt for the arguments of each machine.
func libvirtArguments(t *testing.T, features []feature) map[string][]compare.Argument {
	t.Helper()
	folder := visibleFolder(t)
	for _, arch := range []qemuargs.Arch{qemuargs.AMD64, qemuargs.ARM64} {
		copyFile(t, "testdata/emulator.sh", emulator(folder, arch))
	}
	var files strings.Builder
	for _, f := range features {
		write(t, filepath.Join(folder, f.name+".xml"), f.domain(t, emulator(folder, f.machine.Arch)))
		for _, d := range f.machine.Disks {
			fmt.Fprintln(&files, d.Image.Path)
			if d.Overlay != nil {
				fmt.Fprintln(&files, d.Overlay.Path)
			}
		}
		if u := f.machine.Firmware; u != nil {
			fmt.Fprintf(&files, "%s\n%s\n", u.Code, u.Variables.Path)
		}
	}
	write(t, filepath.Join(folder, "files"), files.String())
	ask(t, folder)
	out := map[string][]compare.Argument{}
	for _, f := range features {
		argv, err := os.ReadFile(filepath.Join(folder, f.name+".argv"))
		if err != nil {
			said, _ := os.ReadFile(filepath.Join(folder, f.name+".error"))
			if slices.ContainsFunc(f.machine.NICs, func(n qemuargs.NIC) bool { return n.HostDevice != "" }) {
				t.Logf("%s: NOT COMPARED, because this machine has no such network card: %s", f.name, bytes.TrimSpace(said))
				continue
			}
			t.Errorf("%s: libvirt made no arguments: %s", f.name, bytes.TrimSpace(said))
			continue
		}
		out[f.name] = arguments(string(argv), emulator(folder, f.machine.Arch))
	}
	return out
}

// emulator is the path of what stands in for the QEMU of an architecture.
func emulator(folder string, arch qemuargs.Arch) string { return filepath.Join(folder, arch.Program()) }

// ask runs libvirtd for the domains of a folder.
func ask(t *testing.T, folder string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("run this test as root: libvirtd gets namespaces of its own")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	script, err := filepath.Abs("testdata/libvirt.sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "unshare", "--pid", "--fork", "--kill-child", "--mount", "--net", script, folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // and --kill-child ends all the others
	cmd.WaitDelay = 10 * time.Second
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ask libvirt (make libvirt-diff installs it): %v: %s", err, said)
	}
}

// visibleFolder is a temporary folder that others than root may look into.
func visibleFolder(t *testing.T) string {
	t.Helper()
	// Not t.TempDir, whose parent is root's alone.
	folder, err := os.MkdirTemp("", "libvirt")
	if err == nil {
		t.Cleanup(func() { os.RemoveAll(folder) })
		err = os.Chmod(folder, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Program(t, to, text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// arguments are the words after the program, each flag with its value.
func arguments(argv, program string) (out []compare.Argument) {
	words := strings.Split(strings.TrimSuffix(argv, "\x00"), "\x00")
	words = words[slices.Index(words, program)+1:]
	for _, w := range words {
		if strings.HasPrefix(w, "-") || len(out) == 0 {
			out = append(out, compare.Argument(w))
		} else {
			out[len(out)-1] += compare.Argument(" " + w)
		}
	}
	return out
}
