package images

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"

	"github.com/kubeqemu/kubeqemu/internal/atomicfile"
)

// fileState is what the cache remembers of a file that it has unpacked.
type fileState struct {
	path    string // below the image's folder; that of a folder ends in a slash
	size    int64  // in bytes; 0 for a folder
	changed int64  // in nanoseconds since 1970; 0 for a folder
}

// String is the file's line in the list of an image's files.
func (s fileState) String() string { return fmt.Sprintf("%d %d %q\n", s.size, s.changed, s.path) }

func parseFileState(line string) (s fileState, err error) {
	_, err = fmt.Sscanf(line, "%d %d %q", &s.size, &s.changed, &s.path)
	return s, err
}

// filesOf lists the files of an image's folder, a line for each.
func filesOf(folder string) (string, error) {
	var out strings.Builder
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			out.WriteString(fileState{path: rel + "/"}.String())
			return nil
		}
		info, err := d.Info()
		if err == nil {
			out.WriteString(fileState{rel, info.Size(), info.ModTime().UnixNano()}.String())
		}
		return err
	})
	return out.String(), err
}

// listFile holds the list of the files that were unpacked.
func (c *Cache) listFile(id v1.Hash) string { return c.imageFolder(id) + ".files" }

// intact says whether an image's folder is as it was unpacked.
func (c *Cache) intact(id v1.Hash) bool {
	list, err := os.ReadFile(c.listFile(id))
	if err != nil {
		return false
	}
	files, err := filesOf(c.imageFolder(id))
	return err == nil && files == string(list)
}

// checkFiles refuses an image of which a file is gone or has another size. The image may come
// from a cache that kept no list: then nothing is known of its files.
func (c *Cache) checkFiles(id v1.Hash) error {
	list, err := os.ReadFile(c.listFile(id))
	if err != nil {
		return nil
	}
	folder := c.imageFolder(id)
	for line := range strings.Lines(string(list)) {
		want, err := parseFileState(line)
		if err != nil {
			return fmt.Errorf("read the list of its files: %w: delete %s, and it is made again", err, c.listFile(id))
		}
		info, err := os.Lstat(filepath.Join(folder, want.path))
		if err != nil || !info.IsDir() && info.Size() != want.size {
			return fmt.Errorf("its file %s is gone from the cache, or is damaged: delete the folder %s to fetch the image again", shown("/"+want.path), folder)
		}
	}
	return nil
}

// replace puts an unpacked image in the place of an image's folder, which may be damaged. A
// process that has files of the old folder open keeps them.
func (c *Cache) replace(id v1.Hash, unpacked string) error {
	files, err := filesOf(unpacked)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(c.listFile(id), []byte(files)); err != nil {
		return err
	}
	folder := c.imageFolder(id)
	damaged := folder + ".damaged"
	if err := os.RemoveAll(damaged); err != nil { // of a process that was killed
		return err
	}
	if c.has(id) {
		if err := os.Rename(folder, damaged); err != nil {
			return err
		}
		defer os.RemoveAll(damaged)
	}
	return os.Rename(unpacked, folder)
}
