package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Open returns the place of an image that a user has at a path. There may be
//   - an archive, as "docker save" or "skopeo copy … oci-archive:" write them;
//   - a folder in the layout of OCI images;
//   - a folder that stands for the image's root, and has a folder disk;
//   - a file that is the disk itself, raw or qcow2.
//
// reference tells an archive's images apart if it has several.
func (c *Cache) Open(ctx context.Context, reference, path string) (Place, error) {
	place, err := c.open(ctx, reference, path)
	if err != nil {
		return Place{}, fmt.Errorf("open %s as image %q: %w", path, reference, foreign{err})
	}
	return place, nil
}

func (c *Cache) open(ctx context.Context, reference, given string) (Place, error) {
	// Links are the user's own; the launcher follows none.
	path, err := filepath.EvalSymlinks(given)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return Place{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return Place{}, err
	}
	switch {
	case info.IsDir() && isFile(filepath.Join(path, layoutFile)):
		image, err := layoutImage(ctx, folderBlobs(path), reference)
		return c.place(ctx, image, given, err)
	case info.IsDir():
		return Place{Folder: path}, nil
	case !info.Mode().IsRegular():
		return Place{}, errors.New("it is neither a folder nor a regular file")
	}
	archive, err := indexTar(path)
	if err != nil {
		return Place{}, err
	}
	switch {
	case archive == nil && isCompressed(path):
		return Place{}, errors.New("it is compressed: unpack it first (gunzip, unxz, unzstd)")
	case archive == nil:
		return Place{Folder: filepath.Dir(path), Disk: filepath.Base(path)}, nil
	case archive.has(dockerManifest):
		image, err := dockerImage(archive, reference)
		return c.place(ctx, image, given, err)
	case archive.has(layoutFile):
		image, err := layoutImage(ctx, archive, reference)
		return c.place(ctx, image, given, err)
	}
	return Place{}, errors.New("it is an archive, and none of an image: it has neither manifest.json nor oci-layout")
}

// place unpacks an image, unless it could not be read.
func (c *Cache) place(ctx context.Context, image content, path string, err error) (Place, error) {
	if err != nil {
		return Place{}, err
	}
	folder, _, err := c.add(ctx, image, "unpack "+path)
	return Place{Folder: folder}, err
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// isCompressed says whether a file begins as gzip, xz or zstd does.
func isCompressed(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	begin := make([]byte, 6)
	if _, err := io.ReadFull(f, begin); err != nil {
		return false
	}
	return slices.ContainsFunc([]string{"\x1f\x8b", "\xfd7zXZ\x00", "\x28\xb5\x2f\xfd"}, func(magic string) bool { return strings.HasPrefix(string(begin), magic) })
}
