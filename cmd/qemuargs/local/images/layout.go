package images

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/go-containerregistry/pkg/v1"
)

// layoutFile marks a folder or an archive in the layout of OCI images (image-spec,
// image-layout.md).
const layoutFile = "oci-layout"

// Bounds of a layout: small indexes that list each other lead to any number of manifests.
const (
	maxIndexes    = 4       // on the way to a manifest
	maxReads      = 1000    // of indexes, in total
	maxCandidates = 1 << 16 // manifests for linux/amd64, in total
)

// layoutImage finds the image for linux/amd64 in a layout. If there are several, it is the
// image that has the reference's name.
func layoutImage(ctx context.Context, from blobs, reference string) (content, error) {
	var index v1.IndexManifest
	if err := readJSON(from, "index.json", v1.Hash{}, &index); err != nil {
		return content{}, err
	}
	w := &walk{from: from}
	if err := w.below(ctx, index, maxIndexes); err != nil {
		return content{}, err
	}
	all := w.found
	var named []v1.Descriptor
	for _, d := range all {
		// containerd's name and the specification's own.
		if d.Annotations["io.containerd.image.name"] == reference || d.Annotations["org.opencontainers.image.ref.name"] == reference {
			named = append(named, d)
		}
	}
	switch {
	case len(named) == 1:
		return layoutContent(from, named[0])
	case len(all) == 1:
		return layoutContent(from, all[0])
	}
	return content{}, fmt.Errorf("it has %d images for linux/amd64, %d of this name; want one", len(all), len(named))
}

// walk goes through the indexes of a layout.
type walk struct {
	from  blobs
	reads int             // how many indexes it has read
	found []v1.Descriptor // manifests for linux/amd64
}

// below finds the manifests of an index and of the indexes below it.
func (w *walk) below(ctx context.Context, index v1.IndexManifest, depth int) error {
	for _, d := range index.Manifests {
		switch {
		case d.MediaType.IsIndex() && depth > 0:
			next, err := w.read(ctx, d.Digest)
			if err != nil {
				return err
			}
			if err := w.below(ctx, next, depth-1); err != nil {
				return err
			}
		case d.MediaType.IsImage() && (d.Platform == nil || d.Platform.OS == "linux" && d.Platform.Architecture == "amd64"):
			if w.found = append(w.found, d); len(w.found) > maxCandidates {
				return errManyManifests
			}
		}
	}
	return nil
}

var errManyManifests = fmt.Errorf("it lists more than %d indexes or %d images: write the image alone into a layout", maxReads, maxCandidates)

func (w *walk) read(ctx context.Context, digest v1.Hash) (v1.IndexManifest, error) {
	var index v1.IndexManifest
	if ctx.Err() != nil {
		return index, context.Cause(ctx)
	}
	if w.reads++; w.reads > maxReads {
		return index, errManyManifests
	}
	return index, readJSON(w.from, blobName(digest), digest, &index)
}

func blobName(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

func layoutContent(from blobs, d v1.Descriptor) (content, error) {
	var manifest v1.Manifest
	if err := readJSON(from, blobName(d.Digest), d.Digest, &manifest); err != nil {
		return content{}, err
	}
	config, err := read(from, blobName(manifest.Config.Digest), manifest.Config.Digest)
	if err != nil {
		return content{}, err
	}
	out := content{config: config}
	for _, d := range manifest.Layers {
		l, err := from.find(blobName(d.Digest))
		if err != nil {
			return content{}, err
		}
		out.layers = append(out.layers, l)
	}
	return out, nil
}

// dockerManifest marks an archive of "docker save". It lists the archive's images.
const dockerManifest = "manifest.json"

// dockerEntry is an image in dockerManifest: names of the archive's files.
type dockerEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// dockerImage finds the image in an archive of "docker save". If there are several, it is the
// image that has the reference as a tag.
func dockerImage(from blobs, reference string) (content, error) {
	var entries []dockerEntry
	if err := readJSON(from, dockerManifest, v1.Hash{}, &entries); err != nil {
		return content{}, err
	}
	for _, e := range entries {
		if len(entries) == 1 || slices.Contains(e.RepoTags, reference) {
			return dockerContent(from, e)
		}
	}
	return content{}, fmt.Errorf("it has %d images, none with this tag", len(entries))
}

func dockerContent(from blobs, e dockerEntry) (content, error) {
	config, err := read(from, e.Config, v1.Hash{})
	if err != nil {
		return content{}, err
	}
	if !json.Valid(config) {
		return content{}, fmt.Errorf("read %s: it is no JSON", shown(e.Config))
	}
	out := content{config: config}
	for _, name := range e.Layers {
		l, err := from.find(name)
		if err != nil {
			return content{}, err
		}
		out.layers = append(out.layers, l)
	}
	return out, nil
}
