// Package cpuprobe asks a QEMU which CPUs this node can give guests. The QEMU is that of the launcher's image, whose
// root is a folder of the caller's. It runs in that root, as an ordinary user without rights, in namespaces of its
// own, and starts no guest.
package cpuprobe

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Argument is the first argument of a program that is to call Main with those that follow.
const Argument = "cpu-probe"

const (
	// user is whom QEMU runs as: the user of the launcher's image.
	user = 107
	// cpuSeconds bounds QEMU's CPU time. The questions take less than one.
	cpuSeconds = 60
	qemu       = "/usr/bin/qemu-system-x86_64"
	kvmDevice  = "/dev/kvm"
)

// Main becomes QEMU: it is the child's main function. The arguments are the root folder and the accelerator. QEMU's
// monitor is at file descriptor 3. Main returns an exit code only if it fails.
func Main(args []string, stderr io.Writer) int {
	if err := become(args); err != nil {
		fmt.Fprintln(stderr, err)
	}
	return 1
}

func become(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want a root folder and an accelerator, not %q", args)
	}
	root, accelerator := args[0], args[1]
	runtime.LockOSThread() // the rights of other threads do not matter: exec ends them
	if err := enter(root, accelerator == "kvm"); err != nil {
		return err
	}
	if err := drop(); err != nil {
		return err
	}
	// An emulated machine has a CPU, which is asked; see whole. Under KVM there is none: some KVMs end QEMU as soon as
	// it makes a CPU.
	machine := []string{"-machine", "none"}
	if accelerator == "tcg" {
		machine = []string{"-machine", "q35", "-cpu", "max", "-m", "16"}
	}
	argv := append([]string{qemu, "-accel", accelerator}, machine...)
	argv = append(argv, "-S", "-nodefaults", "-no-user-config", "-display", "none",
		"-chardev", "socket,id=qmp,fd=3", "-mon", "chardev=qmp,mode=control")
	if err := unix.Exec(qemu, argv, []string{"PATH=/usr/bin"}); err != nil {
		return fmt.Errorf("run QEMU: %w", err)
	}
	return nil
}

// enter makes the folder the root. Its own folder dev gets the devices that QEMU opens: the mounts are seen by this
// process alone.
func enter(root string, kvm bool) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from others: %w", err)
	}
	dev := filepath.Join(root, "dev")
	if err := unix.Mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "size=64k,mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", dev, err)
	}
	devices := []string{"/dev/null", "/dev/urandom"}
	if kvm {
		devices = append(devices, kvmDevice)
	}
	for _, device := range devices {
		if err := copyDevice(device, filepath.Join(root, device)); err != nil {
			return err
		}
	}
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("enter %s: %w", root, err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("enter %s: %w", root, err)
	}
	return nil
}

func copyDevice(device, path string) error {
	var host unix.Stat_t
	if err := unix.Stat(device, &host); err != nil {
		return fmt.Errorf("find %s: %w", device, err)
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(host.Rdev)); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return fmt.Errorf("open %s to all users: %w", path, err)
	}
	return nil
}

// drop gives up all rights.
func drop() error {
	limit := unix.Rlimit{Cur: cpuSeconds, Max: cpuSeconds}
	if err := unix.Setrlimit(unix.RLIMIT_CPU, &limit); err != nil {
		return fmt.Errorf("limit CPU time: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("limit core dumps: %w", err)
	}
	for _, step := range []func() error{
		func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) },
		func() error { return syscall.Setgroups(nil) },
		func() error { return syscall.Setgid(user) },
		func() error { return syscall.Setuid(user) },
		// A change of the user forgets it.
		func() error { return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("give up rights: %w", err)
		}
	}
	return nil
}
