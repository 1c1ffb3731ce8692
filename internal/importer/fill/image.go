package fill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kubeqemu/kubeqemu/internal/importer/image"
)

// headBytes is how much of an image tells its format.
const headBytes = 4 << 10

// image fills the disk from a container disk. In a pod that is made anew the image of the same name may
// be another, and nothing tells: the files of many images are all of the same time. So no other process
// goes on with the copy.
func (j *Import) image(ctx context.Context) error {
	f, err := j.Image()
	if err != nil {
		return fmt.Errorf("open the container disk: %w", err)
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open the container disk: %w", err)
	}
	defer j.keep.run(ctx, j.Interval)()
	if err = j.local(ctx, f, stat.Size()); err == nil {
		err = j.finish(ctx)
	}
	if err == nil {
		err = j.keep.finish()
	}
	return err
}

// local fills the disk from a file of the pod.
func (j *Import) local(ctx context.Context, f *os.File, size int64) error {
	head := make([]byte, min(headBytes, size))
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the container disk: %w", err)
	}
	format, err := image.Detect(head)
	if err != nil {
		return err
	}
	j.Log.Info("the source is open", "bytes", size, "format", string(format))
	switch {
	case format.Compressed():
		return fmt.Errorf("%w: the container disk is compressed by %s; a container image compresses its files itself, so put it there as it is", image.ErrUnusable, format)
	case format == image.Raw && size > j.disk.Bytes:
		return j.tooLarge(size)
	}
	var header image.Header
	if format != image.Raw {
		if header, err = j.checkImage(format, f, size); err != nil {
			return err
		}
	}
	if _, err := j.beginAt(version{size: size}, false); err != nil {
		return err
	}
	if format == image.Raw {
		return j.copyFrom(ctx, io.NewSectionReader(f, 0, size), 0, 0, size)
	}
	return j.convert(ctx, f, size, header, 0, 0)
}
