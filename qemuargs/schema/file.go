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

// Bounds of a file, in bytes: the captures have 27 kB, and 240 kB unpacked.
const (
	MaxFile     = 4 << 20
	maxUnpacked = 16 << 20
)

var errTooLong = fmt.Errorf("it unpacks to more than %d bytes", maxUnpacked)

// Encode is the file of a schema: JSON, compressed with gzip. The same schema gives the same bytes.
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

// captures has one file for each of Releases; tools/qemu-schemas.sh writes them.
//
//go:embed captures/*.json.gz
var captures embed.FS

// Releases are the releases of QEMU whose schemas the program has in it, the oldest first.
func Releases() []string { return []string{"7.2", "10.0", "11.1"} }

// ErrNotEmbedded is the error of a release that is none of Releases.
var ErrNotEmbedded = errors.New("no schema of this release is embedded")

// Embedded is the schema of one of Releases.
func Embedded(release string) (*Schema, error) {
	if !slices.Contains(Releases(), release) {
		return nil, fmt.Errorf("%w: %q; there are %q", ErrNotEmbedded, release, Releases())
	}
	file, err := captures.ReadFile("captures/" + release + ".json.gz")
	if err != nil {
		return nil, fmt.Errorf("read embedded schema: %w", err)
	}
	return Decode(file)
}

// All are the schemas of Releases, in their order.
func All() ([]*Schema, error) {
	var all []*Schema
	for _, release := range Releases() {
		s, err := Embedded(release)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}
