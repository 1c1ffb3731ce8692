package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
)

// CopyProgram copies this process's own program to a path, where the other containers of the pod have it. Their images
// are a tenant's.
func CopyProgram(path string) error {
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the own program: %w", err)
	}
	from, err := os.Open(own)
	if err != nil {
		return fmt.Errorf("open the own program: %w", err)
	}
	defer from.Close()
	return copyTo(from, path, 0o555)
}

// copyTo copies a file to a path. What was there is replaced, as after a restart of the container.
func copyTo(from io.Reader, path string, mode os.FileMode) error {
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("make room for %s: %w", path, err)
	}
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), to.Close())
	}
	return to.Close()
}

// ServeImage hands out the disk at a path in this container's image, at a socket, until ctx ends. An empty path means
// the only file in /disk. An image without such a disk is told to whoever asks for the disk.
func ServeImage(ctx context.Context, socket, path string) error {
	return HandOut(ctx, socket, func() (*os.File, error) {
		f, _, err := diskimage.Open("/", path)
		return f, err
	})
}

// CopyFiles copies files of the container's image, by their paths below root, to the same paths below a folder. most
// bounds their bytes together. CopyFiles follows no symbolic link.
func CopyFiles(root, folder string, most int64, names ...string) error {
	for _, name := range names {
		size, err := copyFile(root, folder, most, name)
		if err != nil {
			return err
		}
		most -= size
	}
	return nil
}

func copyFile(root, folder string, most int64, name string) (size int64, err error) {
	from, name, err := diskimage.Open(root, name)
	if err != nil {
		return 0, err
	}
	defer from.Close()
	stat, err := from.Stat()
	if err != nil {
		return 0, fmt.Errorf("stat /%s: %w", name, err)
	}
	if stat.Size() > most {
		return 0, fmt.Errorf("%w: /%s has %d bytes, and %d may be copied", diskimage.ErrUnusable, name, stat.Size(), most)
	}
	path := filepath.Join(folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return 0, fmt.Errorf("make the folder of /%s: %w", name, err)
	}
	return stat.Size(), copyTo(io.LimitReader(from, stat.Size()), path, 0o444)
}
