package slots

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/kubeqemu/kubeqemu/controllers/images"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// maxPrograms is how many containers of a node may have the program at a time. A node has 110 pods by default, and a
// pod one such container for each container disk. The kubelet keeps some hundred bytes for each.
const maxPrograms = 1024

// Program returns the plugin of images.Resource. A container that asks for it gets a folder of the node with
// virt-image. All containers have the same file, so they share its memory. Nothing of theirs is in the folder, and they
// cannot write to it. from is the program in virt-launcher's image. within is a folder of the host, at the same path
// here, in which the folder is. dir is the kubelet's device plugin folder.
func Program(dir, from, within string, log logr.Logger) *Shared {
	folder := filepath.Join(within, "image")
	p := &program{from: from, to: filepath.Join(folder, filepath.Base(layout.Program))}
	give := func() (*deviceplugin.ContainerAllocateResponse, error) {
		if err := p.install(); err != nil {
			return nil, err
		}
		return &deviceplugin.ContainerAllocateResponse{Mounts: []*deviceplugin.Mount{
			{ContainerPath: layout.ProgramDir, HostPath: folder, ReadOnly: true}}}, nil
	}
	return &Shared{Dir: dir, Resource: images.Resource, Socket: "kubeqemu-image.sock", Device: "image",
		Count: maxPrograms, Give: give, Log: log}
}

// program is a program that is copied from a path to another one.
type program struct {
	from, to string

	mu sync.Mutex
	// installed is the copy as it was when it was last seen to be right.
	installed fs.FileInfo
}

// install copies the program, where everybody may run it. It leaves a copy that is right: pods that run it would not
// share their memory with those that run another file. It replaces what a power cut has left.
func (p *program) install() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if stat, err := os.Lstat(p.to); err == nil && p.installed != nil && unchanged(stat, p.installed) {
		return nil
	}
	if err := onHost(filepath.Dir(filepath.Dir(p.to))); err != nil {
		return err
	}
	content, err := os.ReadFile(p.from)
	if err != nil {
		return fmt.Errorf("read the program of containers with disks: %w", err)
	}
	if !holds(p.to, content) {
		if err := replace(p.to, content); err != nil {
			return fmt.Errorf("copy the program of containers with disks to the node: %w", err)
		}
	}
	p.installed, err = os.Lstat(p.to)
	return err
}

// unchanged reports whether a file is the one that it was.
func unchanged(now, before fs.FileInfo) bool {
	return os.SameFile(now, before) && now.Mode() == before.Mode() && now.Size() == before.Size() &&
		now.ModTime().Equal(before.ModTime())
}

// onHost fails if a folder that the host had is gone there: virt-handler's own mount of it stays, and nothing can be
// made in there. The next virt-handler has a new folder.
func onHost(folder string) error {
	var stat unix.Stat_t
	if err := unix.Stat(folder, &stat); err == nil && stat.Nlink == 0 {
		return fmt.Errorf("%s was removed from the node: start virt-handler's pod there anew", folder)
	}
	return nil
}

// holds reports whether there is a program at a path with this content, which everybody may run.
func holds(path string, content []byte) bool {
	stat, err := os.Lstat(path)
	if err != nil || stat.Mode() != programMode || stat.Size() != int64(len(content)) {
		return false
	}
	if folder, err := os.Stat(filepath.Dir(path)); err != nil || folder.Mode().Perm() != folderMode {
		return false
	}
	has, err := os.ReadFile(path)
	return err == nil && bytes.Equal(has, content)
}

// programMode and folderMode: pods run the program as user 107.
const programMode, folderMode fs.FileMode = 0o555, 0o755

// replace writes a program to a path. Pods see the earlier file or the whole new one.
func replace(to string, program []byte) error {
	if err := os.MkdirAll(filepath.Dir(to), folderMode); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Dir(to), folderMode); err != nil { // whatever the umask
		return err
	}
	temporary := to + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, programMode)
	if err != nil {
		return err
	}
	_, err = f.Write(program)
	if err = errors.Join(err, f.Chmod(programMode), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return os.Rename(temporary, to)
}
