package images

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
)

// content is an image as somebody brings it.
type content struct {
	// config is the image's configuration, whose SHA-256 names the image's content: it holds
	// the layers' sums.
	config []byte
	layers []layer // the lowest first
}

// layer is a layer as it is stored, which may be compressed.
type layer struct {
	size int64 // in bytes, as it is stored
	open func() (io.ReadCloser, error)
}

func (c content) id() (v1.Hash, error) {
	id, _, err := v1.SHA256(bytes.NewReader(c.config))
	return id, err
}

// sums are the SHA-256 of the layers, unpacked, as the configuration has them.
func (c content) sums() ([]v1.Hash, error) {
	var config v1.ConfigFile
	if err := json.Unmarshal(c.config, &config); err != nil {
		return nil, fmt.Errorf("read the image's configuration: %w", err)
	}
	if sums := config.RootFS.DiffIDs; len(sums) == len(c.layers) && len(sums) <= maxLayers {
		return sums, nil
	}
	return nil, fmt.Errorf("the image has %d layers, and its configuration names %d: want as many, and %d at most", len(c.layers), len(config.RootFS.DiffIDs), maxLayers)
}

// plain opens a layer, and uncompresses it if it begins as gzip or zstd does.
func (l layer) plain() (io.ReadCloser, error) {
	uncompressed, err := partial.CompressedToLayer(compressed{open: l.open})
	if err != nil {
		return nil, err
	}
	return uncompressed.Uncompressed()
}

// compressed is as much of a layer as is asked for.
type compressed struct {
	partial.CompressedLayer
	open func() (io.ReadCloser, error)
}

func (c compressed) Compressed() (io.ReadCloser, error) { return c.open() }
