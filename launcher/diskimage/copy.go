package diskimage

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Copy makes a copy of a file of exactly size bytes, a few MiB at most. An existing regular file at path is overwritten.
func Copy(from, path string, size int64) error {
	source, err := openSized(from, size)
	if err != nil {
		return err
	}
	defer source.Close()
	f, err := openNew(path)
	if err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	_, err = io.CopyN(f, source, size)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, path, err)
	}
	return nil
}

// HasSize fails unless there is a regular file of exactly size bytes.
func HasSize(path string, size int64) error {
	f, err := openSized(path, size)
	if err != nil {
		return err
	}
	return f.Close()
}

// openSized opens a regular file of exactly size bytes. A FIFO would block, were it not for O_NONBLOCK.
func openSized(path string, size int64) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is no regular file", path)
	case info.Size() != size:
		err = fmt.Errorf("%s has %d bytes, and must have %d", path, info.Size(), size)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
