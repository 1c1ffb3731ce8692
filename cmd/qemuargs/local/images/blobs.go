package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"
)

// maxManifest bounds an index, a manifest or a configuration, in bytes.
const maxManifest = 4 << 20

// blobs are the files of which an image consists, by their paths in a folder or an archive.
type blobs interface {
	// find returns a file as a layer, which it may be.
	find(name string) (layer, error)
}

// folderBlobs are files in a folder.
type folderBlobs string

func (f folderBlobs) find(name string) (layer, error) {
	open := func() (*os.File, error) { return os.OpenInRoot(string(f), filepath.FromSlash(name)) }
	file, err := open()
	if err != nil {
		return layer{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return layer{}, err
	}
	return layer{info.Size(), func() (io.ReadCloser, error) { return open() }}, nil
}

// tarBlobs are the files in an archive.
type tarBlobs struct {
	path  string
	files map[string]extent
	links map[string]string // old "docker save" has a link for a layer that it has already
}

// extent is where a file is in the archive.
type extent struct {
	offset, size int64 // in bytes
	// entry is the number of a sparse file's entry, from 1: without its holes the file is in
	// pieces. It is 0 for other files.
	entry int
}

// indexTar finds the files of an archive. It returns nil for a file that is no archive.
func indexTar(file string) (*tarBlobs, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	archive, found := tar.NewReader(f), &tarBlobs{file, map[string]extent{}, map[string]string{}}
	for n := 0; ; n++ {
		header, err := archive.Next()
		switch {
		case n == 0 && err != nil: // zeros, too, with which a raw disk may begin, are the end of an archive
			return nil, nil
		case err == io.EOF:
			return found, nil
		case err != nil:
			return nil, fmt.Errorf("read the archive: %w", err)
		case n == maxEntries:
			return nil, errTooLarge
		}
		name := clean(header.Name)
		if err := checkName(name); err != nil {
			return nil, fmt.Errorf("read the archive: %w", err)
		}
		if err := checkType(header.Typeflag); err != nil {
			return nil, fmt.Errorf("read %s of the archive: %w", shown(name), err)
		}
		// Next has read the header, and no more of the file.
		offset, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		switch at := (extent{offset: offset, size: header.Size}); header.Typeflag {
		case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
			if isSparse(header) {
				at.entry = n + 1
			}
			found.files[name] = at
		case tar.TypeLink:
			found.links[name] = clean(header.Linkname)
		case tar.TypeSymlink:
			found.links[name] = clean(path.Join(path.Dir(name), header.Linkname))
		}
	}
}

// isSparse says whether a file is without its holes in an archive ("tar --sparse"): by the old
// type of GNU tar, or by a record of the later formats.
func isSparse(header *tar.Header) bool {
	for record := range header.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") {
			return true
		}
	}
	return header.Typeflag == tar.TypeGNUSparse
}

// openEntry opens an entry of an archive by its number, from 1.
func openEntry(file string, number int) (io.ReadCloser, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	archive := tar.NewReader(f)
	for range number {
		if _, err := archive.Next(); err != nil {
			f.Close()
			return nil, fmt.Errorf("read the archive: %w", err)
		}
	}
	return fileReader{archive, f}, nil
}

// fileReader reads a part of a file, and closes the file.
type fileReader struct {
	io.Reader
	io.Closer
}

func (t *tarBlobs) has(name string) bool {
	_, ok := t.files[name]
	return ok
}

func (t *tarBlobs) find(name string) (layer, error) {
	name = clean(name)
	if to, ok := t.links[name]; ok {
		name = to
	}
	at, ok := t.files[name]
	if !ok {
		return layer{}, fmt.Errorf("the archive has no file %s", shown(name))
	}
	if at.entry > 0 {
		return layer{at.size, func() (io.ReadCloser, error) { return openEntry(t.path, at.entry) }}, nil
	}
	return layer{at.size, func() (io.ReadCloser, error) {
		f, err := os.Open(t.path)
		if err != nil {
			return nil, err
		}
		return fileReader{io.NewSectionReader(f, at.offset, at.size), f}, nil
	}}, nil
}

// read reads a small file, and checks its digest unless that is empty.
func read(from blobs, name string, digest v1.Hash) ([]byte, error) {
	file, err := from.find(name)
	if err != nil {
		return nil, err
	}
	if file.size > maxManifest {
		return nil, fmt.Errorf("read %s: it has %d bytes, more than %d", shown(name), file.size, maxManifest)
	}
	r, err := file.open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxManifest))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", shown(name), err)
	}
	if digest != (v1.Hash{}) {
		got, _, err := v1.SHA256(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", shown(name), err)
		}
		if got != digest {
			return nil, fmt.Errorf("read %s: its content is %s", shown(name), got)
		}
	}
	return data, nil
}

func readJSON(from blobs, name string, digest v1.Hash, into any) error {
	data, err := read(from, name, digest)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read %s: %w", shown(name), err)
	}
	return nil
}
