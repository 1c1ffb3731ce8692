package fill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/importer/disk"
	"github.com/kubeqemu/kubeqemu/internal/importer/image"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// receiver is an import that waits for uploads.
type receiver struct {
	*Import
	t      *testing.T
	server *httptest.Server
	cancel context.CancelFunc
	done   chan error
}

// receive starts an import of an upload.
func receive(t *testing.T, change func(*Config)) *receiver {
	t.Helper()
	c := config(t, "")
	c.Task.Source = importer.Source{Upload: &importer.Upload{}}
	c.UploadIdle = testkit.Patience
	if change != nil {
		change(&c)
	}
	return receiveWith(t, c)
}

func receiveWith(t *testing.T, c Config) *receiver {
	t.Helper()
	job, err := New(c, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("PUT "+importer.UploadPath, job.Upload())
	r := &receiver{Import: job, t: t, server: httptest.NewUnstartedServer(mux), done: make(chan error, 1)}
	// As in the program, the last two times are for other requests. They would end any upload, and one that hangs.
	r.server.Config.ReadHeaderTimeout = testkit.Patience
	r.server.Config.ReadTimeout, r.server.Config.WriteTimeout = time.Millisecond, c.UploadIdle/2
	r.server.Start()
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.done <- job.Run(ctx) }()
	t.Cleanup(func() { cancel(); r.server.CloseClientConnections(); r.server.Close() })
	return r
}

// send sends an image, and returns the status and the text of the answer. size is its length, or -1.
func (r *receiver) send(body io.Reader, size int64) (int, string) {
	r.t.Helper()
	request, err := http.NewRequest(http.MethodPut, r.server.URL+importer.UploadPath, io.NopCloser(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if request.ContentLength = size; size == 0 {
		request.Body = http.NoBody
	}
	request.Header.Set("Expect", "100-continue")
	client := http.Client{Transport: &http.Transport{ExpectContinueTimeout: testkit.Patience, DisableKeepAlives: true}, Timeout: testkit.Patience}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

// begin sends the head of a request, and a part of its body.
func (r *receiver) begin(head string, body []byte) net.Conn {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	if _, err := io.WriteString(conn, "PUT "+importer.UploadPath+" HTTP/1.1\r\nHost: x\r\n"+head+"\r\n\r\n"); err != nil {
		r.t.Fatal(err)
	}
	_, _ = conn.Write(body) // which may be cut
	return conn
}

// anew waits until the import began anew so many times, and waits for an image again. It returns why.
func (r *receiver) anew(times int) string {
	r.t.Helper()
	testkit.Until(r.t, "a new beginning", func() bool { return r.Progress().Anew == times })
	p := r.Progress()
	if p.Done != 0 || p.Total != 0 {
		r.t.Errorf("progress of an import that waits: %+v", p)
	}
	return p.AnewReason
}

// filledAtLast sends a good image, and checks the disk.
func (r *receiver) filledAtLast(s sample) {
	r.t.Helper()
	if status, text := r.send(s.reader(), s.size()); status != http.StatusNoContent {
		r.t.Fatalf("%d %s", status, text)
	}
	if err := <-r.done; err != nil {
		r.t.Fatal(err)
	}
	filled(r.t, r.Config, s)
}

// TestEachFormatCanBeUploaded: an image of each format gives the disk that qemu-img makes of it, whether its length is known or
// it comes in chunks.
func TestEachFormatCanBeUploaded(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"raw", "gzip", "xz", "zstd", "qcow2", "qcow2 -c", "vmdk", "vmdk -o subformat=streamOptimized", "vhdx", "vdi"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(format)
			s := makeSample(t, words[0], words[1:]...)
			for _, size := range []int64{s.size(), -1} {
				if size < 0 && format != "raw" && format != "qcow2" && format != "zstd" {
					continue
				}
				r := receive(t, nil)
				var last importer.Progress
				stop := watch(t, r.Meter, &last)
				if status, text := r.send(s.reader(), size); status != http.StatusNoContent || text != "" {
					t.Errorf("%d %q", status, text)
				}
				err := <-r.done
				stop()
				if err != nil {
					t.Fatal(err)
				}
				filled(t, r.Config, s)
				if p := r.Progress(); p.Done != p.Total || p.Total < s.size() || p.Anew != 0 {
					t.Errorf("progress %+v", p)
				}
				if status, _ := r.send(s.reader(), s.size()); status != http.StatusConflict {
					t.Errorf("after the end: %d", status)
				}
			}
		})
	}
}

// TestLengthOfAnUploadIsKnown: the length of an upload is known while it comes.
func TestLengthOfAnUploadIsKnown(t *testing.T) {
	t.Parallel()
	s := makeSample(t, "raw")
	r := receive(t, nil)
	conn := r.begin(fmt.Sprintf("Content-Length: %d", s.size()), s.file[:10*mib])
	testkit.Until(t, "the progress", func() bool { p := r.Progress(); return p.Total == s.size() && p.Done > 9*mib })
	if status, text := r.send(s.reader(), s.size()); status != http.StatusConflict {
		t.Errorf("a second image at the same time: %d %s", status, text)
	}
	if p := r.Progress(); p.Anew != 0 {
		t.Errorf("the second image disturbs: %+v", p)
	}
	if _, err := conn.Write(s.file[10*mib:]); err != nil {
		t.Fatal(err)
	}
	if err := <-r.done; err != nil {
		t.Fatal(err)
	}
	filled(t, r.Config, s)
}

// TestUploadBreaksOff: an upload that breaks off at any point begins anew, and the next one is taken.
func TestUploadBreaksOff(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"raw", "zstd", "qcow2"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			s := makeSample(t, format)
			r := receive(t, nil)
			times := 0
			for _, head := range []string{fmt.Sprintf("Content-Length: %d", s.size()), "Transfer-Encoding: chunked"} {
				for _, length := range []int64{0, 10, 5000, mib + 1, s.size() / 2, s.size() - 1} {
					body := s.file[:length]
					if strings.Contains(head, "chunked") {
						body = fmt.Appendf(nil, "%x\r\n%s", s.size(), body)
					}
					r.begin(head, body).Close()
					times++
					if reason := r.anew(times); !strings.Contains(reason, "broke off") {
						t.Errorf("after %d bytes: %s", length, reason)
					}
					if info, err := os.Stat(r.Disk); err != nil || info.Size() != 0 {
						t.Errorf("after %d bytes something is left: %v, %v", length, info, err)
					}
				}
			}
			r.filledAtLast(s)
		})
	}
}

// TestUploadHangs: a sender that sends nothing is cut off, and told so.
func TestUploadHangs(t *testing.T) {
	t.Parallel()
	testkit.Slower(t, 300*time.Millisecond, func(idle time.Duration) error { return uploadHangs(t, idle) })
}

// uploadHangs returns an error if the receiver lost patience with a sender that had only no CPU.
func uploadHangs(t *testing.T, idle time.Duration) error {
	t.Helper()
	s := makeSample(t, "raw")
	r := receive(t, func(c *Config) { c.UploadIdle = idle })
	conn := r.begin(fmt.Sprintf("Content-Length: %d", s.size()), s.file[:mib])
	text, _ := io.ReadAll(conn)
	if !bytes.HasPrefix(text, []byte("HTTP/1.1 400 ")) || !bytes.Contains(text, []byte("broke off after 1048576 bytes")) {
		return fmt.Errorf("answered %q", text)
	}
	r.anew(1)
	if status, text := r.send(s.reader(), s.size()); status != http.StatusNoContent {
		return fmt.Errorf("the next one: %d %s", status, text)
	}
	if err := <-r.done; err != nil {
		t.Error(err)
	}
	filled(t, r.Config, s)
	return nil
}

// endless gives a beginning, and then the same byte without end.
type endless struct {
	head io.Reader
	fill byte
	read atomic.Int64
}

func (e *endless) Read(p []byte) (int, error) {
	n, err := e.head.Read(p)
	if err != nil {
		for n = range p {
			p[n] = e.fill
		}
		n = len(p)
	}
	e.read.Add(int64(n))
	return n, nil
}

// TestUploadRefused: what cannot be a disk's image is refused with a reason, without being read to its end,
// and the next one is taken.
func TestUploadRefused(t *testing.T) {
	t.Parallel()
	raw, qcow2, zstd := makeSample(t, "raw"), makeSample(t, "qcow2"), makeSample(t, "zstd")
	backing := bytes.Clone(qcow2.file)
	copy(backing[8:], "\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x08")
	tables := bytes.Clone(qcow2.file)
	copy(tables[3<<16:], "\xff\xff\xff\xff\xff\xff\xff\xff")
	virtualSize := bytes.Clone(qcow2.file)
	copy(virtualSize[24:], "\x00\x00\x00\x01\x00\x00\x00\x00")
	most := imageBytes(target)
	for name, c := range map[string]struct {
		content []byte
		// size is the length that the sender says, if it is not that of the content.
		size int64
		// endless: more and more comes behind the content.
		endless bool
		want    string
		// read is how much may be read.
		read int64
	}{
		"nothing":                   {nil, 0, false, "it is empty", 0},
		"a web page":                {[]byte("<!DOCTYPE html><html>"), 0, false, "web page", mib},
		"a tar archive":             {append(make([]byte, 257), "ustar\x00 more"...), 0, false, "tar archive", mib},
		"raw, too long":             {raw.file, target + 1, true, "27262977 bytes, and this disk has 27262976", 8 * mib},
		"raw, endless":              {raw.file, -1, true, "larger than this disk", target + 4*mib},
		"zeros, endless":            {nil, -1, true, "larger than this disk", target + 4*mib},
		"qcow2, too long":           {qcow2.file, most + 1, true, "would be the most", 8 * mib},
		"qcow2, a backing file":     {backing, 0, false, "backing file", 40 * mib},
		"qcow2, 4 GiB":              {virtualSize, 0, false, "qcow2", 40 * mib},
		"qcow2, bad tables":         {tables, 0, false, "qemu-img", 40 * mib},
		"qcow2, cut off":            {qcow2.file[:1000], 0, false, "cut off", 40 * mib},
		"zstd, cut off":             {zstd.file[:mib], 0, false, "ends early", 40 * mib},
		"zstd, endless":             {zstd.file, -1, true, "", target + 8*mib},
		"compressed, larger inside": {compress(t, make([]byte, 30*mib)), 0, false, "larger than this disk", 40 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const buffered = 12 * mib // what the kernel may take of a connection that nobody reads
			r := receive(t, nil)
			if c.size == 0 {
				c.size = int64(len(c.content))
			}
			body := &endless{head: bytes.NewReader(c.content)}
			var from io.Reader = body
			if !c.endless {
				from = io.LimitReader(body, c.size)
			}
			status, text := r.send(from, c.size)
			if status != http.StatusBadRequest || !strings.Contains(text, c.want) {
				t.Errorf("%d %s", status, text)
			}
			if body.read.Load() > c.read+buffered {
				t.Errorf("%d bytes were taken, more than %d", body.read.Load(), c.read)
			}
			if reason := r.anew(1); reason != strings.TrimSpace(text) {
				t.Errorf("the sender is told %q, and others %q", text, reason)
			}
			if info, err := os.Stat(r.Disk); err != nil || info.Size() != 0 {
				t.Errorf("something is left: %v, %v", info, err)
			}
			r.filledAtLast(raw)
		})
	}
}

func compress(t *testing.T, content []byte) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "gzip", "-1", path)
	out, err := os.ReadFile(path + ".gz")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestUploadCorrupt: an image whose fault is found only when it is converted, after its sender was answered,
// is not the end either.
func TestUploadCorrupt(t *testing.T) {
	t.Parallel()
	good := makeSample(t, "qcow2")
	bad := good.file[:len(good.file)/2]
	r := receive(t, nil)
	if status, text := r.send(bytes.NewReader(bad), int64(len(bad))); status != http.StatusNoContent {
		t.Errorf("%d %s", status, text)
	}
	if reason := r.anew(1); !strings.Contains(reason, "it is cut off: it refers to byte") {
		t.Errorf("the reason is %s", reason)
	}
	r.filledAtLast(good)
}

// TestUploadDevice: beside a device there is no room, and the sender is told before the image is read.
func TestUploadDevice(t *testing.T) {
	t.Parallel()
	d, err := disk.Open(filepath.Join(t.TempDir(), "disk"), false, target, false)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.Block = true
	j := &Import{disk: d}
	for format, refused := range map[image.Format]bool{image.Raw: false, image.Gzip: false, image.QCOW2: true, image.VHDX: true} {
		if err := j.fits(mib, format); errors.Is(err, errNoRoomBeside) != refused {
			t.Errorf("%s: %v", format, err)
		}
	}
}

// TestUploadNoRoom: an image for which the claim has no room is refused, and a smaller one is taken.
func TestUploadNoRoom(t *testing.T) {
	t.Parallel()
	r := receive(t, func(c *Config) {
		folder := filepath.Dir(c.Disk)
		if err := unix.Mount("none", folder, "tmpfs", 0, "size=15m"); err != nil {
			t.Fatalf("mount a small file system: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(folder, unix.MNT_DETACH) })
	})
	t.Cleanup(r.cancel)
	full := bytes.Repeat([]byte("full"), target/4)
	if status, text := r.send(bytes.NewReader(full), int64(len(full))); status != http.StatusBadRequest || !strings.Contains(text, "the claim is full") {
		t.Errorf("%d %s", status, text)
	}
	r.anew(1)
	r.filledAtLast(makeSample(t, "raw"))
}

// TestUploadKilled: an importer that ended while an image came says so, and waits for the image again.
func TestUploadKilled(t *testing.T) {
	t.Parallel()
	s := makeSample(t, "raw")
	first := receive(t, func(c *Config) { c.UploadIdle = time.Hour })
	first.begin(fmt.Sprintf("Content-Length: %d", s.size()), s.file[:10*mib])
	testkit.Until(t, "the progress", func() bool { return first.Progress().Done > 9*mib })
	first.cancel() // which does not wait for the sender
	if err := testkit.Receive(t, first.done, "the end"); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v", err)
	}
	second := receiveWith(t, first.Config)
	if reason := second.anew(1); !strings.Contains(reason, "ended before the image was on the disk") {
		t.Errorf("the reason is %s", reason)
	}
	second.filledAtLast(s)
	// One that waited only has nothing to say.
	third := receive(t, nil)
	third.cancel()
	<-third.done
	fourth := receiveWith(t, third.Config)
	fourth.filledAtLast(s)
	if p := fourth.Progress(); p.Anew != 0 {
		t.Errorf("progress %+v", p)
	}
}
