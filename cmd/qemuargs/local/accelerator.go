package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// chooseAccelerator takes KVM if KVM works for this user, and else emulation. why says why not
// KVM. A KVM that works is remembered in the cache until the next boot: the check takes as long
// as QEMU's start.
func chooseAccelerator(ctx context.Context, cache string) (accelerator qemuargs.Accelerator, why string) {
	const device = "/dev/kvm"
	if err := unix.Access(device, unix.R_OK|unix.W_OK); err != nil {
		if errors.Is(err, unix.EACCES) {
			return qemuargs.TCG, fmt.Sprintf("%s: %v; the group of the device (Debian: kvm) may use it", device, err)
		}
		return qemuargs.TCG, fmt.Sprintf("%s: %v", device, err)
	}
	kept := kvmcheck.Kept{Path: filepath.Join(cache, "kvm.json")}
	key, err := kvmcheck.Key()
	if err == nil {
		if known, err := kept.Load(key); err == nil && known.Verdict == kvmcheck.Works {
			return qemuargs.KVM, ""
		}
	}
	result := kvmcheck.Checker{}.Run(ctx)
	if result.Verdict != kvmcheck.Works {
		return qemuargs.TCG, result.Reason
	}
	if err == nil && os.MkdirAll(cache, 0o700) == nil {
		_ = kept.Save(key, result) // else it is checked again
	}
	return qemuargs.KVM, ""
}

// program is a QEMU on this machine.
type program struct {
	path    string
	version string // such as 7.2.22
	// versionFile holds the version for the launcher.
	versionFile string
}

// findQEMU finds QEMU and its version. The version is remembered in the cache as long as the
// program's file stays the same: to ask takes a third of QEMU's start.
func findQEMU(ctx context.Context, name, cache string) (program, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return program{}, fmt.Errorf("find QEMU: %w; install it (Debian: qemu-system-x86, and qemu-system-arm for arm64), or name it with --qemu", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return program{}, fmt.Errorf("find QEMU: %w", err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", path, info.Size(), info.ModTime().UnixNano()))
	p := program{path: path, versionFile: filepath.Join(cache, "qemu-versions", hex.EncodeToString(sum[:]))}
	if p.version, err = process.QEMUVersion(ctx, path, p.versionFile); err != nil {
		return program{}, err
	}
	// A cache that cannot be written costs time, and no more.
	line := []byte(p.version + "\n")
	if kept, err := os.ReadFile(p.versionFile); err != nil || !bytes.Equal(kept, line) {
		if os.MkdirAll(filepath.Dir(p.versionFile), 0o700) == nil {
			_ = os.WriteFile(p.versionFile, line, 0o600)
		}
	}
	return p, nil
}
