package fill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/kubeqemu/kubeqemu/internal/importer/image"
	"github.com/kubeqemu/kubeqemu/internal/importer/nbd"
	"github.com/kubeqemu/kubeqemu/internal/importer/remote"
)

// convertRemote converts an image that stays on its server.
func (j *Import) convertRemote(ctx context.Context, source *remote.File, format image.Format) error {
	header, err := j.checkImage(format, source, source.Size)
	if err != nil {
		return err
	}
	next, err := j.begin(source, true)
	if err != nil {
		return err
	}
	before, err := j.verify(ctx, source)
	if err != nil {
		return err
	}
	return j.convert(ctx, source, source.Size, header, next, before)
}

func (j *Import) checkImage(format image.Format, r io.ReaderAt, size int64) (image.Header, error) {
	header, err := image.Check(format, r, size)
	if err == nil && header.Size > j.disk.Bytes {
		err = j.tooLarge(header.Size)
	}
	return header, err
}

// convert converts an image from an offset of its disk on. before is how much progress there was
// without it.
func (j *Import) convert(ctx context.Context, from io.ReaderAt, size int64, header image.Header, next, before int64) error {
	base := before
	if next > 0 {
		base = max(before, j.Meter.current().Done)
	}
	whole, end := header.Whole(from, size)
	server := nbd.New(whole, end, func(served int64) { j.Meter.set(base+served, before+size) })
	socket, stop, err := j.serve(ctx, server)
	if err != nil {
		return err
	}
	defer stop()
	converter := &image.Converter{QEMUImg: j.QEMUImg, Header: header, Socket: socket, Stuck: stuck, Progress: server.Served}
	virtual, err := converter.Size(ctx)
	if err != nil {
		return j.cause(ctx, server, err)
	}
	switch {
	case virtual <= 0 || virtual%512 != 0:
		return fmt.Errorf("%w: QEMU finds a disk of %d bytes in it", image.ErrUnusable, virtual)
	case virtual > j.disk.Bytes:
		return j.tooLarge(virtual)
	}
	j.end = virtual
	return j.segments(ctx, converter, server, next, virtual)
}

// data is how many bytes of the disk in an image have data.
func (j *Import) data(ctx context.Context, from io.ReaderAt, size int64, header image.Header) (int64, error) {
	whole, end := header.Whole(from, size)
	server := nbd.New(whole, end, func(int64) {})
	socket, stop, err := j.serve(ctx, server)
	if err != nil {
		return 0, err
	}
	defer stop()
	converter := &image.Converter{QEMUImg: j.QEMUImg, Header: header, Socket: socket}
	data, err := converter.Data(ctx)
	return data, j.cause(ctx, server, err)
}

// segments converts one segment after another. While one is converted, that before is written to the
// storage.
func (j *Import) segments(ctx context.Context, converter *image.Converter, server *nbd.Server, next, virtual int64) error {
	written := make(chan error, 1)
	written <- nil
	target := image.Target{Path: j.disk.Path, Block: j.disk.Block}
	for next < virtual {
		s := image.Segment{Offset: next, Bytes: min(j.Segment, virtual-next)}
		err := converter.Convert(ctx, s, target, j.disk.Zeroed())
		if err = errors.Join(j.cause(ctx, server, err), <-written); err != nil {
			return err
		}
		next += s.Bytes
		go func() { written <- j.reached(next) }()
	}
	return <-written
}

// cause is why qemu-img failed, which it does not know itself.
func (j *Import) cause(ctx context.Context, server *nbd.Server, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case server.Err() != nil:
		return server.Err()
	case j.disk.Full():
		return j.disk.ErrNoRoom()
	}
	return err
}

// serve serves an image on a socket.
func (j *Import) serve(ctx context.Context, server *nbd.Server) (socket string, stop func(), err error) {
	folder, err := os.MkdirTemp(j.Work, "nbd-*") // for this user alone
	if err != nil {
		return "", nil, fmt.Errorf("make a socket for qemu-img: %w", err)
	}
	socket = filepath.Join(folder, "image")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		os.RemoveAll(folder)
		return "", nil, fmt.Errorf("make a socket for qemu-img: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ctx, listener); err != nil {
			j.Log.Error("serve the image to qemu-img", "error", err)
		}
	})
	return socket, func() { cancel(); serving.Wait(); os.RemoveAll(folder) }, nil
}
