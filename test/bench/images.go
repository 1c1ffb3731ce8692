package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// imageRows: what a node pulls, the compressed layers of all images.
func imageRows(_ context.Context, b *bench) ([]row, error) {
	r := row{ID: "images", What: "all images, compressed", Unit: megabytes, Ours: series{Name: "all"}, Limit: 120}
	files, err := filepath.Glob(b.output("images", "virt-*.tar"))
	if err != nil || len(files) == 0 {
		return []row{r}, errors.Join(fmt.Errorf("find images (run `make bench`): there are none"), err)
	}
	total := 0.0
	for _, file := range files {
		size, err := layers(file)
		if err != nil {
			return []row{r}, fmt.Errorf("read image: %w", err)
		}
		total += size
		r.Parts = append(r.Parts, series{Name: strings.TrimSuffix(filepath.Base(file), ".tar"), Samples: []float64{size}})
	}
	r.Ours.Samples = []float64{total}
	return []row{r}, nil
}

// layers is the size of an image's compressed layers in MB (10^6 bytes).
func layers(file string) (float64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var total int64
	for archive := tar.NewReader(f); ; {
		header, err := archive.Next()
		switch {
		case err == io.EOF && total == 0:
			return 0, fmt.Errorf("%s holds no compressed layer", file)
		case err == io.EOF:
			return float64(total) / 1e6, nil
		case err != nil:
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		if strings.HasSuffix(header.Name, ".tar.gz") {
			total += header.Size
		}
	}
}
