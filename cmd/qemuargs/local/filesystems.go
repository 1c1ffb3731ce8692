package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// checkFileSystems says which of a VMI's file systems have no folder, and which folders are for none of them.
func (o Options) checkFileSystems(vmi *v1.VirtualMachineInstance) (errs field.ErrorList, unused []error) {
	for i, f := range vmi.Spec.Domain.Devices.Filesystems {
		if o.FileSystems[f.Name] == "" {
			errs = append(errs, field.Required(field.NewPath("spec", "domain", "devices", "filesystems").Index(i),
				fmt.Sprintf("there is no pod here whose container shares the volume: give a folder with --filesystem %s=FOLDER", f.Name)))
		}
	}
	for name := range o.FileSystems {
		if !vmi.Spec.IsFilesystem(name) {
			unused = append(unused, fmt.Errorf("--filesystem %s: the VM has no file system of this name", name))
		}
	}
	return errs, unused
}

// prepareFileSystems looks at the folders that the guest shares, finds virtiofsd, and makes room for its sockets.
func (v *vm) prepareFileSystems(m *qemuargs.Machine) (err error) {
	if len(m.FileSystems) == 0 {
		return nil
	}
	if v.VirtioFSD, err = findVirtioFSD(v.VirtioFSD); err != nil {
		return err
	}
	for _, f := range m.FileSystems {
		path, err := filepath.EvalSymlinks(v.FileSystems[f.Name]) // the user's own links
		if err == nil {
			path, err = filepath.Abs(path)
		}
		var info os.FileInfo
		if err == nil {
			info, err = os.Stat(path)
		}
		switch {
		case err != nil:
			return fmt.Errorf("share the folder of the file system %s: %w", f.Name, err)
		case !info.IsDir():
			return fmt.Errorf("share the folder of the file system %s: %s is no folder", f.Name, path)
		case len(layout.Lifeline(f.Socket)) > maxSocketPath:
			return fmt.Errorf("the path %s is too long for a socket: set TMPDIR to a folder with a shorter path", layout.Lifeline(f.Socket))
		}
		v.FileSystems[f.Name] = path
		if err := os.MkdirAll(filepath.Dir(f.Socket), 0o700); err != nil {
			return fmt.Errorf("make a folder for the socket of the file system %s: %w", f.Name, err)
		}
	}
	return nil
}

// findVirtioFSD is the path of virtiofsd.
func findVirtioFSD(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("find the program that shares folders: %w; install it (Debian 13: virtiofsd), or name it with --virtiofsd", err)
	}
	return path, nil
}

// serveFileSystems shares the folders until stop is called, which waits for that. virtiofsd has the user's rights, as QEMU has. If a virtiofsd fails before the
// guest uses it, the VM is not started: failed is called.
func (v *vm) serveFileSystems(ctx context.Context, m *qemuargs.Machine, output *os.File, failed func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, f := range m.FileSystems {
		s := sidecar.Server{Program: v.VirtioFSD, Socket: f.Socket, Output: output,
			Args: []string{"--socket-path=" + f.Socket, "--rlimit-nofile=0", "--shared-dir=" + v.FileSystems[f.Name], "--sandbox=none", "--seccomp=kill", "--cache=auto"}}
		all.Go(func() {
			err := s.Serve(ctx)
			if err == nil {
				return
			}
			v.notes.say("the file system %s: %v", f.Name, err)
			if !errors.Is(err, sidecar.ErrLost) {
				failed()
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}
