package fill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/kubeqemu/kubeqemu/internal/importer/disk"
	"github.com/kubeqemu/kubeqemu/internal/importer/image"
)

// Upload takes images, for the import's source Upload. It answers as importer.UploadPath says.
func (j *Import) Upload() http.Handler { return &j.uploads }

// upload fills the disk from an image that somebody sends. It waits for another one when the image is refused
// or its sender breaks off: who sends can do better, and another process could not.
func (j *Import) upload(ctx context.Context) error {
	defer j.keep.run(ctx, j.Interval)()
	if err := j.keep.forget("the importer ended before the image was on the disk; upload it again"); err != nil {
		return err
	}
	for {
		j.Log.Info("the importer waits for an image")
		sent, err := j.uploads.next(ctx)
		if err != nil {
			return err
		}
		if err = j.fillSent(ctx, sent); err == nil {
			return j.keep.finish()
		}
		stop := j.refused(ctx, err)
		sent.answer(err)
		if stop != nil {
			return stop
		}
	}
}

// refused makes ready for another image. It returns an error if there can be none.
func (j *Import) refused(ctx context.Context, why error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	j.Log.Info("the image is not taken", "because", why.Error())
	j.end = 0
	j.uploads.free() // the next one waits until this is done
	return errors.Join(j.disk.Empty(), j.keep.anew(why.Error()))
}

// fillSent fills the disk from one image, and answers its sender when all of it has been taken.
func (j *Import) fillSent(ctx context.Context, sent *sentImage) error {
	head := make([]byte, headBytes)
	n, err := io.ReadFull(sent, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	format, err := image.Detect(head[:n])
	if err != nil {
		return err
	}
	j.Log.Info("an image comes", "bytes", sent.size, "format", string(format))
	source := stream{io.MultiReader(bytes.NewReader(head[:n]), sent), sent.size}
	if err := j.fits(source.size, format); err != nil {
		return err
	}
	// No other process goes on with what was sent to this one.
	if _, err := j.beginAt(version{size: source.size}, false); err != nil {
		return err
	}
	if format == image.Raw || format.Compressed() {
		err = j.write(ctx, newMeasured(source, nil, j.disk.Bytes, func(read int64) { j.Meter.set(read, source.size) }), format)
		if err == nil {
			sent.answer(nil)
		}
	} else {
		err = j.convertSent(ctx, sent, source, format)
	}
	if err == nil {
		err = j.finish(ctx)
	}
	return err
}

// fits refuses an image before it is read, if its size or its format tell enough.
func (j *Import) fits(size int64, format image.Format) error {
	switch most := imageBytes(j.disk.Bytes); {
	case format == image.Raw && size > j.disk.Bytes:
		return j.tooLarge(size)
	case size > most:
		return fmt.Errorf("%w: the image has %d bytes, and so large an image cannot be for this disk: %d bytes would be the most", disk.ErrLarger, size, most)
	case format == image.Raw || format.Compressed():
		return nil
	}
	return j.besideDevice(format)
}

// convertSent takes an image beside the disk, and converts it after its sender was answered.
func (j *Import) convertSent(ctx context.Context, sent *sentImage, source stream, format image.Format) error {
	taken, err := j.takeBeside(ctx, source, format)
	if err != nil {
		return err
	}
	defer taken.file.Close()
	sent.answer(nil)
	return j.convertTaken(ctx, taken)
}
