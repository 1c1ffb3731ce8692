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

// errNoRoomBeside is wrapped by the error about an image that cannot be beside its disk.
var errNoRoomBeside = errors.New("there is no room for the image beside the disk")

// stream is an image that comes once, from its beginning to its end.
type stream struct {
	io.Reader
	// size is in bytes, or negative if nobody says it.
	size int64
}

// convertBeside downloads an image beside the disk, and converts it there: its server has no ranges.
func (j *Import) convertBeside(ctx context.Context, source *remote.File, format image.Format) error {
	if err := j.besideDevice(format); err != nil {
		return err
	}
	if _, err := j.begin(source, false); err != nil {
		return err
	}
	beside, err := j.takeBeside(ctx, stream{source.Stream(), source.Size}, format)
	if err != nil {
		return err
	}
	defer beside.file.Close()
	return j.convertTaken(ctx, beside)
}

// besideDevice refuses an image that would have to be beside a device.
func (j *Import) besideDevice(format image.Format) error {
	if !j.disk.Block {
		return nil
	}
	return fmt.Errorf("%w: an image in %s that comes as a stream, without ranges, cannot be converted as it comes; "+
		"a claim of mode Filesystem would have room for it, a device has not: use a server with ranges, a raw image, or such a claim", errNoRoomBeside, format)
}

// beside is an image that lies whole beside its disk.
type beside struct {
	file   *os.File
	size   int64
	header image.Header
}

// takeBeside downloads an image beside the disk, and checks it there.
func (j *Import) takeBeside(ctx context.Context, source stream, format image.Format) (beside, error) {
	if free, known := j.disk.Free(); known && free < source.size {
		return beside{}, j.noRoomBeside(source.size, free)
	}
	f, err := j.download(ctx, source)
	if err != nil {
		return beside{}, err
	}
	taken := beside{file: f}
	if taken.size, err = f.Seek(0, io.SeekEnd); err != nil {
		err = fmt.Errorf("read the image beside the disk: %w", err)
	} else if taken.header, err = j.checkImage(format, f, taken.size); err == nil {
		err = j.roomFor(ctx, taken)
	}
	if err != nil {
		f.Close()
		return beside{}, err
	}
	return taken, nil
}

// roomFor says whether the disk fits beside an image. The room of a disk without holes is taken already.
func (j *Import) roomFor(ctx context.Context, taken beside) error {
	free, known := j.disk.Free()
	if !known || j.Task.Target.Preallocate {
		return nil
	}
	data, err := j.data(ctx, taken.file, taken.size, taken.header)
	if err != nil {
		return err
	}
	if data > free {
		return fmt.Errorf("%w: it comes without ranges, so the image of %d bytes has to be on the claim beside the disk for a time, the disk has %d bytes of data, "+
			"and %d bytes are free: make the claim larger, or use a server with ranges or a raw image", errNoRoomBeside, taken.size, data, free)
	}
	return nil
}

// convertTaken converts an image beside the disk.
func (j *Import) convertTaken(ctx context.Context, from beside) error {
	return j.convert(ctx, from.file, from.size, from.header, 0, from.size)
}

func (j *Import) noRoomBeside(size, free int64) error {
	return fmt.Errorf("%w: it comes without ranges, so the image of %d bytes has to be on the claim beside the disk of %d bytes for a time, "+
		"and %d bytes are free: make the claim larger, or use a server with ranges or a raw image", errNoRoomBeside, size, j.disk.Bytes, free)
}

// download writes the source to a file that no longer has a name: it goes when this process does.
func (j *Import) download(ctx context.Context, source stream) (f *os.File, err error) {
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

func (j *Import) downloadInto(ctx context.Context, source stream, f *os.File) error {
	total := max(2*source.size, 0)
	from := newMeasured(source, j.want, source.size, func(read int64) { j.Meter.set(read, total) })
	if source.size < 0 {
		from.most = imageBytes(j.disk.Bytes)
	}
	buffer := make([]byte, 256<<10)
	for ctx.Err() == nil {
		n, err := from.Read(buffer)
		if _, err := f.Write(buffer[:n]); errors.Is(err, unix.ENOSPC) {
			free, _ := j.disk.Free()
			return j.noRoomBeside(max(source.size, from.read), free)
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
