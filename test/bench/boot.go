package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// userSpace is what the guest's first process writes to its console. The kernel
// ends after it.
const userSpace = "this-is-user-space"

// kernelArgs are the kernel's arguments of the tiny guest. bootArgs have another init.
const (
	kernelArgs = "console=ttyS0 quiet nokaslr cryptomgr.notests mitigations=off no_timer_check"
	bootArgs   = kernelArgs + " rdinit=/bin/echo -- " + userSpace
)

// bootRows: from exec of QEMU to the guest's first process, with the arguments of a Machine
// and with as few arguments as will do.
func bootRows(ctx context.Context, b *bench) ([]row, error) {
	r := row{ID: "boot", What: "QEMU's start → guest's user space", Unit: seconds, Ours: series{Name: "QEMU with a Machine's arguments"},
		Beside: []series{{Name: "the plainest QEMU line, same kernel"}}, Limit: 1.1, OfRatio: true}
	folder, err := os.MkdirTemp("", "kubeqemu-bench-")
	if err != nil {
		return []row{r}, err
	}
	defer os.RemoveAll(folder)
	kernel := &qemuargs.Kernel{Path: filepath.Join(folder, "vmlinuz"), Initrd: filepath.Join(folder, "initrd"), Args: bootArgs}
	if err := unpackKernel(b.output("images", "tiny-virtio-container-disk.tar"), kernel); err != nil {
		return []row{r}, fmt.Errorf("unpack the kernel: %w", err)
	}
	l, err := launch(ctx, b, folder)
	if err != nil {
		return []row{r}, err
	}
	m := *l.machine
	m.Kernel = kernel
	if err := l.end(); err != nil {
		return []row{r}, err
	}
	// The first round warms the page cache and is not counted.
	for round := range b.rounds + 1 {
		ours, plain, err := bootRound(ctx, b, &m)
		if err != nil {
			return []row{r}, err
		}
		b.say("boot, round %d: %v, %v", round, ours, plain)
		if round > 0 {
			add(&r.Ours, ours.Seconds())
			add(&r.Beside[0], plain.Seconds())
		}
	}
	return []row{r}, nil
}

// bootRound times both twice, in the order A B B A, and returns the means. Linux starts one
// process after the other on one CPU after the other, and CPUs are not equally fast: on a
// virtual machine with two CPUs, one was slower by a fifth. In the order A B, every A would
// run on the slow CPU.
func bootRound(ctx context.Context, b *bench, m *qemuargs.Machine) (ours, plain time.Duration, err error) {
	for _, turn := range []struct {
		boot func(context.Context, *bench, *qemuargs.Machine) (time.Duration, error)
		sum  *time.Duration
	}{{bootMachine, &ours}, {bootPlain, &plain}, {bootPlain, &plain}, {bootMachine, &ours}} {
		took, err := turn.boot(ctx, b, m)
		if err != nil {
			return 0, 0, err
		}
		*turn.sum += took
	}
	return ours / 2, plain / 2, nil
}

// bootMachine times a Machine's guest.
func bootMachine(ctx context.Context, b *bench, m *qemuargs.Machine) (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, err := makeOverlay(m); err != nil {
		return 0, err
	}
	begin := time.Now()
	q, err := execBare(ctx, b.qemu, m)
	if err != nil {
		return 0, err
	}
	if err = q.run(); err == nil {
		q.serial.SetDeadline(time.Now().Add(patience))
		err = awaitUserSpace(q.serial)
	}
	return time.Since(begin), errors.Join(err, q.end())
}

// bootPlain times the same kernel with nothing but memory and a serial port.
func bootPlain(ctx context.Context, b *bench, m *qemuargs.Machine) (time.Duration, error) {
	serial, theirs, err := socketPair()
	if err != nil {
		return 0, err
	}
	defer serial.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, b.qemu, plainArgs(m)...)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	begin := time.Now()
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return 0, fmt.Errorf("start QEMU: %w", err)
	}
	serial.SetDeadline(begin.Add(patience))
	err = awaitUserSpace(serial)
	took := time.Since(begin)
	cmd.Process.Kill()
	cmd.Wait() // its error says only that it was killed
	return took, err
}

// plainArgs are the arguments of the plainest line that boots a Machine's kernel; the
// serial port is the first file that QEMU inherits.
func plainArgs(m *qemuargs.Machine) []string {
	return []string{"-nodefaults", "-display", "none", "-machine", m.Type, "-accel", string(m.Accelerator), "-cpu", m.CPU.Model,
		"-m", strconv.FormatInt(m.MemoryBytes>>20, 10), "-chardev", "socket,id=serial,fd=3", "-device", "isa-serial,chardev=serial",
		"-kernel", m.Kernel.Path, "-initrd", m.Kernel.Initrd, "-append", m.Kernel.Args}
}

func awaitUserSpace(console io.Reader) error {
	var said []byte
	for buffer := make([]byte, 4096); !bytes.Contains(said, []byte(userSpace)); {
		n, err := console.Read(buffer)
		said = append(said, buffer[:n]...)
		if err != nil {
			return fmt.Errorf("wait for the guest's user space: %w; it says %q", err, said)
		}
	}
	return nil
}

// unpackKernel takes a kernel and its initrd out of an image's layers.
func unpackKernel(image string, into *qemuargs.Kernel) error {
	f, err := os.Open(image)
	if err != nil {
		return err
	}
	defer f.Close()
	wanted := map[string]string{"boot/vmlinuz": into.Path, "boot/initrd": into.Initrd}
	for archive := tar.NewReader(f); ; {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if strings.HasSuffix(header.Name, ".tar.gz") {
			if err := unpackLayer(archive, wanted); err != nil {
				return fmt.Errorf("%s: %w", header.Name, err)
			}
		}
	}
	if len(wanted) > 0 {
		return fmt.Errorf("%s has no %v", image, wanted)
	}
	return nil
}

// unpackLayer writes the wanted files and strikes them off.
func unpackLayer(layer io.Reader, wanted map[string]string) error {
	unzipped, err := gzip.NewReader(layer)
	if err != nil {
		return err
	}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(header.Name, "./"), "/")
		path, ok := wanted[name]
		if !ok {
			continue
		}
		data, err := io.ReadAll(files)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
		delete(wanted, name)
	}
}
