package launcher

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// keeper starts machines one after the other that keep their UEFI variables in a volume.
func keeper(t *testing.T, volume string) func() *vm {
	return func() *vm {
		v := launch(t)
		v.uefi(false)
		v.keepsVariables(volume)
		v.must(v.call(control.CommandStart, v.request, nil))
		return v
	}
}

// hostileVariables puts at path, in place of the UEFI variables, what a tenant may put there. The guest does not
// start, the end names the file, and no launcher waits for it. left is what OVMF wrote. Nothing is at path
// afterwards.
func hostileVariables(t *testing.T, start func() *vm, path string, left []byte) {
	t.Helper()
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	must(os.WriteFile(outside, left, 0o660))
	for name, c := range map[string]struct {
		put     func() error
		message string
	}{
		"a link": {func() error { return os.Symlink(outside, path) }, "/nvram/variables.fd is a symbolic link"},
		"a FIFO": {func() error { return unix.Mkfifo(path, 0o666) }, "/nvram/variables.fd is a FIFO"},
		"a device": {func() error { return unix.Mknod(path, unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))) },
			"/nvram/variables.fd is a block device"},
		"a hard link": {func() error { return errors.Join(os.WriteFile(path+"2", left, 0o660), os.Link(path+"2", path)) },
			"has 2 names"},
		"too small": {func() error { return os.WriteFile(path, left[:len(left)-1], 0o660) },
			fmt.Sprintf("has %d bytes", len(left)-1)},
		"too large": {func() error { return os.WriteFile(path, append(bytes.Clone(left), 0), 0o660) },
			fmt.Sprintf("has %d bytes", len(left)+1)},
	} {
		must(os.Remove(path), c.put())
		v := start()
		if end := v.expectEnd(control.ReasonStartFailed, c.message); !strings.Contains(end.Message,
			"the UEFI variables on the claim with the guest's state") {
			t.Errorf("%s: the end does not name the state: %q", name, end.Message)
		}
	}
	if now, err := os.ReadFile(outside); err != nil || !bytes.Equal(now, left) {
		t.Errorf("the file outside has changed (%v)", err)
	}
	must(os.Remove(path))
}

// garbledVariables puts noise, and variables with a broken header, at path. They are the guest's own trouble: its
// firmware reads them inside the guest. QEMU runs, and ends when the launcher is asked to end. left is what OVMF
// wrote.
func garbledVariables(t *testing.T, start func() *vm, path string, left []byte) {
	t.Helper()
	random := rand.New(rand.NewSource(1))
	noise := make([]byte, qemuargs.VariablesBytes)
	random.Read(noise)
	garbled := [][]byte{noise, bytes.Repeat([]byte{0}, len(noise)), bytes.Repeat([]byte{0xff}, len(noise))}
	for range 3 {
		broken := bytes.Clone(left)
		for range 8 {
			broken[random.Intn(0x64)] ^= byte(1 + random.Intn(255)) // the headers of the volume and of the store of variables
		}
		garbled = append(garbled, broken)
	}
	for i, data := range garbled {
		if err := os.WriteFile(path, data, 0o660); err != nil {
			t.Fatal(err)
		}
		v := start()
		v.until(control.StateRunning)
		v.stop()
		if info, err := os.Lstat(path); err != nil || info.Size() != qemuargs.VariablesBytes || !info.Mode().IsRegular() {
			t.Errorf("%d: the file is %v (%v)", i, info, err)
		}
	}
}

// TestVariablesSwapped: a tenant who swaps the variables for a link again and again while the guest starts gives QEMU
// no file outside of the volume.
func TestVariablesSwapped(t *testing.T) {
	t.Parallel()
	volume := t.TempDir()
	path := filepath.Join(volume, "nvram/variables.fd")
	outside := filepath.Join(t.TempDir(), "outside")
	secret := bytes.Repeat([]byte("secret! "), qemuargs.VariablesBytes/8)
	template := launch(t)
	template.uefi(false)
	good, err := os.ReadFile(template.request.Machine.Firmware.Variables.Template)
	template.must(err, os.WriteFile(outside, secret, 0o660), os.Mkdir(filepath.Dir(path), 0o777),
		os.WriteFile(path, good, 0o660), os.Symlink(outside, path+".link"))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, path+".link", unix.RENAME_EXCHANGE)
			}
		}
	}()
	started := 0
	for range 6 {
		v := keeper(t, volume)()
		report := v.untilReport("a start or an end", func(r control.StateReport) bool {
			return r.State == control.StateRunning || r.State == control.StateExited
		})
		if report.State == control.StateRunning {
			started++
			files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", report.QEMUPID))
			v.must(err)
			for _, fd := range files {
				if at, err := os.Readlink(fd); err == nil && at == outside {
					t.Errorf("QEMU has %s open", at)
				}
			}
			v.stop()
		} else if end := v.termination(); end.Reason != control.ReasonStartFailed ||
			!strings.Contains(end.Message, "is a symbolic link") {
			t.Errorf("a swapped file ends with %+v", end)
		}
	}
	close(stop)
	<-stopped
	t.Logf("%d of 6 guests found the file", started)
	if now, err := os.ReadFile(outside); err != nil || !bytes.Equal(now, secret) {
		t.Errorf("the file outside has changed (%v)", err)
	}
}

// TestHostileTPMFolder: what a tenant puts in place of a TPM's folder or files keeps the guest from starting, and the
// end names it. The guest finds its TPM again when the tenant has mended that.
func TestHostileTPMFolder(t *testing.T) {
	t.Parallel()
	volume := t.TempDir()
	next := func() *vm {
		v := launchTPM(t)
		v.keepsTPM(volume)
		return v
	}
	first := next()
	first.boot()
	seeds := kept(t, volume, "1")
	first.stop()
	outside := t.TempDir()
	folder, file := filepath.Join(volume, "tpm/1"), filepath.Join(volume, "tpm/1/tpm2-00.permall")
	first.must(os.WriteFile(filepath.Join(outside, "tpm2-00.permall"), seeds, 0o600))
	for name, c := range map[string]struct {
		place   string // what is moved away for it
		put     func() error
		message string
	}{
		"a link as the folder": {folder, func() error { return os.Symlink(outside, folder) }, "/tpm/1 is not a folder"},
		"a link as the state": {file, func() error { return os.Symlink(filepath.Join(outside, "tpm2-00.permall"), file) },
			"is a symbolic link"},
		"a FIFO as the state": {file, func() error { return unix.Mkfifo(file, 0o600) }, "is a FIFO"},
		"a device as the state": {file, func() error { return unix.Mknod(file, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) },
			"is a character device"},
	} {
		aside := filepath.Join(volume, "aside")
		first.must(os.Rename(c.place, aside), c.put())
		v := next()
		v.must(v.call(control.CommandStart, v.request, nil))
		if end := v.expectEnd(control.ReasonStartFailed, c.message); !strings.Contains(end.Message,
			"the TPM's state on the claim with the guest's state") {
			t.Errorf("%s: the end does not name the state: %q", name, end.Message)
		}
		first.must(os.Remove(c.place), os.Rename(aside, c.place))
	}
	if now, err := os.ReadFile(filepath.Join(outside, "tpm2-00.permall")); err != nil || !bytes.Equal(now, seeds) {
		t.Errorf("the file outside has changed (%v)", err)
	}
	again := next()
	again.boot()
	if !sameTPM(kept(t, volume, "1"), seeds) {
		t.Error("the mended TPM is another one")
	}
}
