package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// folderPrefix begins the names of run folders.
const folderPrefix = "qemuargs-run-"

// maxSocketPath is how long a socket's path may be, in bytes (sun_path in unix(7)).
const maxSocketPath = 107

// folder is a private folder that stands for the pod's root: the paths of package layout are
// below it. It holds sockets, the cloud-init seed, and what the guest writes.
type folder struct {
	path string
	lock *os.File
}

// temporary is where run folders are made. It is no memory, if possible: a guest may write as
// much as its disks have.
func temporary() string {
	if dir := os.Getenv("TMPDIR"); dir != "" {
		return dir
	}
	if info, err := os.Stat("/var/tmp"); err == nil && info.IsDir() {
		return "/var/tmp"
	}
	return os.TempDir()
}

// makeFolder makes a folder in parent. It first removes the folders of processes that were
// killed.
func makeFolder(parent string) (*folder, error) {
	removeLeft(parent)
	path, err := os.MkdirTemp(parent, folderPrefix) // mode 0700
	if err != nil {
		return nil, fmt.Errorf("make a folder for the VM: %w", err)
	}
	f := &folder{path: path}
	// Another process may hold the folder for a moment, to see whether it was left.
	if f.lock, err = lockFolder(path, unix.LOCK_EX); err == nil {
		err = f.fill()
	}
	if err != nil {
		f.remove()
		return nil, fmt.Errorf("make a folder for the VM: %w", err)
	}
	return f, nil
}

func (f *folder) fill() error {
	for _, path := range []string{layout.SlotSocket, layout.ConsoleSocket, layout.VNCSocket, layout.AgentSocket} {
		if socket := f.below(path); len(socket) > maxSocketPath {
			return fmt.Errorf("the path %s is too long for a socket: set TMPDIR to a folder with a shorter path", socket)
		}
	}
	var errs []error
	for _, dir := range []string{layout.RunDir, layout.SlotDir, layout.OverlayDir, layout.ImageVolumeDir, layout.SecretDir, layout.StateDir} {
		errs = append(errs, os.MkdirAll(f.below(dir), 0o700))
	}
	return errors.Join(errs...)
}

// below is a path of package layout in the folder.
func (f *folder) below(path string) string { return layout.Below(f.path, path) }

// folders are where the launcher finds disks.
func (f *folder) folders() disks.Folders {
	return disks.Folders{Images: f.below(layout.ImageVolumeDir), Overlays: f.below(layout.OverlayDir), Kernel: f.below(layout.KernelDir),
		Secrets: f.below(layout.SecretDir), Config: f.below(layout.ConfigDir), Run: f.below(layout.RunDir), Claims: f.below(layout.ClaimDir), Blocks: f.below(layout.BlockDir)}
}

func (f *folder) remove() error {
	err := os.RemoveAll(f.path) // follows no links: images are links to the cache
	if f.lock != nil {
		f.lock.Close()
	}
	return err
}

// lockFolder holds a folder until the file is closed or the process ends (flock(2)).
func lockFolder(path string, how int) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), how); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// removeLeft removes the run folders of this user that no process holds.
func removeLeft(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(parent, e.Name())
		var stat unix.Stat_t
		if !strings.HasPrefix(e.Name(), folderPrefix) || !e.IsDir() || unix.Lstat(path, &stat) != nil || stat.Uid != uint32(os.Geteuid()) {
			continue
		}
		// A folder that was just made is not locked yet, and has nothing in it.
		left, err := lockFolder(path, unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			continue
		}
		if names, _ := left.Readdirnames(1); len(names) > 0 {
			os.RemoveAll(path)
		}
		left.Close()
	}
}
