package serve

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/importer/peer"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

const mib = 1 << 20

func random(size int) []byte {
	p := make([]byte, size)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(p)
	return p
}

// fixture is a server with its disk and its peer.
type fixture struct {
	*Server
	t       *testing.T
	path    string
	content []byte
	address string
	peer    *peer.Pair
}

func newPair(t *testing.T, reads bool) *peer.Pair {
	t.Helper()
	p, err := peer.New(reads)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// start serves a disk to a peer. told: the server knows its peer.
func start(t *testing.T, told bool) *fixture {
	t.Helper()
	f := &fixture{t: t, path: filepath.Join(t.TempDir(), "disk.img"), content: random(3*mib + 512), peer: newPair(t, true)}
	if err := os.WriteFile(f.path, f.content, 0o600); err != nil {
		t.Fatal(err)
	}
	own := newPair(t, false)
	var err error
	if f.Server, err = New(Config{Path: f.path, Pair: own, Log: slog.New(slog.DiscardHandler)}, time.Now()); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, f.Close()); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	if told {
		f.tell(f.peer)
	}
	if err := f.peer.Tell(importer.Peer{Identity: own.Identity(), Address: f.address}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) tell(p *peer.Pair) {
	f.t.Helper()
	if err := f.Pair.Tell(importer.Peer{Identity: p.Identity()}); err != nil {
		f.t.Fatal(err)
	}
}

// client asks as a pair. Each request has a connection of its own.
func client(p *peer.Pair) *http.Client {
	return &http.Client{Timeout: testkit.Patience, Transport: &http.Transport{DisableKeepAlives: true,
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Dial(ctx) }}}
}

// ask asks for the disk with headers.
func (f *fixture) ask(c *http.Client, method string, headers ...string) (*http.Response, []byte, error) {
	f.t.Helper()
	request, err := http.NewRequest(method, "https://peer"+importer.PeerDiskPath, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	response, err := c.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, body, err
}

// TestPeerGetsTheDiskWithAnETag: the peer gets the disk, or the range that it asks for, with a strong ETag.
func TestPeerGetsTheDiskWithAnETag(t *testing.T) {
	t.Parallel()
	f := start(t, true)
	c := client(f.peer)
	whole, body, err := f.ask(c, "GET")
	if err != nil || whole.StatusCode != 200 || !bytes.Equal(body, f.content) || whole.ContentLength != int64(len(f.content)) {
		t.Fatalf("the whole disk: %v", err)
	}
	tag := whole.Header.Get("ETag")
	if len(tag) < 10 || tag[0] != '"' {
		t.Fatalf("the ETag is %s", tag)
	}
	for name, c := range map[string]struct {
		method   string
		headers  []string
		status   int
		from, to int
	}{
		"HEAD":            {"HEAD", nil, 200, 0, 0},
		"a range":         {"GET", []string{"Range", "bytes=5-1000004"}, 206, 5, 1000005},
		"past the end":    {"GET", []string{"Range", fmt.Sprintf("bytes=%d-99999999", 3*mib)}, 206, 3 * mib, 3*mib + 512},
		"outside":         {"GET", []string{"Range", "bytes=99999999-"}, 416, -1, 0},
		"If-Range":        {"GET", []string{"Range", "bytes=0-9", "If-Range", tag}, 206, 0, 10},
		"If-Range, other": {"GET", []string{"Range", "bytes=0-9", "If-Range", `"x"`}, 200, 0, 3*mib + 512},
		"two ranges":      {"GET", []string{"Range", "bytes=0-9,20-29"}, 400, -1, 0},
		"twice a range":   {"GET", []string{"Range", "bytes=0-9", "Range", "bytes=20-29"}, 400, -1, 0},
		"another method":  {"POST", nil, 405, -1, 0},
	} {
		response, body, err := f.ask(client(f.peer), c.method, c.headers...)
		if err != nil || response.StatusCode != c.status {
			t.Errorf("%s: %v, %v", name, response, err)
			continue
		}
		if c.from >= 0 && (!bytes.Equal(body, f.content[c.from:c.to]) || response.Header.Get("ETag") != tag) {
			t.Errorf("%s: %d other bytes, or another ETag", name, len(body))
		}
	}
	if p := f.Progress(); p.Done != p.Total || p.Total != int64(len(f.content)) {
		t.Errorf("progress %+v", p)
	}
}

// TestChangedDiskHasAnotherETag: a disk that is written to has another ETag, and an answer that is under way ends.
func TestChangedDiskHasAnotherETag(t *testing.T) {
	t.Parallel()
	f := start(t, true)
	before, err := f.disk.version()
	if err != nil {
		t.Fatal(err)
	}
	under := &content{disk: f.disk, version: before, read: func(int64) {}}
	if n, err := under.Read(make([]byte, 1000)); n != 1000 || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	changed := before
	for changed == before { // the file's time may be as coarse as a tick of the kernel
		file, err := os.OpenFile(f.path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = file.WriteAt([]byte("x"), 2*mib)
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		if changed, err = f.disk.version(); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := under.Read(make([]byte, 1000)); !errors.Is(err, errChanged) {
		t.Errorf("%d bytes, %v", n, err)
	}
	response, _, err := f.ask(client(f.peer), "HEAD")
	if err != nil || response.Header.Get("ETag") != changed.tag {
		t.Errorf("the ETag is not %s: %v, %v", changed.tag, response, err)
	}
	if err := os.Truncate(f.path, 10); err != nil {
		t.Fatal(err)
	}
	if _, body, err := f.ask(client(f.peer), "GET"); err != nil || len(body) != 10 {
		t.Errorf("the shorter disk: %d bytes, %v", len(body), err)
	}
}

// TestWhatIsNoDiskIsRefused: what is no disk is refused.
func TestWhatIsNoDiskIsRefused(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file, link, fifo := filepath.Join(folder, "file"), filepath.Join(folder, "link"), filepath.Join(folder, "fifo")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(file, link), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path  string
		block bool
		want  string
	}{
		{file, false, ""},
		{file, true, "no block device"},
		{link, false, "symbolic link"},
		{link, true, "symbolic link"},
		{fifo, false, "no regular file"},
		{fifo, true, "no block device"},
		{folder, false, "no regular file"},
		{folder, true, "no block device"},
		{"/dev/null", false, "no regular file"},
		{"/dev/null", true, "no block device"},
		{filepath.Join(folder, "none"), false, "no such file"},
	} {
		d, err := openDisk(c.path, c.block)
		if err == nil {
			d.file.Close()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, block %v: %v", c.path, c.block, err)
		}
	}
}

// TestStrangersGetNoAnswer: nobody but the peer gets an answer, and nobody at all before the peer is told.
func TestStrangersGetNoAnswer(t *testing.T) {
	t.Parallel()
	f := start(t, false)
	if response, _, err := f.ask(client(f.peer), "GET"); err == nil {
		t.Errorf("before the peer is told: %s", response.Status)
	}
	stranger := newPair(t, true)
	if err := stranger.Tell(importer.Peer{Identity: f.Pair.Identity(), Address: f.address}); err != nil {
		t.Fatal(err)
	}
	f.tell(f.peer)
	if response, _, err := f.ask(client(stranger), "GET"); err == nil {
		t.Errorf("a stranger: %s", response.Status)
	}
	without := &http.Client{Timeout: testkit.Patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	if response, err := without.Get("https://" + f.address + importer.PeerDiskPath); err == nil {
		response.Body.Close()
		t.Errorf("without a certificate: %s", response.Status)
	}
	plain, err := net.Dial("tcp", f.address)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	_ = plain.SetDeadline(time.Now().Add(testkit.Patience))
	_, _ = io.WriteString(plain, "GET "+importer.PeerDiskPath+" HTTP/1.1\r\nHost: x\r\n\r\n")
	if text, _ := io.ReadAll(plain); len(text) > 0 {
		t.Errorf("without TLS: %q", text)
	}
	if _, body, err := f.ask(client(f.peer), "GET"); err != nil || !bytes.Equal(body, f.content) {
		t.Errorf("the peer: %v", err)
	}
}

// TestSilentStrangersDoNotKeepThePeerOut: strangers who connect and say nothing do not keep the peer out, however many they are.
func TestSilentStrangersDoNotKeepThePeerOut(t *testing.T) {
	t.Parallel()
	f := start(t, true)
	for i := range 5 * maxStrangers {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%10))}}
		conn, err := dialer.Dial("tcp", f.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%7 == 0 {
			if _, body, err := f.ask(client(f.peer), "GET"); err != nil || !bytes.Equal(body, f.content) {
				t.Errorf("the peer, after %d strangers: %v", i+1, err)
			}
		}
	}
}

// TestConnectionsOfAPeerAreBounded: a peer has no more than maxPeers connections. The oldest end.
func TestConnectionsOfAPeerAreBounded(t *testing.T) {
	t.Parallel()
	f := start(t, true)
	var conns []net.Conn
	for range maxPeers + 3 {
		conn, err := f.peer.Dial(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
		if err := head(conn); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for i, conn := range conns {
		if err := head(conn); (err == nil) != (i >= 3) {
			t.Errorf("connection %d: %v", i, err)
		}
	}
}

// head makes one request and reads its answer.
func head(conn net.Conn) error {
	if _, err := io.WriteString(conn, "HEAD "+importer.PeerDiskPath+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	for text := ""; !strings.HasSuffix(text, "\r\n\r\n"); {
		p := make([]byte, 1)
		if _, err := io.ReadFull(conn, p); err != nil {
			return err
		}
		text += string(p)
	}
	return nil
}

// TestAnotherPeerTakesTheFirstOnesPlace: another peer takes the place of the first, whose connections get nothing more.
func TestAnotherPeerTakesTheFirstOnesPlace(t *testing.T) {
	t.Parallel()
	f := start(t, true)
	conn, err := f.peer.Dial(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	if err := head(conn); err != nil {
		t.Fatal(err)
	}
	second := newPair(t, true)
	if err := second.Tell(importer.Peer{Identity: f.Pair.Identity(), Address: f.address}); err != nil {
		t.Fatal(err)
	}
	f.tell(second)
	if err := head(conn); err == nil {
		t.Error("the first peer gets an answer")
	}
	if _, _, err := f.ask(client(f.peer), "GET"); err == nil {
		t.Error("the first peer connects")
	}
	if _, body, err := f.ask(client(second), "GET"); err != nil || !bytes.Equal(body, f.content) {
		t.Errorf("the second peer: %v", err)
	}
}

// TestProgress: as JSON, how far the disk was served.
func TestProgress(t *testing.T) {
	t.Parallel()
	f := start(t, true)
	for _, c := range []struct {
		of   string
		want int64
	}{{"bytes=0-999", 1000}, {"bytes=2000-2999", 3000}, {"bytes=0-9", 3000}} {
		if _, _, err := f.ask(client(f.peer), "GET", "Range", c.of); err != nil {
			t.Fatal(err)
		}
		recorder := httptest.NewRecorder()
		f.ServeHTTP(recorder, nil)
		var p importer.Progress
		if err := json.Unmarshal(recorder.Body.Bytes(), &p); err != nil || p.Done != c.want || p.Total != int64(len(f.content)) || p.Since.IsZero() {
			t.Errorf("after %s: %+v, %v", c.of, p, err)
		}
	}
}

// TestLargeHolesAreTold: holes of a MiB and more are told, smaller ones are not.
func TestLargeHolesAreTold(t *testing.T) {
	t.Parallel()
	f := start(t, true)
	const size = 64 * mib
	if err := errors.Join(os.Truncate(f.path, 0), os.Truncate(f.path, size)); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(f.path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{4 * mib, 4*mib + 512<<10, 16 * mib, 17*mib + 4<<10} {
		if _, err := file.WriteAt(f.content[:4<<10], at); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	now, err := f.disk.version()
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]importer.Extent{
		"0":                      {Offset: 4 * mib, Bytes: 516 << 10},
		"4194304":                {Offset: 4 * mib, Bytes: 516 << 10},
		fmt.Sprint(4*mib + 1000): {Offset: 4*mib + 1000, Bytes: 516<<10 - 1000},
		"5242880":                {Offset: 16 * mib, Bytes: 4 << 10},
		fmt.Sprint(17 * mib):     {Offset: 17*mib + 4<<10, Bytes: 4 << 10},
		fmt.Sprint(18 * mib):     {Offset: size},
		fmt.Sprint(size):         {Offset: size},
		"9000000000000000000":    {Offset: size},
	} {
		text, tag, status := f.data(from)
		var got importer.Extent
		if err := json.Unmarshal(text, &got); err != nil || got != want || status != http.StatusOK || tag != now.tag {
			t.Errorf("from %s: %d %s, want %+v", from, status, text, want)
		}
	}
	for _, from := range []string{"", "x", "-1", "99999999999999999999"} {
		if text, _, status := f.data(from); status != http.StatusBadRequest {
			t.Errorf("from %q: %d %s", from, status, text)
		}
	}
	// A device has no holes that anybody could tell.
	device := &disk{file: f.disk.file, block: true, bytes: size}
	if got, _, err := device.next(mib); err != nil || got != (importer.Extent{Offset: mib, Bytes: size - mib}) {
		t.Errorf("a device: %+v, %v", got, err)
	}
}

// data asks for the data from an offset on.
func (f *fixture) data(from string) (text []byte, tag string, status int) {
	f.t.Helper()
	response, err := client(f.peer).Get("https://peer" + importer.PeerDataPath + "?from=" + from)
	if err != nil {
		f.t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ = io.ReadAll(response.Body)
	return text, response.Header.Get("ETag"), response.StatusCode
}

// TestDeviceIsServedWhileItIsAskedFor: a device is served as long as virt-controller asks for the identity.
func TestDeviceIsServedWhileItIsAskedFor(t *testing.T) {
	t.Parallel()
	s := device(t)
	synctest.Test(t, func(t *testing.T) {
		mux := http.NewServeMux()
		s.Pair.Handle(mux)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		left := s.left(ctx)
		gone := func() bool {
			synctest.Wait()
			select {
			case <-left:
				return true
			default:
				return false
			}
		}
		for range 10 {
			mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, importer.IdentityPath, nil))
			if time.Sleep(alone * 9 / 10); gone() {
				t.Fatal("it ends while it is asked")
			}
		}
		if time.Sleep(alone); !gone() {
			t.Errorf("nobody asked for %s", alone*19/10)
		}
	})
	s = device(t)
	s.alone = 10 * time.Millisecond
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context(), listener); !errors.Is(err, errAlone) {
		t.Errorf("%v, want %v", err, errAlone)
	}
}

// device is a server of what it takes for a device.
func device(t *testing.T) *Server {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, random(mib), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Path: path, Pair: newPair(t, false), Log: slog.New(slog.DiscardHandler)}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.Block = true
	return s
}
