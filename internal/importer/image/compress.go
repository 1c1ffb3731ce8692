package image

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/therootcompany/xz"
)

// How much of what came last a compressed image may refer to, in bytes. So much memory decompressing takes,
// and little beside.
const (
	// maxXZ is what "xz -9" needs.
	maxXZ = 64 << 20
	// maxZstd is what "zstd --ultra -20" and "--long=25" need. "zstd -19" needs 8 MiB, and "--long" alone
	// 128 MiB. With maxZstd an importer stays below 64 MiB.
	maxZstd = 32 << 20
)

// Decompress reads a compressed file.
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
		return newGunzip(r)
	case XZ:
		x, err := xz.NewReader(r, maxXZ)
		return io.NopCloser(x), err
	case Zstd:
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxZstd))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return nil, fmt.Errorf("%q is no compression", format)
}

// compressed remembers the error of reading, which is not the file's fault. It tells of the end after the last bytes, and never with them:
// package xz would leave out a stream of which it hears together with the end.
type compressed struct {
	io.Reader
	err error
}

func (c *compressed) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil && err != io.EOF {
		c.err = err
	}
	if err == io.EOF && n > 0 {
		err = nil
	}
	return n, err
}

// gunzip reads a gzip file as gzip does: its members one after the other, and behind them nothing. gzip ignores zeros there, and with a warning anything
// else, such as a signature. compress/gzip would take that for a broken member.
type gunzip struct {
	from  *bufio.Reader
	plain *gzip.Reader
	err   error
}

func newGunzip(r io.Reader) (*gunzip, error) {
	g := &gunzip{from: bufio.NewReader(r)}
	var err error
	if g.plain, err = gzip.NewReader(g.from); err != nil {
		return nil, err
	}
	g.plain.Multistream(false)
	return g, nil
}

func (g *gunzip) Read(p []byte) (int, error) {
	for g.err == nil {
		n, err := g.plain.Read(p)
		if err != io.EOF {
			return n, err
		}
		g.err = g.next()
		if n > 0 {
			return n, nil
		}
	}
	return 0, g.err
}

// next begins the next member. It returns io.EOF, after it has read the file to its end, if there is none.
func (g *gunzip) next() error {
	const magic = "\x1f\x8b"
	head, err := g.from.Peek(len(magic))
	switch {
	case err != nil && err != io.EOF:
		return err
	case string(head) == magic[:1]:
		return io.ErrUnexpectedEOF
	case string(head) != magic:
		if _, err := io.Copy(io.Discard, g.from); err != nil {
			return err
		}
		return io.EOF
	}
	if err := g.plain.Reset(g.from); err != nil {
		return err
	}
	g.plain.Multistream(false)
	return nil
}

// Close does nothing: a gzip reader holds nothing.
func (g *gunzip) Close() error { return nil }

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
	case errors.Is(err, xz.ErrMemlimit):
		return unusable("decompressing it takes more than %d MiB; compress it by xz -9 at most", maxXZ>>20)
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return unusable("decompressing it takes more than %d MiB; compress it by zstd -19 at most, without --long or with --long=25 at most", maxZstd>>20)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, xz.ErrBuf):
		return unusable("it is cut off: %s ends early", format)
	}
	return unusable("it is corrupt: %s: %w", format, err)
}
