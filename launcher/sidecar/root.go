package sidecar

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// CopyRoot copies the file system with this container's image to a folder: its folders, files and symbolic links, with
// their modes. Of what is mounted there, such as /dev, it makes an empty folder. It replaces what is left of an earlier
// copy.
func CopyRoot(root, folder string) error {
	own, err := os.Stat(root)
	if err != nil {
		return fmt.Errorf("look at the image: %w", err)
	}
	into, err := os.Stat(folder)
	if err != nil {
		return fmt.Errorf("look at the folder of the copy: %w", err)
	}
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("read the image: %w", err)
		}
		info, err := entry.Info()
		if err != nil {
			return fmt.Errorf("read the image: %w", err)
		}
		below, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		to := filepath.Join(folder, below)
		switch {
		case entry.IsDir() && (!sameDevice(own, info) || os.SameFile(into, info)):
			// The folder of the copy is on the image's device where containerd copies images (snapshotter native).
			return cmp.Or(makeFolder(to, 0o755), fs.SkipDir)
		case !sameDevice(own, info):
			return nil
		case entry.IsDir():
			return makeFolder(to, info.Mode().Perm())
		case info.Mode()&fs.ModeSymlink != 0:
			return copyLink(path, to)
		case info.Mode().IsRegular():
			return copyRegular(path, to, info.Mode().Perm())
		}
		return nil
	})
}

func sameDevice(a, b fs.FileInfo) bool {
	of, ok := a.Sys().(*syscall.Stat_t)
	is, ok2 := b.Sys().(*syscall.Stat_t)
	return ok && ok2 && of.Dev == is.Dev
}

func makeFolder(path string, mode os.FileMode) error {
	// The owner may write into each, or a folder of mode 0555 could not be filled.
	if err := os.MkdirAll(path, mode|0o700); err != nil {
		return fmt.Errorf("make a folder of the copy: %w", err)
	}
	return nil
}

func copyLink(from, to string) error {
	target, err := os.Readlink(from)
	if err == nil {
		_ = os.Remove(to) // of an earlier copy
		err = os.Symlink(target, to)
	}
	if err != nil {
		return fmt.Errorf("copy a link: %w", err)
	}
	return nil
}

func copyRegular(from, to string, mode os.FileMode) error {
	f, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy a file: %w", err)
	}
	defer f.Close()
	if err := os.RemoveAll(to); err != nil { // of an earlier copy
		return fmt.Errorf("make room for the copy of a file: %w", err)
	}
	copied, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return fmt.Errorf("copy a file: %w", err)
	}
	if _, err := io.Copy(copied, f); err != nil {
		return errors.Join(fmt.Errorf("copy a file: %w", err), copied.Close())
	}
	return copied.Close()
}
