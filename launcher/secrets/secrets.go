// Package secrets reads the Secrets that the kubelet mounts into a VM's pod.
package secrets

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Entry is one entry of a Secret.
type Entry struct {
	Name string
	Data []byte
}

// Read reads all entries of the Secret that is mounted at folder, in the order of their
// names. left is how many bytes the entries may have; Read takes their sizes off it.
func Read(folder string, left *int64) ([]Entry, error) {
	files, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var out []Entry
	for _, f := range files {
		if strings.HasPrefix(f.Name(), "..") { // the kubelet's own
			continue
		}
		data, err := ReadFile(filepath.Join(folder, f.Name()), *left)
		if err != nil {
			return nil, err
		}
		*left -= int64(len(data))
		out = append(out, Entry{f.Name(), data})
	}
	return out, nil
}

// ReadFile reads one entry, of limit bytes at most. ReadFile follows links: in a Secret
// volume each entry is a link, and the kubelet has made it.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("read %s: the Secrets hold more than is taken", path)
	}
	return data, err
}

// Keys returns the SSH keys of the entry: its lines, without comments and empty lines.
func (e Entry) Keys() []string {
	var keys []string
	for line := range strings.Lines(string(e.Data)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			keys = append(keys, line)
		}
	}
	return keys
}
