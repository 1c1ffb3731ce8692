package main

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Request says what goes into an image.
type Request struct {
	Ref string // name:tag
	// Architecture of the nodes that the image is for, by Kubernetes' name.
	Architecture string
	Root         string // folder whose content becomes the root, or empty
	Files        []File // further files; they win over Root's
	UID, GID     int    // owner of every file
	Created      time.Time
	Entrypoint   []string
	User         string // uid[:gid], or empty for root
	WorkDir      string
	Env          []string // NAME=VALUE
	Labels       map[string]string
}

// Packed describes a written image.
type Packed struct {
	Digest    v1.Hash // of its manifest
	LayerSize int64   // bytes, compressed
}

// pack writes the image to output, which appears only when it is complete. The layer is compressed once, into a file
// beside output, and never held in memory: it may be a disk of gigabytes.
func (r *Request) pack(output string) (*Packed, error) {
	tag, err := name.NewTag(r.Ref, name.StrictValidation)
	if err != nil {
		return nil, err
	}
	layer, err := r.compressLayer(filepath.Dir(output))
	if err != nil {
		return nil, err
	}
	defer os.Remove(layer.path)
	image, err := r.image(layer)
	if err != nil {
		return nil, err
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, err
	}
	if err := writeArchive(output, tag, image); err != nil {
		return nil, err
	}
	return &Packed{Digest: digest, LayerSize: layer.size}, nil
}

func (r *Request) image(layer *layerFile) (v1.Image, error) {
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		Architecture: r.Architecture,
		OS:           "linux",
		Created:      v1.Time{Time: r.Created},
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: r.Entrypoint, User: r.User, WorkingDir: r.WorkDir, Env: r.Env, Labels: r.Labels,
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{
		Created: v1.Time{Time: r.Created}, CreatedBy: "kubeqemu tools/image",
	}})
}

func writeArchive(output string, tag name.Tag, image v1.Image) error {
	partial := output + ".partial"
	file, err := os.Create(partial)
	if err != nil {
		return err
	}
	defer os.Remove(partial)
	defer file.Close()
	buffered := bufio.NewWriterSize(file, 1<<20)
	if err := tarball.Write(tag, image, buffered); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(partial, output)
}

// layerFile is a v1.Layer whose compressed bytes lie in a file.
type layerFile struct {
	path           string
	digest, diffID v1.Hash
	size           int64
}

// compressLayer writes the gzipped layer into folder. The fastest level: an image is packed much more often than it
// is shipped, and a disk image inside is compressed already or mostly holes.
func (r *Request) compressLayer(folder string) (*layerFile, error) {
	file, err := os.CreateTemp(folder, ".layer-*")
	if err != nil {
		return nil, err
	}
	layer := &layerFile{path: file.Name()}
	if err := r.fill(layer, file); err != nil {
		os.Remove(layer.path)
		return nil, err
	}
	return layer, nil
}

func (r *Request) fill(layer *layerFile, file *os.File) error {
	defer file.Close()
	compressed, plain := sha256.New(), sha256.New()
	zip, err := gzip.NewWriterLevel(io.MultiWriter(file, compressed), gzip.BestSpeed)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(io.MultiWriter(zip, plain), 1<<20)
	if err := r.writeLayer(buffered); err != nil {
		return err
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	layer.size, layer.digest, layer.diffID = info.Size(), sum(compressed), sum(plain)
	return file.Close()
}

func sum(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

func (l *layerFile) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l *layerFile) DiffID() (v1.Hash, error)            { return l.diffID, nil }
func (l *layerFile) Size() (int64, error)                { return l.size, nil }
func (l *layerFile) MediaType() (types.MediaType, error) { return types.DockerLayer, nil }
func (l *layerFile) Compressed() (io.ReadCloser, error)  { return os.Open(l.path) }
func (l *layerFile) Uncompressed() (io.ReadCloser, error) {
	file, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	zip, err := gzip.NewReader(file)
	if err != nil {
		file.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{zip, file}, nil
}
