// Package fill fills a disk as a Task says. There is no scratch space: an image is read where it is and
// written where it stays. The exception is an image in a format like qcow2 on a server without ranges.
// That has to be read in another order than it comes in, and goes beside the disk for as long.
//
// A raw image is copied, a compressed one decompressed on the way. qemu-img converts the others, one
// segment of the disk after another, and reads them through an NBD server of this process. After each
// segment the state says so, when the disk is on the storage so far. An importer that was killed goes on
// there, if the source is still the same file: the same size, and the same ETag or Last-Modified.
//
// With a checksum, the file is read twice where there are ranges: nothing is written before the checksum
// is right, and the second reading is held against the first, block by block. Without ranges, and of
// a compressed file, the checksum is taken on the way, and the disk is emptied if it is wrong.
package fill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/importer/disk"
	"github.com/kubeqemu/kubeqemu/internal/importer/image"
	"github.com/kubeqemu/kubeqemu/internal/importer/remote"
)

const (
	// maxBegins is how often an import begins, its first time included.
	maxBegins = 5
	// stuck is how long qemu-img may read nothing.
	stuck = 10 * time.Minute
)

// Config is what an import is made with.
type Config struct {
	Task importer.Task
	// Disk is the disk's file or device.
	Disk string
	// Certificates, Credentials and Headers are the folders that package importer has constants for.
	Certificates, Credentials, Headers string
	// Image opens the disk of a container image.
	Image func() (*os.File, error)
	// Work is a folder for a socket, and for the state if the disk is a device. It need not outlive the
	// pod.
	Work string
	// QEMUImg is the program.
	QEMUImg string
	// Node has the node's and the API server's addresses.
	Node []netip.Addr
	// Segment is how many bytes of the disk qemu-img converts before the state is written.
	Segment int64
	// Interval is the time between two writings of the progress.
	Interval time.Duration
	// Remote has the times of the source, if they are not those of package remote.
	Remote remote.Options
	// Peer serves the claim that is copied.
	Peer Peer
	// UploadIdle is how long the sender of an image may send nothing.
	UploadIdle time.Duration
	Log        *slog.Logger
}

// Defaults gives the sizes and times that are 0 their values.
func (c *Config) Defaults() {
	if c.Segment == 0 {
		c.Segment = 512 << 20
	}
	if c.Interval == 0 {
		c.Interval = time.Second
	}
	if c.UploadIdle == 0 {
		c.UploadIdle = time.Minute
	}
}

// Import is an import of this process.
type Import struct {
	Config
	*Meter
	disk *disk.Disk
	// end is where the image ends in the disk.
	end  int64
	keep *keeper
	want *checksum
	// oneAnswer: the servers of the source do not agree on its version, so that ranges of several answers may not fit together.
	oneAnswer bool
	// uploads is where images are sent to.
	uploads uploads
}

// New makes the import of a process that began then. From here on its Meter can be asked: it says what the
// process before said, if there was one.
func New(c Config, began time.Time) (*Import, error) {
	c.Defaults()
	j := &Import{Config: c, Meter: newMeter(began), uploads: newUploads(c.UploadIdle)}
	var err error
	if source := c.Task.Source.HTTP; source != nil {
		if j.want, err = parseChecksum(source.Checksum); err != nil {
			return nil, err
		}
	}
	if j.keep, err = newKeeper(c, j.Meter); err != nil {
		return nil, err
	}
	return j, nil
}

// Run fills the disk.
func (j *Import) Run(ctx context.Context) error {
	defer j.uploads.close()
	target := j.Task.Target
	d, err := disk.Open(j.Disk, target.Block, target.Bytes, target.Preallocate)
	if err != nil {
		return err
	}
	defer d.Close()
	j.disk = d
	switch source := j.Task.Source; {
	case source.Blank != nil:
		return j.blank(ctx)
	case source.HTTP != nil:
		return j.http(ctx)
	case source.Image != nil:
		return j.image(ctx)
	case source.Claim != nil:
		return j.claim(ctx)
	case source.Upload != nil:
		return j.upload(ctx)
	}
	return errors.New("the task names no source that is known here")
}

func (j *Import) blank(ctx context.Context) error {
	err := j.disk.Clear()
	if err == nil {
		err = j.finish(ctx)
	}
	if err == nil {
		j.Meter.finish()
	}
	return err
}

// finish ends the filling of a disk.
func (j *Import) finish(ctx context.Context) error {
	if err := j.disk.ZeroFrom(ctx, j.end); err != nil {
		return err
	}
	return j.disk.Finish(ctx)
}

// http fills the disk from a web server.
func (j *Import) http(ctx context.Context) error { return j.again(ctx, j.attempt) }

// again attempts to fill the disk, and begins anew where the source changed or broke.
func (j *Import) again(ctx context.Context, attempt func(context.Context) error) error {
	defer j.keep.run(ctx, j.Interval)()
	for begins := 1; ; begins++ {
		err := attempt(ctx)
		if !errors.Is(err, remote.ErrChanged) && !errors.Is(err, remote.ErrBroken) || ctx.Err() != nil {
			return err
		}
		if errors.Is(err, remote.ErrVersions) && j.Task.Source.HTTP != nil && !j.oneAnswer {
			j.oneAnswer, err = true, fmt.Errorf("%w, as where several servers answer: it is read in one answer now", err)
		}
		if begins == maxBegins {
			return fmt.Errorf("the import began %d times: %w", maxBegins, err)
		}
		j.Log.Info("the import begins anew", "because", err.Error())
		if err := j.keep.anew(err.Error()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(j.Interval << begins):
		}
	}
}

// attempt is the import from one opening of the source on.
func (j *Import) attempt(ctx context.Context) error {
	options, err := j.options()
	if err != nil {
		return err
	}
	source, err := remote.Open(ctx, options)
	if err != nil {
		return err
	}
	defer source.Close()
	format, err := image.Detect(source.Head)
	if err != nil {
		return err
	}
	ranges := twice(source.Ranges, source.Size, j.want != nil)
	j.Log.Info("the source is open", "bytes", source.Size, "format", string(format), "ranges", ranges, "versioned", source.Validator != "")
	switch {
	case format == image.Raw && source.Size > j.disk.Bytes:
		return j.tooLarge(source.Size)
	case format.Compressed(), format == image.Raw && !ranges:
		err = j.stream(ctx, source, format)
	case format == image.Raw:
		err = j.copyRaw(ctx, source)
	case ranges:
		err = j.convertRemote(ctx, source, format)
	default:
		err = j.convertBeside(ctx, source, format)
	}
	j.Log.Info("the source was read", "received", source.Received())
	if err == nil {
		err = j.finish(ctx)
	}
	if err == nil {
		err = j.keep.finish()
	}
	return err
}

// twice says whether a file of so many bytes may be read by ranges. With a checksum that means that it is read
// twice, and each reading must be the same to the byte.
func twice(ranges bool, size int64, checked bool) bool {
	return ranges && (!checked || size <= remote.MaxCompared)
}

func (j *Import) tooLarge(size int64) error {
	return fmt.Errorf("%w: it has %d bytes, and this disk has %d; ask for a larger one", disk.ErrLarger, size, j.disk.Bytes)
}

// begin returns where the import goes on in the disk: where the state says, if this source can and is
// the same, otherwise at the beginning of a disk that has been cleared.
func (j *Import) begin(source *remote.File, resumable bool) (int64, error) {
	of := version{size: source.Size}
	if source.Strong {
		of.validator = source.Validator
	}
	return j.beginAt(of, resumable)
}

func (j *Import) beginAt(source version, resumable bool) (int64, error) {
	next, err := j.keep.begin(source, resumable, j.whole())
	if err != nil {
		return 0, err
	}
	if next > 0 {
		j.Log.Info("the import goes on", "offset", next)
		return next, nil
	}
	// The state comes first: a disk that was cleared must not be taken for the one that an older state
	// speaks of.
	if err := j.keep.save(); err != nil {
		return 0, err
	}
	return 0, j.disk.Clear()
}

// whole says whether the disk has the size that Clear gave it.
func (j *Import) whole() bool {
	size, err := j.disk.Size()
	return err == nil && size >= j.disk.Bytes
}

// copyRaw copies a raw image by ranges.
func (j *Import) copyRaw(ctx context.Context, source *remote.File) error {
	next, err := j.begin(source, true)
	if err != nil {
		return err
	}
	before, err := j.verify(ctx, source)
	if err != nil {
		return err
	}
	return j.copyFrom(ctx, sectionOf(source, next), next, before, source.Size)
}

// copyFrom copies the rest of a raw image of so many bytes. before is how much progress there was without
// it.
func (j *Import) copyFrom(ctx context.Context, rest io.Reader, next, before, size int64) error {
	saved := next
	var err error
	j.end, err = j.disk.Copy(ctx, rest, next, func(offset int64) error {
		j.Meter.set(before+offset, before+size)
		if offset-saved < j.Segment {
			return nil
		}
		saved = offset
		return j.reached(offset)
	})
	return err
}

// reached says that the disk is written up to an offset.
func (j *Import) reached(offset int64) error {
	if err := j.disk.Sync(); err != nil {
		return err
	}
	return j.keep.reached(offset)
}

// stream writes a raw or compressed image as it comes.
func (j *Import) stream(ctx context.Context, source *remote.File, format image.Format) error {
	if format == image.Raw && source.Size < 0 && !source.Framed && j.want == nil {
		return errors.New("the server says neither how large the file is nor where it ends, so nobody could tell a part of the file from the whole: set a checksum, or use another server")
	}
	if _, err := j.begin(source, false); err != nil {
		return err
	}
	err := j.write(ctx, newMeasured(source.Stream(), j.want, j.disk.Bytes, func(read int64) { j.Meter.set(read, source.Size) }), format)
	if errors.Is(err, errChecksum) || errors.Is(err, image.ErrUnusable) || errors.Is(err, disk.ErrLarger) {
		err = errors.Join(err, j.disk.Empty())
	}
	return err
}

// write writes a raw or compressed image as it comes.
func (j *Import) write(ctx context.Context, from *measured, format image.Format) error {
	plain, err := from.plain(format)
	if err != nil {
		return err
	}
	defer plain.Close()
	if j.end, err = j.disk.Copy(ctx, plain, 0, func(int64) error { return nil }); err != nil {
		return err
	}
	return from.finish()
}
