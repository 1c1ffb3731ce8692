package main

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
)

// entries are the files of a tar archive.
func entries(archive io.Reader) iter.Seq2[*tar.Header, io.Reader] {
	return func(yield func(*tar.Header, io.Reader) bool) {
		for files := tar.NewReader(archive); ; {
			header, err := files.Next()
			if err == io.EOF {
				return
			}
			check(err, "read an archive")
			if !yield(header, files) {
				return
			}
		}
	}
}

// layers are the compressed layers of an image's archive.
func layers(image string) iter.Seq2[*tar.Header, io.Reader] {
	return func(yield func(*tar.Header, io.Reader) bool) {
		f := must(os.Open(image))
		defer f.Close()
		for header, file := range entries(f) {
			if strings.HasSuffix(header.Name, ".tar.gz") && !yield(header, file) {
				return
			}
		}
	}
}

// unpack writes files of an image: of each file that is found, the function to says where, or "".
// It returns how many it wrote.
func unpack(image string, to func(name string) string) (written int) {
	for _, layer := range layers(image) {
		for header, file := range entries(must(gzip.NewReader(layer))) {
			path := to(strings.TrimPrefix(strings.TrimPrefix(header.Name, "./"), "/"))
			if header.Typeflag != tar.TypeReg || path == "" {
				continue
			}
			out := must(os.Create(path))
			_, err := io.Copy(out, file)
			check(err, "unpack "+header.Name)
			check(out.Close())
			written++
		}
	}
	return written
}

// measureImages measures what a node pulls, the compressed layers of all images.
func measureImages(r *run) {
	files := must(filepath.Glob(r.output("images", "virt-*.tar")))
	if len(files) == 0 {
		fail("find images (run `make bench`): there are none")
	}
	total := 0.0
	for _, file := range files {
		size := int64(0)
		for header := range layers(file) {
			size += header.Size
		}
		if size == 0 {
			fail("%s holds no compressed layer", file)
		}
		total += float64(size) / 1e6
		r.addPart("images", strings.TrimSuffix(filepath.Base(file), ".tar"), float64(size)/1e6)
	}
	r.add("images", total)
}
