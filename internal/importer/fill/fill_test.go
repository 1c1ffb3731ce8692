package fill

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/importer/disk"
	"github.com/kubeqemu/kubeqemu/internal/importer/remote"
	"github.com/kubeqemu/kubeqemu/internal/importer/webtest"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

const (
	mib = 1 << 20
	// virtual is how large the images' disk is, and target the disk that is filled.
	virtual = 24 * mib
	target  = 26 * mib
)

// rawContent is a disk with data that hardly compresses, text, and holes.
func rawContent() []byte {
	p := make([]byte, virtual)
	random := rand.NewChaCha8([32]byte{7})
	for at := 0; at < virtual; at += 4 * mib {
		_, _ = random.Read(p[at : at+mib])
		copy(p[at+2*mib:], bytes.Repeat([]byte("text "), 100<<10))
	}
	_, _ = random.Read(p[virtual-mib:])
	return p
}

// sample is an image with rawContent, which is also what the disk must be in the end.
type sample struct {
	file []byte
	raw  []byte
}

func (s sample) reader() *bytes.Reader { return bytes.NewReader(s.file) }
func (s sample) size() int64           { return int64(len(s.file)) }

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// makeSample makes an image by qemu-img, or by a program that compresses a raw one. What the disk must be
// is what qemu-img makes of the image.
func makeSample(t testing.TB, format string, more ...string) sample {
	t.Helper()
	folder := t.TempDir()
	raw, image, back := filepath.Join(folder, "raw"), filepath.Join(folder, "image"), filepath.Join(folder, "back")
	content := rawContent()
	if err := os.WriteFile(raw, content, 0o600); err != nil {
		t.Fatal(err)
	}
	switch format {
	case "raw":
		return sample{content, content}
	case "gzip", "xz", "zstd":
		out, err := exec.Command(format, "-1", "-c", raw).Output()
		if err != nil {
			t.Fatal(err)
		}
		return sample{out, content}
	}
	run(t, "qemu-img", append(append([]string{"convert", "-f", "raw", "-O", format}, more...), raw, image)...)
	run(t, "qemu-img", "convert", "-f", format, "-O", "raw", image, back)
	file, err := os.ReadFile(image)
	result, err2 := os.ReadFile(back)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return sample{file, result}
}

// config is an import of a URL into a new disk.
func config(t testing.TB, url string) Config {
	t.Helper()
	folder := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return Config{
		Task: importer.Task{
			Source: importer.Source{HTTP: &importer.HTTP{URL: url}}, Target: importer.Target{Bytes: target}, Permitted: []string{"127.0.0.0/8"},
		},
		Disk: filepath.Join(folder, "disk.img"), Work: t.TempDir(), QEMUImg: "/usr/bin/qemu-img", Segment: 2 * mib, Interval: 10 * time.Millisecond, Log: log,
		Remote: remote.Options{OpenPatience: testkit.Patience, Patience: testkit.Patience, Idle: testkit.Patience, FirstWait: time.Millisecond, MaxWait: 10 * time.Millisecond},
	}
}

func sum(p []byte) string {
	full := sha256.Sum256(p)
	return "sha256:" + hex.EncodeToString(full[:])
}

// filled says whether the disk is what it must be, and nothing is beside it.
func filled(t *testing.T, c Config, s sample) {
	t.Helper()
	got, err := os.ReadFile(c.Disk)
	if err != nil || len(got) != target || !bytes.Equal(got[:len(s.raw)], s.raw) || len(bytes.Trim(got[len(s.raw):], "\x00")) > 0 {
		t.Errorf("the disk has %d other bytes: %v", len(got), err)
	}
	for _, folder := range []string{filepath.Dir(c.Disk), c.Work} {
		entries, err := os.ReadDir(folder)
		for _, e := range entries {
			if err != nil || e.Name() != "disk.img" {
				t.Errorf("left: %s, %v", e.Name(), err)
			}
		}
	}
	var stat unix.Stat_t
	if err := unix.Stat(c.Disk, &stat); err != nil || stat.Blocks*512 > 12*mib || stat.Mode&0o777 != 0o660 {
		t.Errorf("the disk takes %d bytes and has mode %o: %v", stat.Blocks*512, stat.Mode, err)
	}
}

// TestEachFormatGivesTheDiskOfQEMUImg: each format gives the disk that qemu-img makes of it, and is read once, or twice with
// a checksum.
func TestEachFormatGivesTheDiskOfQEMUImg(t *testing.T) {
	t.Parallel()
	for _, format := range []string{
		"raw", "gzip", "xz", "zstd", "qcow2", "qcow2 -c", "qcow2 -o compat=0.10", "qcow2 -o cluster_size=2M", "vmdk", "vmdk -o subformat=streamOptimized", "vhdx", "vdi",
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(format)
			s := makeSample(t, words[0], words[1:]...)
			for name, c := range map[string]struct {
				behaviour webtest.Behaviour
				checksum  string
				times     float64
				// always: for each format, not for the usual ones alone.
				always bool
			}{
				"ranges":               {webtest.Behaviour{ETag: `"1"`}, "", 1.05, true},
				"ranges, checksum":     {webtest.Behaviour{ETag: `"1"`}, sum(s.file), 2.1, false},
				"cut, time":            {webtest.Behaviour{Modified: "Mon, 01 Jan 2024 00:00:00 GMT", CutAfter: mib + 5000}, "", 1.05, false},
				"no ranges":            {webtest.Behaviour{NoRanges: true}, "", 1, format != "xz" && format != "gzip"},
				"no ranges, checksum":  {webtest.Behaviour{NoRanges: true, NoSize: true}, sum(s.file), 1, false},
				"ranges, no validator": {webtest.Behaviour{}, "", 1.05, false},
			} {
				if !c.always && format != "raw" && format != "qcow2" && format != "zstd" {
					continue
				}
				t.Run(name, func(t *testing.T) {
					server := webtest.Start(t, s.reader(), s.size(), c.behaviour)
					config := config(t, server.URL+"/image")
					config.Task.Source.HTTP.Checksum = c.checksum
					meter, err := fillDisk(context.Background(), config)
					if err != nil {
						t.Fatal(err)
					}
					filled(t, config, s)
					// Four blocks more, as the images are small: on a busy machine a run of blocks that was read
					// ahead is forgotten before it is needed.
					if most := int64(c.times*float64(s.size())) + 4*mib; server.Sent.Load() > most {
						t.Errorf("the server sent %d bytes, more than %d", server.Sent.Load(), most)
					}
					if p := meter.Progress(); p.Done != p.Total || p.Total < s.size() || p.Anew != 0 {
						t.Errorf("progress %+v", p)
					}
				})
			}
		})
	}
}

// TestContainerDiskGivesTheDiskOfQEMUImg: a container disk gives the disk that qemu-img makes of it, in a second process too. What is
// no disk is refused.
func TestContainerDiskGivesTheDiskOfQEMUImg(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"raw", "qcow2", "vmdk"} {
		s := makeSample(t, format)
		c := config(t, "")
		c.Task.Source = importer.Source{Image: &importer.Image{}}
		c.Image = imageWith(t, s.file)
		// An importer that was killed left half a disk.
		killed, cancel := context.WithCancel(context.Background())
		if j, err := New(c, time.Now()); err != nil {
			t.Fatal(err)
		} else {
			time.AfterFunc(20*time.Millisecond, cancel)
			_ = j.Run(killed)
		}
		meter, err := fillDisk(context.Background(), c)
		if err != nil {
			t.Fatalf("%s: %v", format, err)
		}
		filled(t, c, s)
		if p := meter.Progress(); p.Done != p.Total || p.Total < s.size() {
			t.Errorf("%s: progress %+v", format, p)
		}
	}
	compressed := makeSample(t, "gzip")
	for words, content := range map[string][]byte{
		"compressed by gzip": compressed.file,
		"has 27262977 bytes": make([]byte, target+1),
		"it is empty":        nil,
		"cannot be used":     []byte("# Disk DescriptorFile"),
	} {
		c := config(t, "")
		c.Task.Source, c.Image = importer.Source{Image: &importer.Image{}}, imageWith(t, content)
		if _, err := fillDisk(context.Background(), c); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
}

// imageWith opens a container image's disk.
func imageWith(t *testing.T, content []byte) func() (*os.File, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return func() (*os.File, error) { return os.Open(path) }
}

// fillDisk is an import from its beginning to its end.
func fillDisk(ctx context.Context, c Config) (*Meter, error) {
	job, err := New(c, time.Now())
	if err != nil {
		return nil, err
	}
	return job.Meter, job.Run(ctx)
}

// watch looks at the progress until it is stopped. It must not fall unless the import began anew.
func watch(t *testing.T, meter *Meter, last *importer.Progress) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			p := meter.Progress()
			before, _ := last.Percent()
			now, _ := p.Percent()
			anew := p.Anew > last.Anew || p.Anew > 0 && !p.Since.Equal(last.Since)
			if now < before && !anew {
				t.Errorf("the progress fell from %+v to %+v", *last, p)
			}
			*last = p
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() { close(end); <-ended }
}

// killing is an import that is killed again and again.
type killing struct {
	format   string
	checksum bool
	etag     string
	anew     bool // it cannot go on
}

// TestKilledImportGoesOn: an import that is ended at ten points goes on where it was, and the percentage does not
// fall. Where it cannot go on, it begins anew and says so.
func TestKilledImportGoesOn(t *testing.T) {
	t.Parallel()
	for _, c := range []killing{
		{"raw", false, `"1"`, false},
		{"raw", true, `"1"`, false},
		{"qcow2", false, `"1"`, false},
		{"qcow2", true, `"1"`, false},
		{"vmdk", false, `"1"`, false},
		{"zstd", false, `"1"`, true},
		{"qcow2", false, ``, true},
	} {
		t.Run(fmt.Sprintf("%s, checksum %v, anew %v", c.format, c.checksum, c.anew), func(t *testing.T) {
			t.Parallel()
			testkit.Slower(t, 100*time.Microsecond, func(delay time.Duration) error { return c.killed(t, delay) })
		})
	}
}

// killed returns an error if too many of the kills come too late, because the server is too fast for them.
func (c killing) killed(t *testing.T, delay time.Duration) error {
	t.Helper()
	s := makeSample(t, c.format)
	server := webtest.Start(t, s.reader(), s.size(), webtest.Behaviour{ETag: c.etag, Delay: delay})
	config := config(t, server.URL)
	if c.checksum {
		config.Task.Source.HTTP.Checksum = sum(s.file)
	}
	var last importer.Progress
	kills, next := 0, int64(0)
	for point := int64(1); ; point++ {
		job, err := New(config, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		meter := job.Meter
		if before := next; !c.anew {
			if next = job.keep.state.Next; next < before {
				t.Errorf("a process begins at %d, and another began at %d", next, before)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		if at := point; at <= 10 {
			go func() {
				for ctx.Err() == nil && meter.current().Done*11 < at*meter.current().Total || meter.current().Total == 0 {
					time.Sleep(time.Millisecond)
				}
				cancel()
			}()
		}
		stop := watch(t, meter, &last)
		err = job.Run(ctx)
		stop()
		cancel()
		if err == nil {
			break
		}
		if errors.Is(err, disk.ErrBusy) { // as in TestKilledCopyOfAClaimGoesOn
			point--
			continue
		}
		if kills++; !errors.Is(err, context.Canceled) || kills > 10 {
			t.Fatalf("ended %d times: %v", kills, err)
		}
	}
	filled(t, config, s)
	if kills < 5 || !c.anew && next == 0 {
		return fmt.Errorf("killed %d times, and the last process began at %d", kills, next)
	}
	if (last.Anew == 1) != c.anew || (last.AnewReason != "") != c.anew || c.anew && next > 0 {
		t.Errorf("in the end %+v; the last process began at %d", last, next)
	}
	return nil
}

// TestChangedSourceIsImportedAnew: an import whose source changes begins anew, and the disk is the new file's.
func TestChangedSourceIsImportedAnew(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"raw", "qcow2"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			s := makeSample(t, format)
			old := bytes.Clone(s.file)
			copy(old[2*mib:], bytes.Repeat([]byte("old"), mib))
			var server *webtest.Server
			// The importer asks for one piece after the other. The source changes when the importer has asked for the second.
			server = webtest.Start(t, bytes.NewReader(old), s.size(), webtest.Behaviour{ETag: `"old"`, Before: func(_ http.ResponseWriter, r *http.Request) bool {
				if piece := r.Header.Get("Range"); piece != "" && !strings.HasPrefix(piece, "bytes=0-") {
					server.Replace(s.reader(), s.size(), `"new"`)
				}
				return false
			}})
			config := config(t, server.URL)
			job, err := New(config, time.Now())
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
			filled(t, config, s)
			if last.Anew != 1 || !strings.Contains(last.AnewReason, "changed") {
				t.Errorf("progress %+v", last)
			}
		})
	}
}

// cutShort is an import that is killed once it has said how far the disk is. The server gives no more than a third
// of the file before.
func cutShort(t *testing.T, c Config, server *webtest.Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server.Change(func(b *webtest.Behaviour) {
		b.Before = func(_ http.ResponseWriter, r *http.Request) bool {
			var from int64
			_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
			if from < virtual/3 {
				return false
			}
			<-r.Context().Done()
			return true
		}
	})
	defer server.Change(func(b *webtest.Behaviour) { b.Before = nil })
	go func() {
		defer cancel()
		for ctx.Err() == nil {
			if state, _, _ := (disk.States{Path: c.Disk + disk.StateSuffix}).Load(); state.Next > 0 {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := fillDisk(ctx, c); !errors.Is(err, context.Canceled) {
		t.Fatalf("the first part: %v", err)
	}
}

// TestWeakETagTellsNoVersionsApart: an ETag that is weak, or a time that is only just over, tells no two versions apart. So another
// process begins anew.
func TestWeakETagTellsNoVersionsApart(t *testing.T) {
	t.Parallel()
	for name, behaviour := range map[string]webtest.Behaviour{
		"weak ETag": {ETag: `W/"a"`}, "new file": {Modified: time.Now().UTC().Format(http.TimeFormat)},
	} {
		s := makeSample(t, "raw")
		old := bytes.Repeat([]byte("old "), virtual/4)
		server := webtest.Start(t, bytes.NewReader(old), s.size(), behaviour)
		c := config(t, server.URL)
		cutShort(t, c, server)
		server.Replace(s.reader(), s.size(), behaviour.ETag)
		meter, err := fillDisk(context.Background(), c)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		filled(t, c, s)
		if p := meter.Progress(); p.Anew != 1 || p.AnewReason == "" {
			t.Errorf("%s: progress %+v", name, p)
		}
	}
}

// TestKilledRestartLeavesAClearedDisk: an import that begins anew and is killed at once leaves a state of a disk that was
// cleared, whatever the source says next.
func TestKilledRestartLeavesAClearedDisk(t *testing.T) {
	t.Parallel()
	s := makeSample(t, "raw")
	server := webtest.Start(t, s.reader(), s.size(), webtest.Behaviour{ETag: `"a"`})
	c := config(t, server.URL)
	cutShort(t, c, server)
	j, err := New(c, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if j.disk, err = disk.Open(c.Disk, false, target, false); err != nil {
		t.Fatal(err)
	}
	if next, err := j.beginAt(version{`Etag "b"`, s.size()}, true); next != 0 || err != nil {
		t.Fatalf("it goes on at %d (%v)", next, err)
	}
	if err := j.disk.Close(); err != nil { // as the end of the process does
		t.Fatal(err)
	}
	if _, err := fillDisk(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	filled(t, c, s)
}

// TestPartOfARawImageIsNotTheWhole: without a size, and without an end, a part of a raw image is not taken for the whole.
func TestPartOfARawImageIsNotTheWhole(t *testing.T) {
	t.Parallel()
	s := makeSample(t, "raw")
	for _, checksum := range []string{"", sum(s.file)} {
		url := answering(t, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"+string(s.file[:10*mib]))
		c := config(t, url)
		c.Task.Source.HTTP.Checksum = checksum
		if _, err := fillDisk(context.Background(), c); err == nil {
			t.Errorf("a part is taken for the whole, with the checksum %q", checksum)
		}
		c = config(t, answering(t, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"+string(s.file)))
		c.Task.Source.HTTP.Checksum = checksum
		if _, err := fillDisk(context.Background(), c); (err == nil) != (checksum != "") {
			t.Errorf("the whole, with the checksum %q: %v", checksum, err)
		}
	}
}

// TestBannerOfAnotherServiceIsNotTold: what a service says that does not speak HTTP is told to nobody.
func TestBannerOfAnotherServiceIsNotTold(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"-ERR the-secret\r\n", "HTTP/1.1 200 OK\r\nthe-secret\r\n\r\n"} {
		c := config(t, answering(t, text))
		c.Remote.OpenPatience = 100 * time.Millisecond
		if _, err := fillDisk(context.Background(), c); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// answering is the URL of a server that says the same to everybody.
func answering(t *testing.T, text string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					io.WriteString(conn, text)
				}
			}()
		}
	}()
	return "http://" + listener.Addr().String() + "/image"
}

// TestSourceBehindABalancerIsImported: servers behind one name that have the same file, each with an ETag or a time of its own. The import begins anew once,
// and says why.
func TestSourceBehindABalancerIsImported(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"raw", "qcow2", "gzip"} {
		for header, value := range map[string]string{"ETag": `"%d"`, "Last-Modified": "Mon, 02 Jan 2023 03:04:0%d GMT"} {
			t.Run(format+" "+header, func(t *testing.T) {
				t.Parallel()
				s := makeSample(t, format)
				var requests atomic.Int64
				server := webtest.Start(t, s.reader(), s.size(), webtest.Behaviour{Before: func(w http.ResponseWriter, _ *http.Request) bool {
					w.Header().Set(header, fmt.Sprintf(value, requests.Add(1)%3))
					return false
				}})
				config := config(t, server.URL)
				meter, err := fillDisk(context.Background(), config)
				if err != nil {
					t.Fatal(err)
				}
				filled(t, config, s)
				if p := meter.Progress(); p.Anew != 1 || !strings.Contains(p.AnewReason, "it is read in one answer now") {
					t.Errorf("progress %+v", p)
				}
			})
		}
	}
}

// TestEverChangingSourceIsGivenUp: a source that never stays the same is given up.
func TestEverChangingSourceIsGivenUp(t *testing.T) {
	t.Parallel()
	content := make([]byte, 8*mib)
	var requests atomic.Int64
	server := webtest.Start(t, bytes.NewReader(content), int64(len(content)), webtest.Behaviour{})
	server.Change(func(b *webtest.Behaviour) {
		b.Before = func(http.ResponseWriter, *http.Request) bool {
			n := requests.Add(1)
			server.Replace(bytes.NewReader(content[:int64(len(content))-512*n]), int64(len(content))-512*n, fmt.Sprintf(`"%d"`, n))
			return false
		}
	})
	meter, err := fillDisk(context.Background(), config(t, server.URL))
	if !errors.Is(err, remote.ErrChanged) || !strings.Contains(err.Error(), "began 5 times") {
		t.Errorf("run: %v", err)
	}
	if p := meter.Progress(); p.Anew != maxBegins-1 {
		t.Errorf("progress %+v", p)
	}
}

// TestImportGoesOnAfterCutConnections: an import whose connection is cut ten times and more goes on where it was. The disk is what
// qemu-img makes of the image, and the percentage does not fall.
func TestImportGoesOnAfterCutConnections(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"raw", "qcow2", "vmdk"} {
		for _, checksum := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, checksum %v", format, checksum), func(t *testing.T) {
				t.Parallel()
				s := makeSample(t, format)
				server := webtest.Start(t, s.reader(), s.size(), webtest.Behaviour{ETag: `"1"`, CutAfter: 400_000})
				config := config(t, server.URL)
				if checksum {
					config.Task.Source.HTTP.Checksum = sum(s.file)
				}
				job, err := New(config, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				var last importer.Progress
				stop := watch(t, job.Meter, &last)
				err = job.Run(context.Background())
				stop()
				if cuts := server.Cuts.Load(); err != nil || cuts < 10 || last.Anew != 0 {
					t.Errorf("cut %d times, and in the end %+v: %v", cuts, last, err)
				}
				filled(t, config, s)
			})
		}
	}
}

// TestBrokenStreamBeginsAnew: a stream that breaks once begins anew, and one that breaks always is given up.
func TestBrokenStreamBeginsAnew(t *testing.T) {
	t.Parallel()
	s := makeSample(t, "raw")
	for _, always := range []bool{false, true} {
		server := webtest.Start(t, s.reader(), s.size(), webtest.Behaviour{NoRanges: true, CutAfter: 10 * mib})
		if !always {
			var requests atomic.Int64
			server.Change(func(b *webtest.Behaviour) {
				b.Before = func(http.ResponseWriter, *http.Request) bool {
					if requests.Add(1) == 1 {
						go server.Change(func(b *webtest.Behaviour) { b.CutAfter = 0 })
					}
					return false
				}
			})
		}
		config := config(t, server.URL)
		meter, err := fillDisk(context.Background(), config)
		if always != errors.Is(err, remote.ErrBroken) || !always && err != nil {
			t.Errorf("breaks always %v: %v", always, err)
		}
		if p := meter.Progress(); always && p.Anew != maxBegins-1 || !always && (p.Anew != 1 || p.AnewReason == "") {
			t.Errorf("progress %+v", p)
		}
		if !always {
			filled(t, config, s)
		}
	}
}

// TestBadSourceIsRefusedWithAReason: what cannot be imported is refused with a reason, and the disk has nothing of it.
func TestBadSourceIsRefusedWithAReason(t *testing.T) {
	t.Parallel()
	raw, qcow2 := makeSample(t, "raw"), makeSample(t, "qcow2")
	zstd, vmdk, stream := makeSample(t, "zstd"), makeSample(t, "vmdk"), makeSample(t, "vmdk", "-o", "subformat=streamOptimized")
	vdi, vhdx := makeSample(t, "vdi"), makeSample(t, "vhdx")
	patch := func(s sample, at int, text string) []byte {
		p := bytes.Clone(s.file)
		copy(p[at:], text)
		return p
	}
	squeeze := func(p []byte) []byte {
		cmd := exec.Command("gzip", "-1", "-c")
		cmd.Stdin = bytes.NewReader(p)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	// A backing file in JSON that QEMU would open, if it were let.
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, bytes.Repeat([]byte("secret!!"), 1<<17), 0o600); err != nil {
		t.Fatal(err)
	}
	backing := `json:{"driver":"raw","file":{"driver":"file","filename":"` + secret + `"}}`
	withBacking := patch(qcow2, 8, "\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00"+string(rune(len(backing))))
	copy(withBacking[512:], backing)
	for name, c := range map[string]struct {
		file   []byte
		change func(*Config)
		want   string
	}{
		"too large":                      {raw.file, func(c *Config) { c.Task.Target.Bytes = virtual - 1 }, "25165824 bytes, and this disk has 25165823"},
		"too large, qcow2":               {qcow2.file, func(c *Config) { c.Task.Target.Bytes = virtual - 1 }, "25165824 bytes, and this disk has 25165823"},
		"too large, compressed":          {zstd.file, func(c *Config) { c.Task.Target.Bytes = 15 * mib }, "larger than this disk"},
		"backing file":                   {withBacking, nil, "backing file"},
		"data file":                      {patch(qcow2, 72, "\x00\x00\x00\x00\x00\x00\x00\x04"), nil, "data file"},
		"2^63 bytes":                     {patch(qcow2, 24, "\x80\x00\x00\x00\x00\x00\x00\x00"), nil, "9223372036854775808"},
		"10^9 clusters":                  {patch(qcow2, 36, "\x3b\x9a\xca\x00"), nil, "L1"},
		"snapshots of rubbish":           {patch(qcow2, 60, "\x00\x00\x00\x05\x00\x00\x00\x00\x00\x10\x00\x00"), nil, "qemu-img"},
		"tables of rubbish":              {patch(qcow2, 3<<16, "\xff\xff\xff\xff\xff\xff\xff\xff"), nil, "qemu-img"},
		"cut off, qcow2":                 {qcow2.file[:5*mib], nil, "it is cut off: it refers to byte"},
		"cut off, vmdk":                  {vmdk.file[:5*mib], nil, "it is cut off"},
		"cut off, vmdk to stream":        {stream.file[:5*mib], nil, "byte "},
		"cut off, vdi":                   {vdi.file[:5*mib], nil, "it is cut off"},
		"cut off, vhdx":                  {vhdx.file[:10*mib], nil, "qemu-img"},
		"web page":                       {[]byte("<!DOCTYPE html><html>"), nil, "web page"},
		"cut off, compressed":            {zstd.file[:mib], nil, "ends early"},
		"qcow2 within gzip":              {squeeze(qcow2.file[:mib]), nil, "a qcow2 image compressed by gzip"},
		"gzip within gzip":               {squeeze(squeeze(raw.file[:mib])), nil, "a gzip image compressed by gzip"},
		"much in little":                 {squeeze(make([]byte, 30*mib)), nil, "larger than this disk"},
		"wrong checksum":                 {raw.file, func(c *Config) { c.Task.Source.HTTP.Checksum = sum(nil) }, "checksum is another"},
		"wrong checksum, qcow2":          {qcow2.file, func(c *Config) { c.Task.Source.HTTP.Checksum = sum(nil) }, "checksum is another"},
		"wrong checksum, compressed":     {zstd.file, func(c *Config) { c.Task.Source.HTTP.Checksum = sum(nil) }, "checksum is another"},
		"unknown checksum":               {raw.file, func(c *Config) { c.Task.Source.HTTP.Checksum = "crc:1" }, "begins with none of md5:"},
		"short checksum":                 {raw.file, func(c *Config) { c.Task.Source.HTTP.Checksum = "md5:00" }, "32 hexadecimal digits"},
		"not permitted":                  {raw.file, func(c *Config) { c.Task.Permitted = nil }, "a loopback address"},
		"no certificates":                {raw.file, func(c *Config) { c.Task.Source.HTTP.Certificates, c.Certificates = true, t.TempDir() }, "none in PEM"},
		"no credentials":                 {raw.file, func(c *Config) { c.Task.Source.HTTP.Credentials, c.Credentials = true, t.TempDir() }, "read the credentials"},
		"a block of addresses":           {raw.file, func(c *Config) { c.Task.Forbidden = []string{"x"} }, "block of addresses"},
		"a header":                       {raw.file, func(c *Config) { c.Task.Source.HTTP.Headers = []string{"Range: bytes=0-1"} }, "sends by itself"},
		"no source":                      {raw.file, func(c *Config) { c.Task.Source.HTTP = nil }, "no source"},
		"no qemu-img":                    {qcow2.file, func(c *Config) { c.QEMUImg = "/none" }, "start qemu-img"},
		"small disk, stream of checksum": {raw.file, func(c *Config) { c.Task.Target.Bytes = mib }, "larger"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, ranges := range []bool{true, false} {
				server := webtest.Start(t, bytes.NewReader(c.file), int64(len(c.file)), webtest.Behaviour{ETag: `"1"`, NoRanges: !ranges})
				config := config(t, server.URL)
				if c.change != nil {
					c.change(&config)
				}
				_, err := fillDisk(context.Background(), config)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("ranges %v: got %v, want something with %q", ranges, err, c.want)
				}
				text, _ := os.ReadFile(config.Disk) // there may be none
				if bytes.Contains(text, []byte("secret")) || !strings.HasPrefix(name, "cut off") && len(bytes.Trim(text, "\x00")) > 0 {
					t.Errorf("ranges %v: the disk has something", ranges)
				}
				if _, err := os.Stat(config.Disk + besideSuffix); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the image is left beside the disk: %v", err)
				}
			}
		})
	}
}

// TestBlankDisk: a disk of nothing.
func TestBlankDisk(t *testing.T) {
	t.Parallel()
	for _, preallocate := range []bool{false, true} {
		config := config(t, "")
		config.Task.Source = importer.Source{Blank: &importer.Blank{}}
		config.Task.Target.Preallocate = preallocate
		meter, err := fillDisk(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		var stat unix.Stat_t
		if err := unix.Stat(config.Disk, &stat); err != nil || stat.Size != target || stat.Mode&0o777 != 0o660 || (stat.Blocks > 0) != preallocate {
			t.Errorf("preallocate %v: %+v, %v", preallocate, stat, err)
		}
		if percent, known := meter.Progress().Percent(); percent != 100 || !known {
			t.Errorf("progress %v", percent)
		}
	}
}

// TestPreallocatedDiskHasNoHoles: the disk of an image has no holes if it may have none.
func TestPreallocatedDiskHasNoHoles(t *testing.T) {
	t.Parallel()
	s := makeSample(t, "qcow2")
	server := webtest.Start(t, s.reader(), s.size(), webtest.Behaviour{})
	config := config(t, server.URL)
	config.Task.Target.Preallocate = true
	if _, err := fillDisk(context.Background(), config); err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	got, err := os.ReadFile(config.Disk)
	if err := errors.Join(err, unix.Stat(config.Disk, &stat)); err != nil || stat.Blocks*512 < target || !bytes.Equal(got[:virtual], s.raw) {
		t.Errorf("the disk takes %d bytes: %v", stat.Blocks*512, err)
	}
}

// halfway calls a function before it gives anything from an offset on.
type halfway struct {
	io.ReaderAt
	from int64
	call func()
}

func (h halfway) ReadAt(p []byte, offset int64) (int, error) {
	if offset+int64(len(p)) > h.from {
		h.call()
	}
	return h.ReaderAt.ReadAt(p, offset)
}

// TestDeviceIsFilledOverWhatItHad: a device is filled over what it had, also in two parts.
func TestDeviceIsFilledOverWhatItHad(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"raw", "qcow2", "zstd"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			s := makeSample(t, format)
			file := filepath.Join(t.TempDir(), "device")
			if err := os.WriteFile(file, bytes.Repeat([]byte("old "), target/4), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
			if err != nil {
				t.Fatalf("THIS MACHINE HAS NO LOOP DEVICES, and block volumes cannot be tested: losetup: %v: %s", err, out)
			}
			device := strings.TrimSpace(string(out))
			t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			server := webtest.Start(t, halfway{s.reader(), s.size() / 2, cancel}, s.size(), webtest.Behaviour{ETag: `"1"`, Delay: 100 * time.Microsecond})
			config := config(t, server.URL)
			config.Task.Target.Block, config.Disk = true, device
			if _, err := fillDisk(ctx, config); !errors.Is(err, context.Canceled) {
				t.Fatalf("the first part: %v", err)
			}
			if _, err := fillDisk(context.Background(), config); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(file)
			if err != nil || !bytes.Equal(got[:virtual], s.raw) || len(bytes.Trim(got[virtual:], "\x00")) > 0 {
				t.Errorf("the device has something else: %v", err)
			}
			if entries, err := os.ReadDir(config.Work); len(entries) > 0 || err != nil {
				t.Errorf("left: %v, %v", entries, err)
			}
		})
	}
	// Without ranges there is no place for a qcow2 image.
	s := makeSample(t, "qcow2")
	server := webtest.Start(t, s.reader(), s.size(), webtest.Behaviour{NoRanges: true})
	config := config(t, server.URL)
	j := &Import{Config: config}
	d, err := disk.Open(config.Disk, false, target, false)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	j.disk = d
	d.Block = true
	if err := j.convertBeside(context.Background(), nil, "qcow2"); err == nil || !strings.Contains(err.Error(), "mode Filesystem") {
		t.Errorf("beside a device: %v", err)
	}
}

// TestFullClaimIsAnErrorWithSizes: a claim without room gives an error with the sizes, whoever writes.
func TestFullClaimIsAnErrorWithSizes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		format string
		ranges bool
		size   string
		want   string
	}{
		{"raw", true, "4m", "the claim is full: the disk of 27262976 bytes takes"},
		{"qcow2", true, "4m", "the claim is full: the disk of 27262976 bytes takes"},
		{"zstd", true, "4m", "the claim is full"},
		{"qcow2", false, "4m", "bytes has to be on the claim beside the disk of 27262976 bytes for a time"},
		{"qcow2", false, "15m", "bytes has to be on the claim beside the disk for a time, the disk has "},
	} {
		t.Run(fmt.Sprintf("%s, ranges %v, %s", c.format, c.ranges, c.size), func(t *testing.T) {
			t.Parallel()
			s := makeSample(t, c.format)
			server := webtest.Start(t, s.reader(), s.size(), webtest.Behaviour{ETag: `"1"`, NoRanges: !c.ranges})
			config := config(t, server.URL)
			folder := filepath.Dir(config.Disk)
			if err := unix.Mount("none", folder, "tmpfs", 0, "size="+c.size); err != nil {
				t.Fatalf("mount a small file system: %v", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(folder, unix.MNT_DETACH) })
			if _, err := fillDisk(context.Background(), config); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestSecretsComeFromTheirFolders: certificates, credentials and headers come from their folders.
func TestSecretsComeFromTheirFolders(t *testing.T) {
	t.Parallel()
	s := makeSample(t, "raw")
	wanted := http.Header{"X-One": {"1"}, "X-Two": {"2"}, "X-Three": {"3: 3"}}
	server := webtest.StartTLS(t, s.reader(), s.size(), webtest.Behaviour{User: "user", Password: "password", Wanted: wanted})
	folder := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(folder, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("certificates/..data/x", "rubbish")
	write("certificates/ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	write("credentials/accessKeyId", "user\n")
	write("credentials/secretKey", "password")
	write("headers/0/a", "X-Two: 2\n\n")
	write("headers/1/b", "x-three: 3: 3")
	config := config(t, server.URL)
	config.Certificates, config.Credentials, config.Headers = filepath.Join(folder, "certificates"), filepath.Join(folder, "credentials"), filepath.Join(folder, "headers")
	*config.Task.Source.HTTP = importer.HTTP{URL: server.URL, Headers: []string{"X-One: 1"}, Certificates: true, Credentials: true, SecretHeaders: 2}
	if _, err := fillDisk(context.Background(), config); err != nil {
		t.Fatal(err)
	}
	filled(t, config, s)
	write("headers/1/b", "a secret without a colon")
	if _, err := fillDisk(context.Background(), config); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a bad header: %v", err)
	}
}

func TestBadHeadersAreRefused(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"x", ":x", "A B: x", "Range: x", "range: x", "Content-Length: 1", "A: x\x00y", "A: x\ry", "Ä: x"} {
		if _, err := parseHeaders([]string{line}); err == nil {
			t.Errorf("%q is a header", line)
		}
	}
	many := make([]string, maxHeaders+1)
	for i := range many {
		many[i] = fmt.Sprintf("A%d: x", i)
	}
	if _, err := parseHeaders(many); err == nil {
		t.Error("so many headers are taken")
	}
	if _, err := parseHeaders([]string{"A: " + strings.Repeat("x", maxHeaderBytes)}); err == nil {
		t.Error("so long a header is taken")
	}
	if got, err := parseHeaders([]string{"a: 1", "A:2", "", "Host: x"}); err != nil || len(got["A"]) != 2 || got.Get("Host") != "x" {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestToldProgressIsWhatWasSaved: what is told is what was saved, as JSON.
func TestToldProgressIsWhatWasSaved(t *testing.T) {
	t.Parallel()
	began := time.Now()
	meter := newMeter(began)
	meter.set(5, 10)
	meter.set(3, 10)
	if p := meter.Progress(); p.Done != 0 {
		t.Errorf("told before it was saved: %+v", p)
	}
	meter.tell(meter.current())
	meter.set(12, 10)
	if p := meter.current(); p.Done != 9 {
		t.Errorf("done before the end: %+v", p)
	}
	recorder := httptest.NewRecorder()
	meter.ServeHTTP(recorder, nil)
	var p importer.Progress
	if err := json.Unmarshal(recorder.Body.Bytes(), &p); err != nil || p.Done != 5 || p.Total != 10 || !p.Since.Equal(began) {
		t.Errorf("told %+v, %v", p, err)
	}
	if percent, known := p.Percent(); percent != 50 || !known {
		t.Errorf("percent %v", percent)
	}
	meter.anew("reason")
	if p := meter.current(); p.Done != 0 || p.Anew != 1 || p.AnewReason != "reason" {
		t.Errorf("anew: %+v", p)
	}
}

// TestLargeFileWithAChecksumIsReadOnce: a file that is too large to be compared with itself is read once, if it has a checksum.
func TestLargeFileWithAChecksumIsReadOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ranges  bool
		size    int64
		checked bool
		want    bool
	}{
		{true, mib, true, true}, {true, mib, false, true}, {false, mib, false, false}, {false, mib, true, false},
		{true, remote.MaxCompared, true, true}, {true, remote.MaxCompared + 1, true, false}, {true, remote.MaxCompared + 1, false, true},
	} {
		if got := twice(c.ranges, c.size, c.checked); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
