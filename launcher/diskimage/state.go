package diskimage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/imagefile"
)

// OpenState opens, to read and write, the file called name in the folder of the volume mounted at root, which holds a guest's
// state. If there is none, OpenState makes the folder and the file, a copy of template. The copy appears whole or not at all,
// and never replaces anything. Others may write to the volume: what holds for OpenVolume holds for OpenState, also of the folder. A file
// that has not size bytes is refused and not changed.
func OpenState(root, folder, name, template string, size int64) (*os.File, error) {
	dir, err := openStateFolder(root, folder)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := openIn(dir, folder, name, false)
	if errors.Is(err, fs.ErrNotExist) {
		if err = copyInto(dir, name, template, size); err == nil {
			f, err = openIn(dir, folder, name, false)
		}
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != size {
		err = fmt.Errorf("%w: /%s has %d bytes, and must have %d; delete it, and it is made anew", ErrUnusable, path.Join(folder, name), info.Size(), size)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openStateFolder opens a folder in the root of a volume, and makes it if there is none.
func openStateFolder(root, folder string) (*os.File, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, fmt.Errorf("open volume: %w", err)
	}
	defer dir.Close()
	folder = filepath.Base(folder)
	err = unix.Mkdirat(int(dir.Fd()), folder, 0o770)
	switch {
	case errors.Is(err, fs.ErrExist):
	case err != nil:
		return nil, explainCreate(root, folder, err)
	default:
		// The umask has taken the group's rights away. Others in the volume's group may need them: a backup, or a later launcher.
		if made, err := beneath(dir, folder, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW); err == nil {
			_ = made.Chmod(0o770 | os.ModeSetgid)
			made.Close()
		}
		if err := syncFolder(dir); err != nil {
			return nil, err
		}
	}
	at, err := beneath(dir, folder, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return nil, fmt.Errorf("find /%s: %w", folder, err)
	}
	defer at.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("stat /%s: %w", folder, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, fmt.Errorf("%w: /%s is a %s, not a folder", ErrUnusable, folder, imagefile.FileKind(stat.Mode))
	}
	f, err := reopen(at, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, explainUse("/"+folder, stat, true, err, fmt.Sprintf("make it readable and writable for group %d", os.Getgid()))
	}
	return f, nil
}

// copyInto makes a copy of template in a folder that is open. The folder's own path may lead elsewhere by now.
func copyInto(dir *os.File, name, template string, size int64) error {
	source, err := openUpTo(template, size)
	if err != nil {
		return err
	}
	defer source.Close()
	root := through(dir)
	f, err := os.CreateTemp(root, "."+name+"-*")
	if err != nil {
		return explainCreate(root, name, err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	for _, step := range []func() error{func() error { return f.Chmod(0o660) }, func() error { return copySparse(f, source, size) }, f.Sync} {
		if err := step(); err != nil {
			return fmt.Errorf("copy %s to the volume: %w", template, err)
		}
	}
	if err := placeNew(f.Name(), filepath.Join(root, name)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("name the copy of %s: %w", template, err)
	}
	return syncFolder(dir)
}
