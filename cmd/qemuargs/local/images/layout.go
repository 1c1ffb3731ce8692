package images

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/go-containerregistry/pkg/v1"
)

// layoutFile marks a folder or an archive in the layout of OCI images (image-spec,
// image-layout.md).
const layoutFile = "oci-layout"

// maxIndexes bounds how many indexes lead to a manifest.
const maxIndexes = 4

// layoutImage finds the image for linux/amd64 in a layout. If there are several, it is the
// image that has the reference's name.
func layoutImage(from blobs, reference string) (content, error) {
	var index v1.IndexManifest
	if err := readJSON(from, "index.json", v1.Hash{}, &index); err != nil {
		return content{}, err
	}
	all, err := candidates(from, index, maxIndexes)
	if err != nil {
		return content{}, err
	}
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

// candidates are the manifests for linux/amd64 of an index and of the indexes below it.
func candidates(from blobs, index v1.IndexManifest, depth int) ([]v1.Descriptor, error) {
	var out []v1.Descriptor
	for _, d := range index.Manifests {
		switch {
		case d.MediaType.IsIndex() && depth > 0:
			var below v1.IndexManifest
			if err := readJSON(from, blobName(d.Digest), d.Digest, &below); err != nil {
				return nil, err
			}
			more, err := candidates(from, below, depth-1)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		case d.MediaType.IsImage() && (d.Platform == nil || d.Platform.OS == "linux" && d.Platform.Architecture == "amd64"):
			out = append(out, d)
		}
	}
	return out, nil
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
		return content{}, fmt.Errorf("read %s: it is no JSON", e.Config)
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
