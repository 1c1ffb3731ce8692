package kvmcheck

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/atomicfile"
)

// Kept is the file that keeps a verdict for the next process.
type Kept struct{ Path string }

// record is the file's content.
type record struct {
	// Key names what the verdict is about; see the function Key.
	Key string `json:"key"`
	Result
}

// keptSize is more bytes than any record has.
const keptSize = 4 << 10

// ErrNotOurs means that a file was not written by Save.
var ErrNotOurs = errors.New("not a file of this user's that is closed to all others")

// Load returns the verdict that was kept under this key. Without one the error is
// fs.ErrNotExist. A file that anybody but this user could have written gives ErrNotOurs.
func (k Kept) Load(key string) (Result, error) {
	file, err := os.OpenFile(k.Path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Result{}, fmt.Errorf("open verdict on KVM: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return Result{}, fmt.Errorf("look at verdict on KVM: %w", err)
	}
	if stat := info.Sys().(*syscall.Stat_t); stat.Uid != uint32(os.Geteuid()) || info.Mode() != 0o600 || stat.Nlink != 1 {
		return Result{}, fmt.Errorf("read verdict on KVM from %s: %w", k.Path, ErrNotOurs)
	}
	data, err := io.ReadAll(io.LimitReader(file, keptSize))
	if err != nil {
		return Result{}, fmt.Errorf("read verdict on KVM: %w", err)
	}
	var kept record
	if err := json.Unmarshal(data, &kept); err != nil {
		return Result{}, fmt.Errorf("read verdict on KVM: %w", err)
	}
	if kept.Key != key || kept.Verdict != Works && kept.Verdict != Broken {
		return Result{}, fmt.Errorf("read verdict on KVM: of another kernel, boot or device: %w", fs.ErrNotExist)
	}
	return kept.Result, nil
}

// Save keeps a verdict. A crash leaves the old file, or the new one.
func (k Kept) Save(key string, result Result) error {
	data, err := json.Marshal(record{key, result})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(k.Path, data); err != nil {
		return fmt.Errorf("keep verdict on KVM: %w", err)
	}
	return nil
}

// Key names what a verdict is about: this boot of this kernel, and its KVM. When KVM is loaded
// again, its device node is a new inode.
func Key() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot's id: %w", err)
	}
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return "", fmt.Errorf("read the kernel's version: %w", err)
	}
	node := "none"
	var stat unix.Stat_t
	if err := unix.Stat(device, &stat); err == nil {
		node = fmt.Sprintf("%x %d %d", stat.Rdev, stat.Ino, stat.Ctim.Nano())
	}
	return strings.Join([]string{strings.TrimSpace(string(boot)), unix.ByteSliceToString(kernel.Release[:]), unix.ByteSliceToString(kernel.Version[:]),
		node, fmt.Sprintf("%d instructions in %v", loops*instructionsPerLoop, payloadLimit)}, "; "), nil
}
