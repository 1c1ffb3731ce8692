package images

import (
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1"
)

// claimed is an image whose manifest gives the configuration a size of its own.
type claimed struct {
	v1.Image
	size int64
	read int // how often the configuration was read
}

func (c *claimed) Manifest() (*v1.Manifest, error) {
	m, err := c.Image.Manifest()
	if err != nil {
		return nil, err
	}
	m = m.DeepCopy()
	m.Config.Size = c.size
	return m, nil
}

func (c *claimed) RawConfigFile() ([]byte, error) {
	c.read++
	return c.Image.RawConfigFile()
}

// TestLargeConfiguration: a configuration that the manifest says is large is not read.
func TestLargeConfiguration(t *testing.T) {
	for size, want := range map[int64]bool{maxManifest: true, maxManifest + 1: false, 1 << 40: false, -1: false} {
		image := &claimed{Image: imageOf(t, layerOf(t)), size: size}
		_, err := contentOf(image)
		if (err == nil) != want || (image.read > 0) != want || err != nil && !strings.Contains(err.Error(), "bytes") {
			t.Errorf("%d bytes: read %d times, %v", size, image.read, err)
		}
	}
}
