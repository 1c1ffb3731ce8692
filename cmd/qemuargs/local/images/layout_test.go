package images

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// indexes writes a layout of levels of indexes, each of which lists the next one many times.
func indexes(t *testing.T, levels, times int) string {
	t.Helper()
	folder := t.TempDir()
	blobs := filepath.Join(folder, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	index := `{"schemaVersion": 2, "manifests": []}`
	for range levels {
		sum := fmt.Sprintf("%x", sha256.Sum256([]byte(index)))
		if err := os.WriteFile(filepath.Join(blobs, sum), []byte(index), 0o600); err != nil {
			t.Fatal(err)
		}
		one := fmt.Sprintf(`{"mediaType": "application/vnd.oci.image.index.v1+json", "digest": "sha256:%s", "size": %d}`, sum, len(index))
		index = `{"schemaVersion": 2, "manifests": [` + strings.Repeat(one+",", times-1) + one + `]}`
	}
	err := errors.Join(os.WriteFile(filepath.Join(folder, "index.json"), []byte(index), 0o600),
		os.WriteFile(filepath.Join(folder, layoutFile), []byte(`{"imageLayoutVersion": "1.0.0"}`), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// TestIndexesThatListEachOtherAreRefused: a small layout whose indexes list each other many times is refused soon.
// Without the bound this test reads a million files.
func TestIndexesThatListEachOtherAreRefused(t *testing.T) {
	cache := &Cache{Folder: t.TempDir()}
	if _, err := cache.Open(t.Context(), "some/name", indexes(t, 3, 100)); !errors.Is(err, errManyManifests) {
		t.Errorf("opened: %v", err)
	}
}

// TestWalkThroughIndexesEndsWithTheContext: the walk through a layout's indexes ends with the context.
func TestWalkThroughIndexesEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&Cache{Folder: t.TempDir()}).Open(ctx, "some/name", indexes(t, 1, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("opened: %v", err)
	}
}
