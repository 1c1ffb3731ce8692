//go:build long

package vhost

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

	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// patience is how long the test may take in the guest: one emulation in another is tens of
// times slower than one.
const patience = 9 * time.Minute

// TestInGuest runs TestVhostNet on a kernel of Debian's, which has vhost-net. The same program
// runs in a guest that sees this machine's files, and can write none of them.
func TestInGuest(t *testing.T) {
	if netsetup.HasVhostNet() {
		t.Skip("this machine's kernel has vhost-net: TestVhostNet needs no guest")
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience+time.Minute)
	defer cancel()
	outer := kernel(t, "tiny-nested")
	cmd := exec.CommandContext(ctx, launchertest.Program(t, "qemu-system-x86_64"), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-cpu", "max", "-smp", "2", "-m", "1024", "-accel", "tcg,tb-size=256", "-serial", "stdio",
		"-kernel", filepath.Join(outer, "vmlinuz"), "-initrd", filepath.Join(outer, "initrd"), "-append", "console=ttyS0 quiet",
		"-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	said := launchertest.NewTranscript(t, "the guest's serial port")
	cmd.Stdout, cmd.Stderr = said, said
	keyboard, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said.Expect("tiny# ")
	for _, line := range []string{
		"set -e", // a failure ends the shell, and the next line's shell says nothing of a test that passed
		"modprobe -a 9pnet_virtio 9p vhost_net tun",
		"mkdir /mnt/host; mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /mnt/host",
		"for folder in proc sys dev; do mount --bind /$folder /mnt/host/$folder; done; mount -t tmpfs tmpfs /mnt/host/run",
		fmt.Sprintf("chroot /mnt/host /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/run sh -c 'cd %s && exec %s -test.v -test.timeout %s -test.run ^TestVhostNet$' || true", folder, program, patience),
		"poweroff -f",
	} {
		if _, err := io.WriteString(keyboard, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(said.String(), "--- PASS: TestVhostNet ") {
		t.Errorf("TestVhostNet in a guest: QEMU: %v\nthe guest: %s\n%q", err, said, cmd.Args)
	}
	t.Log(said)
}
