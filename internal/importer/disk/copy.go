package disk

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

const (
	// chunk is how many bytes are written at once.
	chunk = 256 << 10
	// page is the least part of zeros that stays a hole.
	page = 4 << 10
)

// Copy writes bytes from an offset on, until the reader ends. More bytes than the disk has are refused
// before they are written. wrote is told after each write how far the disk is written.
func (d *Disk) Copy(ctx context.Context, from io.Reader, offset int64, wrote func(offset int64) error) (int64, error) {
	buffer := make([]byte, chunk)
	for {
		if ctx.Err() != nil {
			return offset, ctx.Err()
		}
		n, err := fill(from, buffer)
		if int64(n) > d.Bytes-offset {
			return offset, fmt.Errorf("%w, which has %d bytes; ask for a larger one", ErrLarger, d.Bytes)
		}
		if err := d.write(buffer[:n], offset); err != nil {
			return offset, d.explain("write the disk", err)
		}
		offset += int64(n)
		if err == io.EOF {
			return offset, nil
		}
		if err != nil {
			return offset, err
		}
		if err := wrote(offset); err != nil {
			return offset, err
		}
	}
}

// fill reads until the buffer is full or the reader ends. io.ReadFull would make the same error of a
// reader that ends and of one that fails since its own source was cut off.
func fill(from io.Reader, buffer []byte) (n int, err error) {
	for n < len(buffer) && err == nil {
		var more int
		more, err = from.Read(buffer[n:])
		n += more
	}
	return n, err
}

// write writes what is not zeros, and makes zeros of the rest.
func (d *Disk) write(p []byte, offset int64) error {
	for len(p) > 0 {
		n, zeros := run(p)
		var err error
		if !zeros {
			_, err = d.file.WriteAt(p[:n], offset)
		} else if !d.Zeroed() {
			err = d.zero(p[:n], offset)
		}
		if err != nil {
			return err
		}
		p, offset = p[n:], offset+int64(n)
	}
	return nil
}

// zero makes zeros on a device. p is as many zeros.
func (d *Disk) zero(p []byte, offset int64) error {
	err := unix.Fallocate(int(d.file.Fd()), unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, offset, int64(len(p)))
	if err != nil {
		_, err = d.file.WriteAt(p, offset)
	}
	return err
}

// run is the length of the longest beginning of p that is zeros throughout, page by page, or that has
// no page of zeros.
func run(p []byte) (length int, zeros bool) {
	var none [page]byte
	for length < len(p) {
		next := p[length:min(length+page, len(p))]
		is := bytes.Equal(next, none[:len(next)])
		if length > 0 && is != zeros {
			break
		}
		zeros = is
		length += len(next)
	}
	return length, zeros
}
