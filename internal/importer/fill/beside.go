package fill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/importer/image"
	"github.com/kubeqemu/kubeqemu/internal/importer/remote"
)

// besideSuffix is what the name of an image beside its disk has after the disk's.
const besideSuffix = ".source"

// convertBeside downloads an image beside the disk, and converts it there: its server has no ranges.
func (j *Import) convertBeside(ctx context.Context, source *remote.File, format image.Format) error {
	if j.disk.Block {
		return fmt.Errorf("the server gives no ranges, and an image in %s cannot be converted as it comes; "+
			"a claim of mode Filesystem would have room for it, a device has not: use another server, a raw image, or such a claim", format)
	}
	if _, err := j.begin(source, false); err != nil {
		return err
	}
	if free, known := j.disk.Free(); known && free < source.Size {
		return j.noRoomBeside(source.Size, free)
	}
	f, err := j.download(ctx, source)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("read the image beside the disk: %w", err)
	}
	header, err := j.checkImage(format, f, size)
	if err != nil {
		return err
	}
	return j.convert(ctx, f, size, header, 0, size)
}

func (j *Import) noRoomBeside(size, free int64) error {
	return fmt.Errorf("the server gives no ranges, so the image of %d bytes has to be on the claim beside the disk of %d bytes for a time, "+
		"and %d bytes are free: make the claim larger, or use another server or a raw image", size, j.disk.Bytes, free)
}

// download writes the source to a file that no longer has a name: it goes when this process does.
func (j *Import) download(ctx context.Context, source *remote.File) (f *os.File, err error) {
	path := j.disk.Path + besideSuffix
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("write the image beside the disk: %w", err)
	}
	if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return nil, fmt.Errorf("write the image beside the disk: %w", err)
	}
	if err = os.Remove(path); err == nil {
		err = j.downloadInto(ctx, source, f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (j *Import) downloadInto(ctx context.Context, source *remote.File, f *os.File) error {
	total := max(2*source.Size, 0)
	from := newMeasured(source, j.want, source.Size, func(read int64) { j.Meter.set(read, total) })
	if source.Size < 0 {
		from.most = imageBytes(j.disk.Bytes)
	}
	buffer := make([]byte, 256<<10)
	for ctx.Err() == nil {
		n, err := from.Read(buffer)
		if _, err := f.Write(buffer[:n]); errors.Is(err, unix.ENOSPC) {
			free, _ := j.disk.Free()
			return j.noRoomBeside(max(source.Size, from.read), free)
		} else if err != nil {
			return fmt.Errorf("write the image beside the disk: %w", err)
		}
		if err == io.EOF {
			return from.finish()
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}
