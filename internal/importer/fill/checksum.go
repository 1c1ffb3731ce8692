package fill

import (
	"bufio"
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"github.com/kubeqemu/kubeqemu/internal/importer/image"
	"github.com/kubeqemu/kubeqemu/internal/importer/remote"
)

// errChecksum is wrapped by the error about a file that is not the file that was asked for.
var errChecksum = errors.New("the file's checksum is another")

// checksum is what a file's digest must be.
type checksum struct {
	name   string
	make   func() hash.Hash
	digest []byte
}

// parseChecksum reads a Task's Checksum. It returns nil for none.
func parseChecksum(text string) (*checksum, error) {
	if text == "" {
		return nil, nil
	}
	name, digits, _ := strings.Cut(text, ":")
	makers := map[string]func() hash.Hash{"md5": md5.New, "sha1": sha1.New, "sha256": sha256.New, "sha512": sha512.New}
	maker := makers[strings.ToLower(name)]
	if maker == nil {
		return nil, errors.New("the checksum begins with none of md5:, sha1:, sha256: and sha512: as it must")
	}
	digest, err := hex.DecodeString(digits)
	if err != nil || len(digest) != maker().Size() {
		return nil, fmt.Errorf("the checksum has not the %d hexadecimal digits of %s", 2*maker().Size(), name)
	}
	return &checksum{name, maker, digest}, nil
}

func (c *checksum) check(h hash.Hash) error {
	if got := h.Sum(nil); !bytes.Equal(got, c.digest) {
		return fmt.Errorf("%w: %s:%x and not %x; see to the URL, or to the checksum", errChecksum, c.name, got, c.digest)
	}
	return nil
}

// verify reads the whole file, if there is a checksum, and returns how many bytes were read for it.
func (j *Import) verify(ctx context.Context, source *remote.File) (int64, error) {
	if j.want == nil {
		return 0, nil
	}
	digest := j.want.make()
	at := int64(0)
	from := sectionOf(source, 0)
	buffer := make([]byte, 256<<10)
	for {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		n, err := from.Read(buffer)
		digest.Write(buffer[:n])
		at += int64(n)
		j.Meter.set(at, 2*source.Size)
		if err == io.EOF {
			return source.Size, j.want.check(digest)
		}
		if err != nil {
			return 0, err
		}
	}
}

func sectionOf(source *remote.File, from int64) *io.SectionReader {
	return io.NewSectionReader(source, from, source.Size-from)
}

// measured reads a file as it comes, takes its digest, and counts.
type measured struct {
	from   io.Reader
	want   *checksum
	digest hash.Hash
	read   int64
	most   int64
	told   func(read int64)
}

// newMeasured reads a source. A compressed image, whose size nobody need say, may be a little larger
// than the disk that is in it.
func newMeasured(from io.Reader, want *checksum, disk int64, told func(int64)) *measured {
	m := &measured{from: from, want: want, most: disk + disk/64 + 1<<20, told: told}
	if want != nil {
		m.digest = want.make()
	}
	return m
}

func (m *measured) Read(p []byte) (int, error) {
	n, err := m.from.Read(p)
	if m.digest != nil {
		m.digest.Write(p[:n])
	}
	m.read += int64(n)
	if m.read > m.most {
		return 0, fmt.Errorf("%w: it has more than %d bytes, and so large an image cannot be for this disk", image.ErrUnusable, m.most)
	}
	m.told(m.read)
	return n, err
}

// plain is the raw image in the file.
func (m *measured) plain(format image.Format) (io.ReadCloser, error) {
	if !format.Compressed() {
		return io.NopCloser(m), nil
	}
	plain, err := image.Decompress(format, bufio.NewReaderSize(m, 64<<10))
	if err != nil {
		return nil, err
	}
	buffered := bufio.NewReaderSize(plain, 64<<10)
	head, err := buffered.Peek(4 << 10)
	if err != nil && err != io.EOF {
		plain.Close()
		return nil, err
	}
	inside, err := image.Detect(head)
	if err == nil && inside != image.Raw {
		err = fmt.Errorf("%w: it is a %s image compressed by %s, and only a raw one may be; decompress it", image.ErrUnusable, inside, format)
	}
	if err != nil {
		plain.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{buffered, plain}, nil
}

// finish reads what is left, and checks the digest.
func (m *measured) finish() error {
	if _, err := io.Copy(io.Discard, m); err != nil {
		return err
	}
	if m.want == nil {
		return nil
	}
	return m.want.check(m.digest)
}
