package diskimage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Copy makes a copy, of exactly size bytes, of a file of size bytes, or of less if size is more than 1 MiB: zeros are what is missing. The copy takes no room for blocks of
// zeros. An existing regular file at path is overwritten.
func Copy(from, path string, size int64) error {
	source, err := openUpTo(from, size)
	if err != nil {
		return err
	}
	defer source.Close()
	f, err := openNew(path)
	if err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	err = copySparse(f, source, size)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, path, err)
	}
	return nil
}

// copySparse copies what source has, and makes the file at f, which is empty, one of size bytes.
func copySparse(f *os.File, source io.Reader, size int64) error {
	block, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	source = io.LimitReader(source, size)
	for at := int64(0); ; {
		n, err := io.ReadFull(source, block)
		if n > 0 && !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := f.WriteAt(block[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return f.Truncate(size)
		}
		if err != nil {
			return err
		}
	}
}

// HasSize fails unless there is a regular file of exactly size bytes.
func HasSize(path string, size int64) error {
	f, err := openSized(path, size)
	if err != nil {
		return err
	}
	return f.Close()
}

// openSized opens a regular file of exactly size bytes.
func openSized(path string, size int64) (*os.File, error) {
	f, err := openUpTo(path, size)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || info.Size() != size {
		f.Close()
		if err == nil {
			err = wrongSize(path, info.Size(), size)
		}
		return nil, err
	}
	return f, nil
}

func wrongSize(path string, is, must int64) error {
	return fmt.Errorf("%s has %d bytes, and must have %d", path, is, must)
}

// mostWhole is the size, in bytes, up to which a template is there with all its zeros. A flash chip of arm64 has 64 MiB, of which the template
// has the first, and the chips of amd64 have less than 1 MiB.
const mostWhole = 1 << 20

// openUpTo opens a regular file of 1 to size bytes, or of size bytes if these are few. A FIFO would block, were it not for O_NONBLOCK.
func openUpTo(path string, size int64) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is no regular file", path)
	case info.Size() == 0 || info.Size() > size || info.Size() < size && size <= mostWhole:
		err = wrongSize(path, info.Size(), size)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
