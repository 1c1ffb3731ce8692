package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

const pauseImage = "kubeqemu.test/pause:1"

// Image is what goes into a one-layer container image.
type Image struct {
	Reference  string   // with a tag: "example.test/name:1"
	Entrypoint []string // may be empty, for an image that is only mounted
	Files      []ImageFile
}

// ImageFile is a regular file of the machine with its absolute path in the image.
type ImageFile struct{ Source, Path string }

// WriteArchive writes the image in the docker-archive format (what `docker
// save` makes and `ctr images import` reads): manifest.json, config, layer.
func (i Image) WriteArchive(w io.Writer) error {
	layer, err := i.layer()
	if err != nil {
		return err
	}
	config := map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": i.Entrypoint, "Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
		"history":      []map[string]any{{"created_by": "cluster pack-image"}},
	}
	configJSON, err := json.Marshal(config)
	if err != nil {
		return err
	}
	configName, layerName := digest(configJSON)+".json", digest(layer)+"/layer.tar"
	manifest, err := json.Marshal([]map[string]any{{
		"Config": configName, "RepoTags": []string{i.Reference}, "Layers": []string{layerName},
	}})
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	for _, f := range []struct {
		name string
		data []byte
	}{{configName, configJSON}, {layerName, layer}, {"manifest.json", manifest}} {
		if err := addFile(out, f.name, 0o644, f.data); err != nil {
			return err
		}
	}
	return out.Close()
}

func (i Image) layer() ([]byte, error) {
	var buf bytes.Buffer
	out := tar.NewWriter(&buf)
	var made []string
	for _, f := range i.Files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) == "/" {
			return nil, fmt.Errorf("image path %q: want an absolute path of a file", f.Path)
		}
		for _, dir := range parents(f.Path) {
			if slices.Contains(made, dir) {
				continue
			}
			made = append(made, dir)
			if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
				return nil, err
			}
		}
		data, err := os.ReadFile(f.Source)
		if err != nil {
			return nil, fmt.Errorf("read file for image: %w", err)
		}
		info, err := os.Stat(f.Source)
		if err != nil {
			return nil, err
		}
		if err := addFile(out, strings.TrimPrefix(path.Clean(f.Path), "/"), info.Mode().Perm(), data); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// parents are the folders above an absolute path, outermost first, without the
// leading slash and without the root.
func parents(file string) []string {
	var dirs []string
	for dir := path.Dir(path.Clean(file)); dir != "/"; dir = path.Dir(dir) {
		dirs = append(dirs, strings.TrimPrefix(dir, "/"))
	}
	slices.Reverse(dirs)
	return dirs
}

func addFile(out *tar.Writer, name string, mode os.FileMode, data []byte) error {
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode), Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := out.Write(data)
	return err
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
