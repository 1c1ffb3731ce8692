package fill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/importer/remote"
)

const (
	// maxExtent bounds an Extent as JSON, in bytes.
	maxExtent = 1 << 10
	// peerPatience is how long the pod that serves a claim may give nothing: its container may start again,
	// and virt-controller has to tell each pod the other's certificate then.
	peerPatience = 5 * time.Minute
	// peerMaxWait is the longest wait between two tries.
	peerMaxWait = 2 * time.Second
)

// Peer is the pod that serves the claim that is copied.
type Peer interface {
	// Ready waits until it is known who the pod is, or ctx ends.
	Ready(ctx context.Context) error
	// Dial connects to the pod as it was told last, and to nobody else.
	Dial(ctx context.Context) (net.Conn, error)
}

// claim fills the disk from another claim's.
func (j *Import) claim(ctx context.Context) error {
	if j.Peer == nil {
		return errors.New("copy a claim: there is no peer to copy it from")
	}
	j.Log.Info("the importer waits for its peer")
	if err := j.Peer.Ready(ctx); err != nil {
		return err
	}
	return j.again(ctx, j.copyClaim)
}

// copyClaim copies the claim's disk. A disk is raw, whatever its first bytes look like: a guest wrote them.
func (j *Import) copyClaim(ctx context.Context) error {
	source, err := remote.Open(ctx, j.peerOptions())
	var size *remote.SizeError
	if errors.As(err, &size) {
		return j.tooLarge(size.Size)
	}
	if err != nil {
		return err
	}
	defer source.Close()
	j.Log.Info("the source is open", "bytes", source.Size, "ranges", source.Ranges, "versioned", source.Validator != "")
	if !source.Ranges || !source.Strong {
		return errors.New("copy a claim: the pod that serves it gives no ranges, or does not tell versions of the disk apart")
	}
	next, err := j.begin(source, true)
	if err == nil {
		err = j.copyFrom(ctx, &sparse{source: source, at: next}, next, 0, source.Size)
	}
	if err == nil {
		err = source.Unchanged()
	}
	j.Log.Info("the source was read", "received", source.Received())
	if err == nil {
		err = j.finish(ctx)
	}
	if err == nil {
		err = j.keep.finish()
	}
	if errors.Is(err, remote.ErrChanged) {
		err = fmt.Errorf("the claim's disk is written to while it is copied: %w", err)
	}
	return err
}

// peerOptions are what a claim is read with.
func (j *Import) peerOptions() remote.Options {
	o := j.Remote
	// The host names nobody: Dial knows the peer.
	o.URL, o.Dial, o.MaxSize = "https://peer"+importer.PeerDiskPath, j.Peer.Dial, j.disk.Bytes
	for _, d := range []struct {
		time  *time.Duration
		value time.Duration
	}{{&o.OpenPatience, peerPatience}, {&o.Patience, peerPatience}, {&o.MaxWait, peerMaxWait}} {
		if *d.time == 0 {
			*d.time = d.value
		}
	}
	return o
}

// sparse reads a claim's disk from an offset on. What is in holes does not cross the network.
type sparse struct {
	source *remote.File
	at     int64
	// data is the part with data that is next or that is being read.
	data importer.Extent
}

func (s *sparse) Read(p []byte) (int, error) {
	if s.at >= s.source.Size {
		return 0, io.EOF
	}
	if s.at >= s.data.Offset+s.data.Bytes {
		if err := s.ask(); err != nil {
			return 0, err
		}
	}
	if s.at < s.data.Offset {
		n := min(int64(len(p)), s.data.Offset-s.at)
		clear(p[:n])
		s.at += n
		return int(n), nil
	}
	n, err := s.source.ReadAt(p[:min(int64(len(p)), s.data.Offset+s.data.Bytes-s.at)], s.at)
	s.at += int64(n)
	return n, err
}

// ask asks where the next data are.
func (s *sparse) ask() error {
	text, err := s.source.Ask(importer.PeerDataPath, url.Values{"from": {strconv.FormatInt(s.at, 10)}}, maxExtent)
	if err != nil {
		return err
	}
	var data importer.Extent
	err = json.Unmarshal(text, &data)
	switch size := s.source.Size; {
	case err != nil:
		return errors.New("ask for the claim's data: the answer cannot be read")
	case data.Offset < s.at, data.Offset > size, data.Bytes < 0, data.Bytes > size-data.Offset, data.Bytes == 0 && data.Offset < size:
		return errors.New("ask for the claim's data: the answer contradicts itself")
	}
	s.data = data
	s.source.ReadTo(data.Offset + data.Bytes)
	return nil
}
