// Package seccomp looks for seccomp profiles that an administrator has put on the node.
package seccomp

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Folder is the kubelet's folder of seccomp profiles.
type Folder string

// Kernel is the root folder in which the kernel's files proc and sys are.
type Kernel string

// Denies reports whether the kernel denies passt the user namespace, or the mounts in there. A kernel need not have
// all of the switches.
func (k Kernel) Denies() (bool, error) {
	for _, d := range []struct{ file, value string }{
		{"proc/sys/user/max_user_namespaces", "0"},
		{"proc/sys/kernel/unprivileged_userns_clone", "0"},             // Debian's kernels alone have this switch
		{"proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"}, // Ubuntu's
		{"sys/module/apparmor/parameters/enabled", "Y"},                // the AppArmor profile that containerd gives containers denies mounts
	} {
		value, err := os.ReadFile(filepath.Join(string(k), d.file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("read whether the kernel denies passt user namespaces: %w", err)
		}
		if strings.TrimSpace(string(value)) == d.value {
			return true, nil
		}
	}
	return false, nil
}

// OffersPasst reports whether passt can run on the node: the folder has its profile, and the kernel denies nothing of
// it.
func OffersPasst(f Folder, k Kernel) (bool, error) {
	if has, err := f.HasPasst(); !has || err != nil {
		return false, err
	}
	denies, err := k.Denies()
	return !denies && err == nil, err
}

// maxProfile bounds what is read of a profile, in bytes.
const maxProfile = 256 << 10

// passtSum is the SHA-256 sum of config/passt/passt.json. When the file changes, a node with the file of the release
// before counts as one without it, so that nothing which the new file forbids is permitted.
const passtSum = "9d49045284c569c763d3b2289df479e85c5891cb3a68d80d08381b0ef3b66cc0"

// HasPasst reports whether the folder has the profile of passt, byte by byte as this release ships it. A profile that
// somebody has changed may permit more, or too little, so it does not count.
func (f Folder) HasPasst() (bool, error) {
	file, err := os.OpenFile(filepath.Join(string(f), v1.PasstProfile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("open the seccomp profile of passt: %w", err)
	}
	defer file.Close()
	if stat, err := file.Stat(); err != nil || !stat.Mode().IsRegular() {
		return false, err
	}
	content, err := io.ReadAll(io.LimitReader(file, maxProfile))
	if err != nil {
		return false, fmt.Errorf("read the seccomp profile of passt: %w", err)
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]) == passtSum, nil
}
