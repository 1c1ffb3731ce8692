package schema

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Format is that of the files that this package writes and reads.
const Format = 1

// Bounds of a file, in bytes: the captures have 30 kB at most, and 300 kB unpacked.
const (
	MaxFile     = 4 << 20
	maxUnpacked = 16 << 20
)

var errTooLong = fmt.Errorf("it unpacks to more than %d bytes", maxUnpacked)

// Encode returns the file of a schema: JSON, compressed with gzip. The same schema gives the same bytes.
func Encode(s *Schema) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(z).Encode(s); err != nil {
		return nil, fmt.Errorf("encode schema: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("compress schema: %w", err)
	}
	return out.Bytes(), nil
}

// Decode reads the file of a schema.
func Decode(file []byte) (*Schema, error) {
	z, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		return nil, fmt.Errorf("read schema (a file that qemuargs schema wrote): %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(z, maxUnpacked+1))
	if err == nil && len(text) > maxUnpacked {
		err = errTooLong
	}
	if err != nil {
		return nil, fmt.Errorf("unpack schema: %w", err)
	}
	s := &Schema{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("decode schema: %w", err)
	}
	if s.Format != Format {
		return nil, fmt.Errorf("the schema has format %d, and this program reads format %d: capture it again", s.Format, Format)
	}
	return s, nil
}

// captures has one file for each of Releases and Architectures; tools/qemu-schemas.sh writes them.
//
//go:embed captures/*.json.gz
var captures embed.FS

// Releases returns the releases of QEMU whose schemas the program has in it, the oldest first.
func Releases() []string { return []string{"7.2", "10.0", "11.1"} }

// Architectures returns those of the guests of which the program has schemas, by QEMU's names.
func Architectures() []string { return []string{"x86_64", "aarch64"} }

// ErrNotEmbedded is the error of a release that is none of Releases, or an architecture that is none of Architectures.
var ErrNotEmbedded = errors.New("no such schema is embedded")

// Embedded returns the schema of one of Releases for guests of one of Architectures.
func Embedded(arch, release string) (*Schema, error) {
	if !slices.Contains(Releases(), release) {
		return nil, fmt.Errorf("%w: release %q; there are %q", ErrNotEmbedded, release, Releases())
	}
	if !slices.Contains(Architectures(), arch) {
		return nil, fmt.Errorf("%w: architecture %q; there are %q", ErrNotEmbedded, arch, Architectures())
	}
	file, err := captures.ReadFile(captured(arch, release))
	if err != nil {
		return nil, fmt.Errorf("read embedded schema: %w", err)
	}
	return Decode(file)
}

func captured(arch, release string) string { return "captures/" + arch + "-" + release + ".json.gz" }

// All returns the schemas of Releases for guests of one of Architectures, in the order of Releases.
func All(arch string) ([]*Schema, error) {
	var all []*Schema
	for _, release := range Releases() {
		s, err := Embedded(arch, release)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}
