package fill

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/importer/disk"
	"github.com/kubeqemu/kubeqemu/internal/importer/peer"
	"github.com/kubeqemu/kubeqemu/internal/importer/serve"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// slow is a listener whose connections give at most so many bytes at a time, and wait before each.
type slow struct {
	net.Listener
	delay  *atomic.Int64
	sent   *atomic.Int64
	before func(sent int64)
}

func (s slow) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	return slowConn{conn, s}, err
}

type slowConn struct {
	net.Conn
	slow
}

func (c slowConn) Close() error   { return c.Conn.Close() }
func (c slowConn) Addr() net.Addr { return c.Listener.Addr() }

func (c slowConn) Write(p []byte) (int, error) {
	if c.before != nil {
		c.before(c.sent.Load())
	}
	time.Sleep(time.Duration(c.delay.Load()))
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// source is a claim's disk with the process that serves it.
type source struct {
	t     *testing.T
	path  string
	block bool
	// delay is the time before each write to a connection, and sent what was written to all.
	delay, sent atomic.Int64
	// before is called before each write to a connection, with what was written to all.
	before  func(sent int64)
	pair    *peer.Pair
	address string
	stop    func()
}

func newSource(t *testing.T, content []byte) *source {
	t.Helper()
	s := &source{t: t, path: filepath.Join(t.TempDir(), "disk.img")}
	s.write(content)
	return s
}

func (s *source) write(content []byte) {
	s.t.Helper()
	if err := os.WriteFile(s.path, content, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// start starts a process that serves the disk, for a peer, and tells both of each other.
func (s *source) start(to *peer.Pair) {
	s.t.Helper()
	var err error
	if s.pair, err = peer.New(false); err != nil {
		s.t.Fatal(err)
	}
	server, err := serve.New(serve.Config{Path: s.path, Block: s.block, Pair: s.pair, Log: slog.New(slog.DiscardHandler)}, time.Now())
	if err != nil {
		s.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, slow{listener, &s.delay, &s.sent, s.before}) }()
	s.stop = func() {
		s.t.Helper()
		cancel()
		if err := errors.Join(<-ended, server.Close()); err != nil {
			s.t.Errorf("serve: %v", err)
		}
	}
	s.tell(to)
}

// tell tells both pods of each other.
func (s *source) tell(to *peer.Pair) {
	s.t.Helper()
	err := errors.Join(s.pair.Tell(importer.Peer{Identity: to.Identity()}), to.Tell(importer.Peer{Identity: s.pair.Identity(), Address: s.address}))
	if err != nil {
		s.t.Fatal(err)
	}
}

// claimConfig is a copy of a claim.
func claimConfig(t *testing.T) (Config, *peer.Pair) {
	t.Helper()
	pair, err := peer.New(true)
	if err != nil {
		t.Fatal(err)
	}
	c := config(t, "")
	c.Task.Source, c.Task.Permitted, c.Peer = importer.Source{Claim: &importer.Claim{}}, nil, pair
	c.Task.Forbidden = []string{"127.0.0.0/8"} // which is of other sources
	return c, pair
}

// TestClaimIsCopiedByteByByte: a claim's disk is copied byte by byte, whatever it looks like.
func TestClaimIsCopiedByteByByte(t *testing.T) {
	t.Parallel()
	raw := makeSample(t, "raw")
	qcow2 := bytes.Clone(raw.raw)
	copy(qcow2, "QFI\xfb\x00\x00\x00\x03")
	gzip := bytes.Clone(raw.raw)
	copy(gzip, "\x1f\x8b\x08")
	page := bytes.Clone(raw.raw)
	copy(page, "<!DOCTYPE html><html>")
	for name, content := range map[string][]byte{"raw": raw.raw, "like qcow2": qcow2, "like gzip": gzip, "like a web page": page} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, pair := claimConfig(t)
			s := newSource(t, content)
			job, err := New(c, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- job.Run(context.Background()) }()
			// It waits until it is told of its peer.
			select {
			case err := <-done:
				t.Fatalf("it ended without a peer: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			if p := job.Progress(); p.Total != 0 || p.Done != 0 || p.Anew != 0 {
				t.Errorf("progress while it waits: %+v", p)
			}
			s.start(pair)
			defer s.stop()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			filled(t, c, sample{raw: content})
			if p := job.Progress(); p.Done != p.Total || p.Total < virtual || p.Anew != 0 {
				t.Errorf("progress %+v", p)
			}
		})
	}
}

// TestClaimRefused: what is not copied, and why.
func TestClaimRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"larger": {make([]byte, target+512), fmt.Sprintf("it has %d bytes, and this disk has %d", target+512, target)},
		"empty":  {nil, "empty"},
	} {
		config, pair := claimConfig(t)
		s := newSource(t, c.content)
		s.start(pair)
		if _, err := fillDisk(context.Background(), config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		s.stop()
	}
	config, pair := claimConfig(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := fillDisk(ctx, config); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for a peer does not end: %v", err)
	}
	// A pod that is not there, and one that is another's. Both are tried again.
	config.Remote.OpenPatience = 100 * time.Millisecond
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := peer.New(false)
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Tell(importer.Peer{Identity: stranger.Identity(), Address: listener.Addr().String()}); err != nil {
		t.Fatal(err)
	}
	listener.Close()
	if _, err := fillDisk(context.Background(), config); err == nil || !strings.Contains(err.Error(), "connect to the peer") {
		t.Errorf("nobody there: %v", err)
	}
	s := newSource(t, []byte("content"))
	s.start(pair)
	defer s.stop()
	if err := pair.Tell(importer.Peer{Identity: stranger.Identity(), Address: s.address}); err != nil {
		t.Fatal(err)
	}
	if _, err := fillDisk(context.Background(), config); err == nil || !strings.Contains(err.Error(), "not the peer") {
		t.Errorf("somebody else there: %v", err)
	}
}

// hostilePeer is a pod in the place of the one that serves.
func hostilePeer(t *testing.T, to *peer.Pair, handler http.HandlerFunc) {
	t.Helper()
	pair, err := peer.New(false)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, TLSConfig: pair.ServerConfig()}
	go server.ServeTLS(listener, "", "")
	t.Cleanup(func() { server.Close() })
	err = errors.Join(pair.Tell(importer.Peer{Identity: to.Identity()}), to.Tell(importer.Peer{Identity: pair.Identity(), Address: listener.Addr().String()}))
	if err != nil {
		t.Fatal(err)
	}
}

// TestHostilePeer: a pod in the place of the one that serves leads nowhere else, and no lie of it is
// believed.
func TestHostilePeer(t *testing.T) {
	t.Parallel()
	other := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Error("the redirect is followed") })
	elsewhere := &http.Server{Handler: other}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go elsewhere.Serve(listener)
	defer elsewhere.Close()
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+listener.Addr().String()+"/", http.StatusFound)
		}, "redirects, which it may not"},
		"a redirect to itself": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/disk", http.StatusFound) }, "redirects, which it may not"},
		"no ranges":            {func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, 1000)) }, "no ranges"},
		"2^61 bytes": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-1048575/2305843009213693952")
			w.Header().Set("ETag", `"1"`)
			w.WriteHeader(http.StatusPartialContent)
		}, "it has 2305843009213693952 bytes, and this disk has"},
		"no answer about data": {lying("x"), "cannot be read"},
		"data before":          {lying(`{"offset":-1,"bytes":5}`), "contradicts itself"},
		"data behind the end":  {lying(`{"offset":0,"bytes":4000000}`), "contradicts itself"},
		"data of 2^63 bytes":   {lying(`{"offset":1,"bytes":9223372036854775807}`), "contradicts itself"},
		"data of no bytes":     {lying(`{"offset":0,"bytes":0}`), "contradicts itself"},
		"data without end":     {lying(strings.Repeat(" ", 1<<20)), "more than 1024 bytes"},
		"a weak ETag": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `W/"1"`)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(make([]byte, 2*mib)))
		}, "does not tell versions"},
	} {
		config, pair := claimConfig(t)
		hostilePeer(t, pair, c.handler)
		if _, err := fillDisk(context.Background(), config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// lying serves a disk of 2 MiB, and says something about its data.
func lying(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		if r.URL.Path == importer.PeerDataPath {
			_, _ = io.WriteString(w, text)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(make([]byte, 2*mib)))
	}
}

// TestHolesOfAClaimAreNotSent: what is in holes does not cross the network.
func TestHolesOfAClaimAreNotSent(t *testing.T) {
	t.Parallel()
	c, pair := claimConfig(t)
	s := newSource(t, nil)
	content := make([]byte, virtual)
	copy(content[10*mib+512:], rawContent()[:mib])
	copy(content[13*mib:], "text")
	f, err := os.OpenFile(s.path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(content[10*mib:12*mib], 10*mib)
	_, err2 := f.WriteAt([]byte("text"), 13*mib)
	if err := errors.Join(err, err2, f.Truncate(virtual), f.Close()); err != nil {
		t.Fatal(err)
	}
	s.start(pair)
	defer s.stop()
	meter, err := fillDisk(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	filled(t, c, sample{raw: content})
	if p := meter.Progress(); p.Done != p.Total || p.Total != virtual {
		t.Errorf("progress %+v", p)
	}
	// The head of the disk, two blocks of data, one with the text, and the one before it.
	if most := int64(6 * mib); s.sent.Load() > most {
		t.Errorf("%d bytes were sent, more than %d", s.sent.Load(), most)
	}
}

// TestCopyToADeviceBeginsAnew: a device is copied. Another process cannot tell whether it is still the same, so the copy
// begins anew.
func TestCopyToADeviceBeginsAnew(t *testing.T) {
	t.Parallel()
	c, pair := claimConfig(t)
	content := rawContent()
	s := newSource(t, content)
	out, err := exec.Command("losetup", "--find", "--show", s.path).CombinedOutput()
	if err != nil {
		t.Fatalf("THIS MACHINE HAS NO LOOP DEVICES, and block volumes cannot be tested: losetup: %v: %s", err, out)
	}
	s.path, s.block = strings.TrimSpace(string(out)), true
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", s.path).Run() })
	s.delay.Store(int64(200 * time.Microsecond))
	s.start(pair)
	job, err := New(c, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- job.Run(context.Background()) }()
	testkit.Until(t, "bytes that are sent", func() bool { return s.sent.Load() > virtual/4 })
	s.stop()
	s.start(pair)
	err = <-done
	s.stop()
	if err != nil {
		t.Fatal(err)
	}
	filled(t, c, sample{raw: content})
	if p := job.Progress(); p.Anew != 1 {
		t.Errorf("progress %+v", p)
	}
}

// TestChangedClaimIsCopiedAnew: a disk that is written to while it is copied is copied anew.
func TestChangedClaimIsCopiedAnew(t *testing.T) {
	t.Parallel()
	c, pair := claimConfig(t)
	content := rawContent()
	old := bytes.Clone(content)
	copy(old, "old")
	s := newSource(t, old)
	var once sync.Once
	s.before = func(sent int64) {
		if sent < virtual/2 {
			return
		}
		once.Do(func() {
			if f, err := os.OpenFile(s.path, os.O_WRONLY, 0); err == nil {
				_, _ = f.WriteAt(content[:mib], 0)
				f.Close()
			}
		})
	}
	s.start(pair)
	defer s.stop()
	job, err := New(c, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var last importer.Progress
	stop := watch(t, job.Meter, &last)
	err = job.Run(context.Background())
	stop()
	if err != nil {
		t.Fatal(err)
	}
	filled(t, c, sample{raw: content})
	if last.Anew != 1 || !strings.Contains(last.AnewReason, "written to while it is copied") {
		t.Errorf("progress %+v", last)
	}
}

// TestCopyGoesOnWithANewServer: the process that serves is killed, and another with another key takes its place,
// again and again.
func TestCopyGoesOnWithANewServer(t *testing.T) {
	t.Parallel()
	c, pair := claimConfig(t)
	content := rawContent()
	s := newSource(t, content)
	s.delay.Store(int64(200 * time.Microsecond))
	s.start(pair)
	job, err := New(c, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var last importer.Progress
	stop := watch(t, job.Meter, &last)
	done := make(chan error, 1)
	go func() { done <- job.Run(context.Background()) }()
	for i := range int64(3) {
		testkit.Until(t, "bytes that are sent", func() bool { return s.sent.Load() > (i+1)*virtual/5 })
		s.stop()
		s.start(pair)
	}
	err = <-done
	stop()
	s.stop()
	if err != nil {
		t.Fatal(err)
	}
	filled(t, c, sample{raw: content})
	if last.Anew != 0 {
		t.Errorf("progress %+v", last)
	}
	if most := int64(virtual + 12*mib); s.sent.Load() > most {
		t.Errorf("%d bytes were sent, more than %d", s.sent.Load(), most)
	}
}

// TestKilledCopyOfAClaimGoesOn: the process that copies is killed at ten points, and the next has another key. It goes on
// where the disk was, and the percentage does not fall.
func TestKilledCopyOfAClaimGoesOn(t *testing.T) {
	t.Parallel()
	testkit.Slower(t, 200*time.Microsecond, func(delay time.Duration) error { return claimKilled(t, delay) })
}

// claimKilled returns an error if too many of the kills come too late, because the source is too fast for them.
func claimKilled(t *testing.T, delay time.Duration) error {
	t.Helper()
	c, pair := claimConfig(t)
	content := rawContent()
	s := newSource(t, content)
	s.delay.Store(int64(delay))
	s.start(pair)
	defer func() { s.stop() }()
	var last importer.Progress
	next, kills := int64(0), 0
	for point := int64(1); ; point++ {
		var err error
		if pair, err = peer.New(true); err != nil {
			t.Fatal(err)
		}
		c.Peer = pair
		job, err := New(c, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if job.keep.state.Next < next {
			t.Errorf("a process begins at %d, and another began at %d", job.keep.state.Next, next)
		}
		next = job.keep.state.Next
		s.tell(pair)
		ctx, cancel := context.WithCancel(context.Background())
		go func(point int64) { // a copy, because a busy lock lowers point while the goroutine reads it
			for p := job.Meter.current(); ctx.Err() == nil && (p.Total == 0 || p.Done*11 < point*p.Total); p = job.Meter.current() {
				time.Sleep(time.Millisecond)
			}
			if point <= 10 {
				cancel()
			}
		}(point)
		stop := watch(t, job.Meter, &last)
		err = job.Run(ctx)
		stop()
		cancel()
		if err == nil {
			break
		}
		if errors.Is(err, disk.ErrBusy) { // a process that another test starts has the lock until it is executed
			point--
			continue
		}
		if kills++; !errors.Is(err, context.Canceled) || kills > 10 {
			t.Fatalf("ended %d times: %v", kills, err)
		}
	}
	filled(t, c, sample{raw: content})
	if last.Anew != 0 {
		t.Errorf("it began anew: %+v", last)
	}
	got, err := os.ReadFile(c.Disk)
	if err != nil || sha256.Sum256(got[:virtual]) != sha256.Sum256(content) {
		t.Errorf("the disk is another: %v", err)
	}
	if kills < 5 || next == 0 {
		return fmt.Errorf("killed %d times, the last process began at %d: %+v", kills, next, last)
	}
	return nil
}
