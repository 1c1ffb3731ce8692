//go:build long

package kernel

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
)

// patience is how long a test may take in the guest: one emulation in another is tens of times
// slower than one.
const patience = 15 * time.Minute

// TestOtherTestsInAGuestsKernel runs the other tests on a kernel of Debian's, which has vhost-net and VLANs, and
// loads nftables as a module. The same program runs in a guest that sees this machine's files, and can
// write none of them.
func TestOtherTestsInAGuestsKernel(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	run := func(test, environment string) string {
		return fmt.Sprintf("chroot /mnt/host /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/run %s sh -c 'cd %s && exec %s -test.v -test.timeout %s -test.run ^%s$' || true",
			environment, folder, program, patience, test)
	}
	said := inGuest(t,
		"modprobe -a 9pnet_virtio 9p",
		"mkdir /mnt/host; mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /mnt/host",
		"for folder in proc sys dev; do mount --bind /$folder /mnt/host/$folder; done; mount -t tmpfs tmpfs /mnt/host/run",
		"echo /bin/false >/proc/sys/kernel/modprobe; modprobe nfnetlink",
		run("TestWithoutNFTables", withoutNFTables+"=yes"),
		"echo /sbin/modprobe >/proc/sys/kernel/modprobe; modprobe -a crc32c_generic vhost_net tun",
		run("TestVhostNet", ""),
		run("TestVLAN", ""))
	for _, test := range []string{"TestWithoutNFTables", "TestVhostNet", "TestVLAN"} {
		if !strings.Contains(said, "--- PASS: "+test+" ") {
			t.Errorf("%s failed in the guest", test)
		}
	}
	t.Log(said)
}

// inGuest has a guest's shell run lines, one after the other, and returns what the guest said.
func inGuest(t *testing.T, lines ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	boot := kernel(t, "tiny-nested")
	cmd := exec.CommandContext(ctx, launchertest.Program(t, "qemu-system-x86_64"), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-cpu", "max", "-smp", "2", "-m", "1024", "-accel", "tcg,tb-size=256", "-serial", "stdio",
		"-kernel", filepath.Join(boot, "vmlinuz"), "-initrd", filepath.Join(boot, "initrd"), "-append", "console=ttyS0 quiet",
		"-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	said := testkit.NewTranscript(t, "the guest's serial port")
	cmd.Stdout, cmd.Stderr = said, said
	keyboard, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said.Expect("tiny# ")
	// A line that fails ends the shell, and with it the rest of the lines.
	for _, line := range append([]string{"set -e"}, append(lines, "poweroff -f")...) {
		if _, err := io.WriteString(keyboard, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("QEMU: %v\nthe guest: %s\n%q", err, said, cmd.Args)
	}
	return said.String()
}
