// Package atomicfile writes files that readers see as a whole.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Write writes a file with mode 0600. Readers, also after a crash of this process, find the old
// file or the new one. The errors name a file of the same folder, whose name begins with ".new-".
func Write(path string, data []byte) error {
	return write(path, data, func(*os.File) error { return nil })
}

// WriteSynced is Write. When it returns, the file is on the storage: a power cut does not bring the old
// one back.
func WriteSynced(path string, data []byte) error {
	if err := write(path, data, (*os.File).Sync); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

func write(path string, data []byte, sync func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err := errors.Join(err, sync(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
