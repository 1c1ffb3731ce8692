package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
)

// packagesFile is where an image lists its Debian packages: name, version and architecture a line.
const packagesFile = "usr/share/kubeqemu/packages.txt"

// longestFile bounds what is read of a program, or of a list.
const longestFile = 512 << 20

// parts are what a file is made of.
type parts struct {
	sum      string // SHA-256 of the file
	packages []debianPackage
	modules  []module
}

// debianPackage is a binary package of Debian.
type debianPackage struct{ name, version, arch string }

// module is a Go module, or Go's own library under the name stdlib.
type module struct{ path, version string }

// partsOf looks into an image's archive or a program.
func partsOf(file string) (parts, error) {
	f, err := os.Open(file)
	if err != nil {
		return parts{}, err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return parts{}, err
	}
	p := parts{sum: hex.EncodeToString(sum.Sum(nil))}
	if info, err := buildinfo.Read(f); err == nil {
		p.addModules(info)
	} else if err := p.addArchive(f); err != nil {
		return parts{}, err
	}
	p.sort()
	if len(p.packages)+len(p.modules) == 0 {
		return parts{}, errors.New("find packages or Go programs: there are none")
	}
	return p, nil
}

// addArchive adds what is in the layers of an image.
func (p *parts) addArchive(f io.ReadSeeker) error {
	manifest, err := find(f, "manifest.json")
	if err != nil {
		return err
	}
	var images []struct{ Layers []string }
	text, err := io.ReadAll(io.LimitReader(manifest, 1<<20))
	if err != nil {
		return fmt.Errorf("read the image's manifest: %w", err)
	}
	if err := json.Unmarshal(text, &images); err != nil || len(images) != 1 {
		return fmt.Errorf("read the image's manifest: it names %d images: %w", len(images), err)
	}
	for _, name := range images[0].Layers {
		layer, err := find(f, name)
		if err != nil {
			return err
		}
		if err := p.addLayer(layer); err != nil {
			return fmt.Errorf("read layer %s: %w", name, err)
		}
	}
	return nil
}

// find returns the content of one file of a tar archive.
func find(f io.ReadSeeker, name string) (io.Reader, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	for archive := tar.NewReader(f); ; {
		header, err := archive.Next()
		if err != nil {
			return nil, fmt.Errorf("find %s in the archive: %w", name, err)
		}
		if header.Name == name {
			return archive, nil
		}
	}
}

// addLayer adds the packages and programs of a compressed layer.
func (p *parts) addLayer(layer io.Reader) error {
	unpacked, err := gzip.NewReader(layer)
	if err != nil {
		return err
	}
	for archive := tar.NewReader(unpacked); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(header.Name, "./")
		list := name == packagesFile
		if header.Typeflag != tar.TypeReg || !list && header.Mode&0o111 == 0 {
			continue
		}
		if header.Size > longestFile {
			return fmt.Errorf("read %s: it has more than %d bytes", name, longestFile)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if list {
			if err := p.addPackages(content); err != nil {
				return err
			}
		} else if info, err := buildinfo.Read(bytes.NewReader(content)); err == nil {
			p.addModules(info)
		}
	}
}

// addPackages adds the packages of a list.
func (p *parts) addPackages(list []byte) error {
	lines := bufio.NewScanner(bytes.NewReader(list))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 {
			return fmt.Errorf("read the list of packages: %q is not name, version and architecture", lines.Text())
		}
		p.packages = append(p.packages, debianPackage{fields[0], fields[1], fields[2]})
	}
	return lines.Err()
}

// addModules adds the modules that a program was built from.
func (p *parts) addModules(info *debug.BuildInfo) {
	p.modules = append(p.modules, module{"stdlib", strings.TrimPrefix(info.GoVersion, "go")})
	for _, dep := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		if dep.Path != "" {
			p.modules = append(p.modules, module{dep.Path, dep.Version})
		}
	}
}

// sort sorts what was found, and leaves out what was found twice.
func (p *parts) sort() {
	slices.SortFunc(p.packages, func(a, b debianPackage) int {
		return strings.Compare(a.name+" "+a.version+" "+a.arch, b.name+" "+b.version+" "+b.arch)
	})
	p.packages = slices.Compact(p.packages)
	slices.SortFunc(p.modules, func(a, b module) int {
		return strings.Compare(a.path+" "+a.version, b.path+" "+b.version)
	})
	p.modules = slices.Compact(p.modules)
}
