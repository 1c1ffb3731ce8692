package image

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/therootcompany/xz"
)

// maxWindow is how much of what came last a compressed image may refer to, and so how much memory it
// takes: "xz -9" and "zstd -19" stay below.
const maxWindow = 64 << 20

// Decompress reads a compressed file. The reader takes little memory beside maxWindow.
func Decompress(format Format, r io.Reader) (io.ReadCloser, error) {
	from := &compressed{Reader: r}
	plain, err := decompressor(format, from)
	if err != nil {
		return nil, explainCompressed(format, from.err, err)
	}
	return &decompressed{format, from, plain}, nil
}

func decompressor(format Format, r io.Reader) (io.ReadCloser, error) {
	switch format {
	case Gzip:
		return gzip.NewReader(r)
	case XZ:
		x, err := xz.NewReader(r, maxWindow)
		return io.NopCloser(x), err
	case Zstd:
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return nil, fmt.Errorf("%q is no compression", format)
}

// compressed remembers the error of reading, which is not the file's fault.
type compressed struct {
	io.Reader
	err error
}

func (c *compressed) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

// decompressed says of an error what it means.
type decompressed struct {
	format Format
	from   *compressed
	io.ReadCloser
}

func (d *decompressed) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = explainCompressed(d.format, d.from.err, err)
	}
	return n, err
}

// explainCompressed tells the file's faults from those of reading it.
func explainCompressed(format Format, reading, err error) error {
	switch {
	case reading != nil:
		return reading
	case errors.Is(err, xz.ErrMemlimit), errors.Is(err, zstd.ErrWindowSizeExceeded):
		return unusable("decompressing it takes more than %d MiB; compress it by xz -9 or zstd -19 at most", maxWindow>>20)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, xz.ErrBuf):
		return unusable("it is cut off: %s ends early", format)
	}
	return unusable("it is corrupt: %s: %w", format, err)
}
