// Package cloudinit writes the disk that cloud-init reads its configuration
// from: an ISO 9660 volume with Rock Ridge and Joliet names.
//
// It is pure: the same input gives the same bytes.
package cloudinit

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Limits of a seed.
const (
	MaxFileSize = 4 << 20  // bytes in one file
	MaxSeedSize = 16 << 20 // bytes in all files
	MaxFiles    = 256
	maxName     = 64 // characters of a name: Joliet's limit
	maxDepth    = 8  // levels with the root: ECMA-119, 6.8.2.1
	maxLabel    = 16 // characters: what a Joliet volume identifier holds
)

// What is wrong with a file or a label.
var (
	ErrName      = errors.New("name must be 1 to 64 of A-Z a-z 0-9 . _ - and neither . nor .. alone")
	ErrDepth     = errors.New("path is deeper than 8 levels")
	ErrDuplicate = errors.New("name is taken, in this or other case")
	ErrFileSize  = errors.New("file is larger than 4 MiB")
	ErrSeedSize  = errors.New("files are larger than 16 MiB together")
	ErrFileCount = errors.New("more than 256 files")
	ErrLabel     = errors.New("label must be 1 to 16 of A-Z a-z 0-9 _ -")
)

// FileError is a file that cannot be written.
type FileError struct {
	Path string
	Err  error // one of the errors above
}

func (e *FileError) Error() string { return fmt.Sprintf("file %q: %v", e.Path, e.Err) }

func (e *FileError) Unwrap() error { return e.Err }

// File is a file of the seed.
type File struct {
	Path string // slash-separated, from the root: "user-data", "openstack/latest/user_data"
	Data []byte
}

// Instance is what a seed tells the guest about itself.
type Instance struct {
	// ID is how cloud-init's NoCloud recognizes a first boot.
	ID string
	// UUID is how cloud-init's ConfigDrive recognizes a first boot.
	UUID     string
	Hostname string
	// Keys are public SSH keys for the default user, a line each.
	Keys []string
}

// Labels of the volumes that the seeds go on.
const (
	NoCloudLabel     = "cidata"
	ConfigDriveLabel = "config-2"
)

// NoCloud returns the files of a NoCloud seed. The data source needs meta-data and user-data.
// It would take an empty network-config for a configuration, so that file is left out.
//
// https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html
func NoCloud(i Instance, userData, networkData []byte) []File {
	metaData := struct {
		InstanceID string            `json:"instance-id"`
		Hostname   string            `json:"local-hostname"`
		Keys       map[string]string `json:"public-keys,omitempty"`
	}{i.ID, i.Hostname, numbered(i.Keys)}
	files := []File{{"meta-data", line(metaData)}, {"user-data", userData}}
	if len(networkData) > 0 {
		files = append(files, File{"network-config", networkData})
	}
	return files
}

// ConfigDrive returns the files of a ConfigDrive seed, as KubeVirt writes them.
//
// https://docs.cloud-init.io/en/latest/reference/datasources/configdrive.html
func ConfigDrive(i Instance, userData, networkData []byte) []File {
	metaData := struct {
		InstanceID string            `json:"instance_id"`
		Hostname   string            `json:"hostname"`
		UUID       string            `json:"uuid"`
		Keys       map[string]string `json:"public_keys,omitempty"`
	}{i.ID, i.Hostname, i.UUID, numbered(i.Keys)}
	const dir = "openstack/latest/"
	files := []File{{dir + "meta_data.json", line(metaData)}, {dir + "user_data", userData}}
	if len(networkData) > 0 {
		files = append(files, File{dir + "network_data.json", networkData})
	}
	return files
}

// line encodes metadata, which consists of strings and so always encodes. JSON is
// YAML too.
func line(metaData any) []byte {
	data, _ := json.Marshal(metaData)
	return append(data, '\n')
}

// numbered returns keys in the form that both data sources read: each key under a name, which
// means nothing.
func numbered(keys []string) map[string]string {
	named := map[string]string{}
	for i, key := range keys {
		named[strconv.Itoa(i)] = key
	}
	return named
}

// Seed returns an ISO 9660 volume with the label and the files. The error is
// ErrLabel, ErrSeedSize, ErrFileCount or a *FileError.
func Seed(label string, files []File) ([]byte, error) {
	if len(label) == 0 || len(label) > maxLabel || strings.Contains(label, ".") || !plain(label) {
		return nil, fmt.Errorf("label %q: %w", label, ErrLabel)
	}
	if len(files) > MaxFiles {
		return nil, fmt.Errorf("%d files: %w", len(files), ErrFileCount)
	}
	root, total := &node{}, 0
	for _, f := range files {
		if total += len(f.Data); total > MaxSeedSize {
			return nil, ErrSeedSize
		}
		if err := root.add(f); err != nil {
			return nil, &FileError{Path: f.Path, Err: err}
		}
	}
	return newVolume(label, root).bytes(), nil
}

// node is a file or, with children, a directory.
type node struct {
	name     string
	parent   *node // nil for the root
	file     bool
	data     []byte
	children []*node

	short  string // its name in the primary tree, of the form 8.3
	extent uint32 // first sector of a file's data
}

func (n *node) add(f File) error {
	if len(f.Data) > MaxFileSize {
		return ErrFileSize
	}
	parts := strings.Split(f.Path, "/")
	if len(parts) >= maxDepth {
		return ErrDepth
	}
	for i, name := range parts {
		if len(name) > maxName || !plain(name) || name == "" || name == "." || name == ".." {
			return ErrName
		}
		last := i == len(parts)-1
		child := n.find(name)
		switch {
		case child == nil:
			child = &node{name: name, parent: n, file: last, short: n.shortName(name, last)}
			n.children = append(n.children, child)
		case last, child.file, child.name != name:
			return ErrDuplicate
		}
		n = child
	}
	n.data = f.Data
	return nil
}

// find ignores case, as Linux and Windows do with Joliet names.
func (n *node) find(name string) *node {
	for _, c := range n.children {
		if strings.EqualFold(c.name, name) {
			return c
		}
	}
	return nil
}

func plain(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// shortName returns a name for the primary tree that no sibling has: 8 and 3
// of A-Z 0-9 _ for a file, 8 for a directory (ECMA-119, 10.1).
func (n *node) shortName(name string, file bool) string {
	base, ext := name, ""
	if i := strings.LastIndexByte(name, '.'); file && i > 0 {
		base, ext = name[:i], cut(upper(name[i+1:]), 3)
	}
	base = upper(base)
	for i := 0; ; i++ {
		number := ""
		if i > 0 {
			number = fmt.Sprint(i)
		}
		short := cut(base, 8-len(number)) + number
		if file {
			short += "." + ext
		}
		if !n.hasShort(short) {
			return short
		}
	}
}

func (n *node) hasShort(short string) bool {
	for _, c := range n.children {
		if strings.TrimSuffix(c.short, ".") == strings.TrimSuffix(short, ".") {
			return true
		}
	}
	return false
}

func cut(s string, n int) string { return s[:min(len(s), n)] }

func upper(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '.' || r == '-' {
			return '_'
		}
		return r
	}, strings.ToUpper(s))
}
