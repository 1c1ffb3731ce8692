package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileID identifies a file without its path: a loop device of a node tells its backing file's
// path as it was in the node's mount namespace.
type fileID struct{ device, inode uint64 }

// loops maps every bound loop device to its backing file. The kubelet binds
// one for each block volume on a file, and loop devices belong to no
// namespace.
func loops() (map[string]fileID, error) {
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	found := map[string]fileID{}
	for _, name := range names {
		device := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(name)))
		f, err := os.Open(device)
		if err != nil {
			continue // unbound and removed meanwhile
		}
		info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
		f.Close()
		if err == nil {
			found[device] = fileID{device: info.Device, inode: info.Inode}
		}
	}
	return found, nil
}

// loopNames are the loop devices on files in the cluster's folder.
func (p Plan) loopNames() ([]string, error) {
	bound, err := loops()
	if err != nil || len(bound) == 0 {
		return nil, err
	}
	var names []string
	err = filepath.WalkDir(p.Dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return nil // gone meanwhile
		}
		st := info.Sys().(*syscall.Stat_t)
		for name, backing := range bound {
			if backing == (fileID{device: st.Dev, inode: st.Ino}) {
				names = append(names, name)
			}
		}
		return nil
	})
	return names, err
}

func (p Plan) detachLoops() error {
	names, err := p.loopNames()
	if err != nil {
		return err
	}
	for _, name := range names {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("detach loop device: %w", err)
		}
		err = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("detach loop device %s: %w", name, err)
		}
	}
	return nil
}
