package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
)

// KeepMode as the Mode of a File takes the permission bits of its source.
const KeepMode = -1

// File is one file to put into the layer.
type File struct {
	Source string // path on this machine
	Path   string // absolute path in the image
	Mode   int64  // permission bits, or KeepMode
}

// entry is one path of the layer; source is empty for folders that only exist to hold others.
type entry struct {
	source string
	info   fs.FileInfo
	mode   int64
}

// entries lists what the layer holds by path (without the leading slash), folders included.
func (r *Request) entries() (map[string]entry, error) {
	all := map[string]entry{}
	if r.Root != "" {
		err := filepath.WalkDir(r.Root, func(source string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, err := filepath.Rel(r.Root, source)
			if err != nil || name == "." {
				return err
			}
			return add(all, filepath.ToSlash(name), source, KeepMode, os.Lstat)
		})
		if err != nil {
			return nil, fmt.Errorf("read folder %q: %w", r.Root, err)
		}
	}
	for _, file := range r.Files {
		name := path.Clean(file.Path)[1:]
		// A link given as a file stands for what it points to.
		if err := add(all, name, file.Source, file.Mode, os.Stat); err != nil {
			return nil, fmt.Errorf("add %q: %w", file.Path, err)
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = entry{mode: 0o755}
			}
		}
	}
	return all, nil
}

func add(all map[string]entry, name, source string, mode int64, stat func(string) (fs.FileInfo, error)) error {
	info, err := stat(source)
	if err != nil {
		return err
	}
	if mode == KeepMode {
		mode = unixMode(info.Mode())
	}
	all[name] = entry{source: source, info: info, mode: mode}
	return nil
}

// unixMode gives the twelve permission bits, which fs.FileMode keeps in other places.
func unixMode(mode fs.FileMode) int64 {
	bits := int64(mode.Perm())
	for flag, bit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&flag != 0 {
			bits |= bit
		}
	}
	return bits
}

// writeLayer streams the layer as an uncompressed tar, sorted by path, so that a folder precedes its content.
func (r *Request) writeLayer(w io.Writer) error {
	all, err := r.entries()
	if err != nil {
		return err
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	out := tar.NewWriter(w)
	for _, name := range names {
		if err := r.writeEntry(out, name, all[name]); err != nil {
			return fmt.Errorf("write %q: %w", name, err)
		}
	}
	return out.Close()
}

var errNotPackable = errors.New("neither a regular file, a folder nor a symbolic link")

func (r *Request) writeEntry(out *tar.Writer, name string, e entry) error {
	header := &tar.Header{Name: name, Mode: e.mode, Uid: r.UID, Gid: r.GID, ModTime: r.Created, Format: tar.FormatPAX}
	switch {
	case e.info == nil || e.info.IsDir():
		header.Typeflag, header.Name = tar.TypeDir, name+"/"
		return out.WriteHeader(header)
	case e.info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(e.source)
		if err != nil {
			return err
		}
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, target, 0o777
		return out.WriteHeader(header)
	case !e.info.Mode().IsRegular():
		return fmt.Errorf("%s: %w", e.info.Mode().Type(), errNotPackable)
	}
	header.Typeflag, header.Size = tar.TypeReg, e.info.Size()
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	file, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(out, file)
	return err
}
