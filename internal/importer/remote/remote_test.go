package remote

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer/webtest"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// random are bytes that compress to nothing, the same each time.
func random(size int) []byte {
	p := make([]byte, size)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(p)
	return p
}

// options are patient for a moment only, which is for what must fail: nothing that succeeds at once is bounded by it.
// Idle is long nevertheless: the first TLS handshake reads the system's authorities, and that takes seconds on a busy
// machine.
func options(url string) Options {
	return Options{
		URL: url, MaxSize: 1 << 40, Idle: testkit.Patience, OpenPatience: 300 * time.Millisecond, Patience: 300 * time.Millisecond, FirstWait: time.Millisecond, MaxWait: 10 * time.Millisecond,
		Addresses: Addresses{Permitted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	}
}

// open opens a file that is there, with patience for what goes wrong at first.
func open(t *testing.T, o Options) *File {
	t.Helper()
	o.OpenPatience, o.Patience = testkit.Patience, testkit.Patience
	f, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// TestForwardReadTakesEachByteOnce: what is read from the beginning to the end comes once from the server, whatever it does.
func TestForwardReadTakesEachByteOnce(t *testing.T) {
	t.Parallel()
	content := random(40<<20 + 12345)
	for name, c := range map[string]struct {
		behaviour webtest.Behaviour
		requests  int64
	}{
		"ranges":             {webtest.Behaviour{ETag: `"1"`}, 14},
		"without validator":  {webtest.Behaviour{}, 14},
		"cut after 100 kB":   {webtest.Behaviour{ETag: `"1"`, CutAfter: 100_000}, 1000},
		"cut after a MiB":    {webtest.Behaviour{ETag: `"1"`, CutAfter: 1 << 20}, 100},
		"no ranges":          {webtest.Behaviour{NoRanges: true}, 1},
		"no ranges nor size": {webtest.Behaviour{NoRanges: true, NoSize: true}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := webtest.Start(t, bytes.NewReader(content), int64(len(content)), c.behaviour)
			if c.behaviour.CutAfter == 100_000 {
				// The first answer must be whole: nothing is known before.
				server.Change(func(b *webtest.Behaviour) { b.CutAfter = 0 })
			}
			f := open(t, options(server.URL))
			server.Change(func(b *webtest.Behaviour) { b.CutAfter = c.behaviour.CutAfter })
			got, err := io.ReadAll(f.Stream())
			if err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			if sent := server.Sent.Load(); sent != int64(len(content)) {
				t.Errorf("the server sent %d bytes of %d", sent, len(content))
			}
			if n := server.Requests.Load(); n > c.requests {
				t.Errorf("%d requests, more than %d", n, c.requests)
			}
		})
	}
}

// TestReadingHereAndThere: reading here and there, by several readers, gives what is there.
func TestReadingHereAndThere(t *testing.T) {
	t.Parallel()
	content := random(20<<20 + 1)
	server := webtest.Start(t, bytes.NewReader(content), int64(len(content)), webtest.Behaviour{Modified: "Mon, 01 Jan 2024 00:00:00 GMT"})
	f := open(t, options(server.URL))
	var readers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range 30 {
				offset := random.Int64N(int64(len(content)))
				p := make([]byte, random.IntN(3<<20))
				n, err := f.ReadAt(p, offset)
				want := content[offset:min(offset+int64(len(p)), int64(len(content)))]
				if !bytes.Equal(p[:n], want) || (err == io.EOF) != (n < len(p)) || err != nil && err != io.EOF {
					t.Errorf("%d of %d bytes at %d: %v", n, len(p), offset, err)
				}
			}
		})
	}
	readers.Wait()
	testkit.Eventually(t, "the end of what is read ahead", func() error {
		if f.Seen() != int64(len(content)) || f.Received() != server.Sent.Load() {
			return fmt.Errorf("saw %d of %d bytes, received %d of %d", f.Seen(), len(content), f.Received(), server.Sent.Load())
		}
		return nil
	})
	if len(f.cache.blocks) > cachedBlocks {
		t.Errorf("%d blocks are kept", len(f.cache.blocks))
	}
}

// TestChangedFileIsNoticed: another file in the place of the first is noticed.
func TestChangedFileIsNoticed(t *testing.T) {
	t.Parallel()
	content := random(20 << 20)
	other := bytes.Clone(content)
	other[0]++
	for name, change := range map[string]func(*webtest.Server){
		"ETag":            func(s *webtest.Server) { s.Replace(bytes.NewReader(content), int64(len(content)), `"2"`) },
		"longer":          func(s *webtest.Server) { s.Replace(bytes.NewReader(append(content, 1)), int64(len(content))+1, `"1"`) },
		"shorter":         func(s *webtest.Server) { s.Replace(bytes.NewReader(content), 1, `"1"`) },
		"no ETag":         func(s *webtest.Server) { s.Replace(bytes.NewReader(content), int64(len(content)), "") },
		"no ranges":       func(s *webtest.Server) { s.Change(func(b *webtest.Behaviour) { b.NoRanges = true }) },
		"only the bytes ": func(s *webtest.Server) { s.Replace(bytes.NewReader(other), int64(len(other)), `"1"`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := webtest.Start(t, bytes.NewReader(content), int64(len(content)), webtest.Behaviour{ETag: `"1"`})
			f := open(t, options(server.URL))
			change(server)
			var err error
			for i := int64(0); i < 2*int64(len(content)) && err == nil; i += blockSize { // twice, so that the first block is read again
				_, err = f.ReadAt(make([]byte, 1), i%int64(len(content)))
			}
			if !errors.Is(err, ErrChanged) {
				t.Errorf("read: %v", err)
			}
			if _, again := f.ReadAt(make([]byte, 1), 0); again == nil {
				t.Error("the file was read after that")
			}
		})
	}
}

// TestHostileServersAreRefused: servers that do not keep to what they say are refused, soon, and with a reason that has
// nothing of their answers.
func TestHostileServersAreRefused(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	content := random(size)
	part := func(header string, length string, body int) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("ETag", `"1"`)
			if header != "" {
				w.Header().Set("Content-Range", header)
			}
			if length != "" {
				w.Header().Set("Content-Length", length)
			}
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(content[:body])
			return true
		}
	}
	status := func(code int) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			http.Error(w, "a secret of the cluster", code)
			return true
		}
	}
	for name, c := range map[string]struct {
		before func(w http.ResponseWriter, r *http.Request) bool
		first  bool // from the first request on
		want   string
	}{
		"another range":         {before: part("bytes 1-1048576/8388608", "", 1<<20), want: "another range"},
		"another range, first":  {before: part("bytes 1-1048576/8388608", "", 1<<20), first: true, want: "another range"},
		"a longer range":        {before: part("bytes 0-2097151/8388608", "", 2<<20), first: true, want: "another range"},
		"no Content-Range":      {before: part("", "", 1<<20), first: true, want: "does not say which"},
		"unknown size":          {before: part("bytes 0-1048575/*", "", 1<<20), first: true, want: "Content-Range cannot be read"},
		"negative":              {before: part("bytes 0--5/8388608", "", 1<<20), first: true, want: "Content-Range cannot be read"},
		"2^63":                  {before: part("bytes 0-1048575/9223372036854775808", "", 1<<20), first: true, want: "Content-Range cannot be read"},
		"a range of no file":    {before: part("bytes 0-1048575/5", "", 1<<20), first: true, want: "contradicts"},
		"very large":            {before: part("bytes 0-1048575/2305843009213693952", "", 1<<20), first: true, want: "so large an image"},
		"sends more":            {before: part("bytes 0-1048575/8388608", "", 1<<20+1), first: true, want: "sends more"},
		"sends less":            {before: part("bytes 0-1048575/8388608", "", 1<<20-1), first: true, want: "another range"},
		"lies about the length": {before: part("bytes 1048576-2097151/8388608", "1048577", 1<<20), want: "another range"},
		"empty": {before: func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusOK)
			return true
		}, first: true, want: "the file is empty"},
		"not found":     {before: status(http.StatusNotFound), first: true, want: "status 404"},
		"unauthorized":  {before: status(http.StatusUnauthorized), first: true, want: "credentials"},
		"broken":        {before: status(http.StatusInternalServerError), first: true, want: "status 500"},
		"broken later":  {before: status(http.StatusBadGateway), want: "status 502"},
		"missing later": {before: status(http.StatusNotFound), want: "status 404"},
		"no content":    {before: status(http.StatusNoContent), first: true, want: "status 204"},
		"endless headers": {before: func(w http.ResponseWriter, r *http.Request) bool {
			for i := range 100 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("a secret of the cluster", 100))
			}
			return false
		}, first: true, want: "header"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			behaviour := webtest.Behaviour{ETag: `"1"`}
			if c.first {
				behaviour.Before = c.before
			}
			server := webtest.Start(t, bytes.NewReader(content), size, behaviour)
			f, err := Open(context.Background(), options(server.URL+"/path?secret=1"))
			if err == nil {
				defer f.Close()
				server.Change(func(b *webtest.Behaviour) { b.Before = c.before })
				_, err = f.ReadAt(make([]byte, 1), 5<<20)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want something with %q", err, c.want)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error tells a secret: %v", err)
			}
		})
	}
}

// TestStreamThatEndsEarlySaysSo: a stream that ends before its size says so.
func TestStreamThatEndsEarlySaysSo(t *testing.T) {
	t.Parallel()
	content := random(3 << 20)
	server := webtest.Start(t, bytes.NewReader(content), int64(len(content)), webtest.Behaviour{NoRanges: true, CutAfter: 2 << 20})
	f := open(t, options(server.URL))
	got, err := io.ReadAll(f.Stream())
	if !errors.Is(err, ErrBroken) || !bytes.Equal(got, content[:2<<20]) {
		t.Errorf("%d bytes: %v", len(got), err)
	}
}

// TestSilentServerIsAskedAgain: a server that gives nothing counts as broken and is asked again; a slow one is not.
func TestSilentServerIsAskedAgain(t *testing.T) {
	t.Parallel()
	testkit.Slower(t, 200*time.Millisecond, func(idle time.Duration) error { return silence(t, idle) })
}

// silence returns an error if the server was silent for too long more than once, which it is too when it has no CPU.
func silence(t *testing.T, idle time.Duration) error {
	t.Helper()
	content := random(2 << 20)
	silent := make(chan struct{})
	t.Cleanup(func() { close(silent) })
	server := webtest.Start(t, bytes.NewReader(content), int64(len(content)), webtest.Behaviour{})
	o := options(server.URL)
	o.Idle = idle
	f := open(t, o)
	var once sync.Once
	server.Change(func(b *webtest.Behaviour) {
		b.Delay = idle / 50 // 64 times, which is longer than a server may be silent
		b.Before = func(w http.ResponseWriter, r *http.Request) (silence bool) {
			once.Do(func() { silence = true })
			if silence {
				select {
				case <-silent:
				case <-r.Context().Done():
				}
			}
			return silence
		}
	})
	before := server.Requests.Load()
	got, err := io.ReadAll(f.Stream())
	if err != nil || !bytes.Equal(got, content) {
		return fmt.Errorf("%d bytes: %w", len(got), err)
	}
	if n := server.Requests.Load() - before; n < 2 || n > 4 {
		return fmt.Errorf("%d requests, want the silent and another", n)
	}
	return nil
}

// TestReadingEndsWithTheContext: the end of the context ends all reading.
func TestReadingEndsWithTheContext(t *testing.T) {
	t.Parallel()
	content := random(4 << 20)
	server := webtest.Start(t, bytes.NewReader(content), int64(len(content)), webtest.Behaviour{})
	ctx, cancel := context.WithCancel(context.Background())
	f, err := Open(ctx, options(server.URL))
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	server.Change(func(b *webtest.Behaviour) {
		b.Before = func(_ http.ResponseWriter, r *http.Request) bool {
			close(asked)
			<-r.Context().Done()
			return true
		}
	})
	go func() { <-asked; cancel() }()
	if _, err := f.ReadAt(make([]byte, 1), 3<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("read: %v", err)
	}
	f.Close()
}

// TestRedirectTakesNoSecretsElsewhere: a redirect leads to where a source may be, and takes no secrets to another host.
func TestRedirectTakesNoSecretsElsewhere(t *testing.T) {
	t.Parallel()
	content := random(3 << 20)
	target := webtest.Start(t, bytes.NewReader(content), int64(len(content)), webtest.Behaviour{ETag: `"1"`})
	var leaked sync.Map
	target.Change(func(b *webtest.Behaviour) {
		b.Before = func(w http.ResponseWriter, r *http.Request) bool {
			for _, name := range []string{"Authorization", "X-Secret", "Referer", "Cookie"} {
				if r.Header.Get(name) != "" {
					leaked.Store(name, true)
				}
			}
			return false
		}
	})
	secure := webtest.StartTLS(t, bytes.NewReader(content), int64(len(content)), webtest.Behaviour{
		Before: func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, target.URL, http.StatusFound)
			return true
		},
	})
	pool := x509.NewCertPool()
	pool.AddCert(secure.Certificate())
	for name, c := range map[string]struct{ to, want string }{
		"another host":       {target.URL + "/x", ""},
		"file":               {"file:///etc/passwd", `http:// or https://`},
		"unix":               {"unix:/run/x", `http:// or https://`},
		"no host":            {"http:///x", "no host"},
		"nowhere":            {"", "no URL"},
		"rubbish":            {"http://[::1", "no URL"},
		"https to http":      {secure.URL, "from https to http"},
		"IPv6 loopback":      {"http://[::1]:1/", "a loopback address"},
		"mapped loopback":    {"http://[::ffff:169.254.169.254]:1/", "a link-local address"},
		"metadata":           {"http://169.254.169.254/latest/meta-data", "a link-local address"},
		"the node":           {"http://10.1.2.3/x", "the node or of the API server"},
		"the cluster":        {"http://10.96.0.1/x", "an address of the cluster"},
		"for ever":           {"/again", "more than 10 times"},
		"relative, in a row": {"/5", ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := webtest.Start(t, bytes.NewReader(content), int64(len(content)), webtest.Behaviour{User: "user", Password: "password"})
			var hops atomic.Int64
			server.Change(func(b *webtest.Behaviour) {
				b.Before = func(w http.ResponseWriter, r *http.Request) bool {
					if hops.Add(1) > 5 && name == "relative, in a row" {
						return false
					}
					w.Header().Set("Location", c.to)
					w.WriteHeader(http.StatusTemporaryRedirect)
					return true
				}
			})
			o := options(server.URL)
			o.User, o.Password, o.Headers, o.Roots = "user", "password", http.Header{"X-Secret": {"secret"}}, pool
			o.Addresses.Node = []netip.Addr{netip.MustParseAddr("10.1.2.3")}
			o.Addresses.Forbidden = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
			f, err := Open(context.Background(), o)
			if err == nil {
				defer f.Close()
				_, err = f.ReadAt(make([]byte, 1), 2<<20)
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	leaked.Range(func(name, _ any) bool { t.Errorf("%s went to another host", name); return true })
}

// TestRedirectedURLIsKeptUntilRefused: after a redirect the URL that answered is asked, and the first one again when that
// refuses.
func TestRedirectedURLIsKeptUntilRefused(t *testing.T) {
	t.Parallel()
	content := random(40 << 20)
	b := webtest.Behaviour{ETag: `"1"`}
	mirrors := []*webtest.Server{webtest.Start(t, bytes.NewReader(content), int64(len(content)), b), webtest.Start(t, bytes.NewReader(content), int64(len(content)), b)}
	var next atomic.Int64
	origin := webtest.Start(t, nil, 0, webtest.Behaviour{Before: func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, mirrors[(next.Add(1)+1)%2].URL, http.StatusFound)
		return true
	}})
	f := open(t, options(origin.URL))
	if _, err := f.ReadAt(make([]byte, 1), 15<<20); err != nil || mirrors[1].Requests.Load() != 0 || origin.Requests.Load() != 1 {
		t.Errorf("read: %v; %d requests at the second mirror, %d at the origin", err, mirrors[1].Requests.Load(), origin.Requests.Load())
	}
	mirrors[0].Change(func(b *webtest.Behaviour) {
		b.Before = func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
	})
	if _, err := f.ReadAt(make([]byte, 1), 35<<20); err != nil || mirrors[1].Requests.Load() != 1 {
		t.Errorf("read: %v; %d requests at the second mirror", err, mirrors[1].Requests.Load())
	}
}

// TestCredentialsAndHeadersAreSent: credentials and headers are sent, and a server with TLS is believed for its authority.
func TestCredentialsAndHeadersAreSent(t *testing.T) {
	t.Parallel()
	content := random(1 << 20)
	wanted := http.Header{"X-Token": {"secret"}}
	server := webtest.StartTLS(t, bytes.NewReader(content), int64(len(content)), webtest.Behaviour{User: "user", Password: "password", Wanted: wanted})
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	good := options(server.URL)
	good.User, good.Password, good.Headers, good.Roots = "user", "password", wanted, pool
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"all":               {func(*Options) {}, ""},
		"in the URL":        {func(o *Options) { o.User, o.URL = "", strings.Replace(o.URL, "//", "//user:password@", 1) }, ""},
		"wrong password":    {func(o *Options) { o.Password = "other-secret" }, "status 401"},
		"no header":         {func(o *Options) { o.Headers = nil }, "status 403"},
		"no authority":      {func(o *Options) { o.Roots = nil }, "certConfigMap"},
		"another authority": {func(o *Options) { o.Roots = x509.NewCertPool() }, "certConfigMap"},
		"a scheme":          {func(o *Options) { o.URL = "ftp://x/y" }, `http:// or https://`},
		"no URL":            {func(o *Options) { o.URL = "http://secret:secret@[::" }, "the URL cannot be read"},
		"no scheme":         {func(o *Options) { o.URL = "secret:secret@host/x" }, `http:// or https://`},
		"no host":           {func(o *Options) { o.URL = "http:///secret:secret@host/x" }, "names no host"},
		"a space":           {func(o *Options) { o.URL = "http://secret:sec ret@host/x" }, "the URL cannot be read"},
		"not TLS":           {func(o *Options) { o.URL = "http" + strings.TrimPrefix(o.URL, "https") }, "status 400"},
	} {
		o := good
		c.change(&o)
		f, err := Open(context.Background(), o)
		if err == nil {
			f.Close()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error tells a secret: %v", name, err)
		}
	}
}

func TestLocationHasNoSecrets(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"https://user:password@host:8443/a%20b/c.qcow2?token=x#y": "https://host:8443/a%20b/c.qcow2",
		"http://host":                    "http://host",
		"http://[::":                     "(a URL that cannot be read)",
		"htp://user:password@host/x":     "(a URL that cannot be read)",
		"user:password@host/x":           "(a URL that cannot be read)",
		"https:/user:password@host/x":    "(a URL that cannot be read)",
		"https:///user:password@host/x":  "(a URL that cannot be read)",
		"https:user:password@host/x":     "(a URL that cannot be read)",
		"https://user:pass word@host/x":  "(a URL that cannot be read)",
		"https://user:pass/word@host/x":  "(a URL that cannot be read)",
		"https://user:%zzpassword@host/": "(a URL that cannot be read)",
	} {
		if got := Location(from); got != want {
			t.Errorf("%s: %s", from, got)
		}
	}
}

// TestFileWithoutBoundsTakesBoundedMemory: a file without bounds takes no memory without bounds, and each block of it can be read.
func TestFileWithoutBoundsTakesBoundedMemory(t *testing.T) {
	t.Parallel()
	const size = 64<<40 + 5
	c := &cache{}
	var finishing sync.WaitGroup
	c.init(size, func(run []*block) {
		for _, b := range run {
			finishing.Go(func() {
				if err := c.finish(b); err != nil {
					t.Error(err)
				}
			})
		}
	})
	if len(c.sums) != maxSums {
		t.Errorf("there are %d sums", len(c.sums))
	}
	for _, index := range []int64{0, maxSums - 1, maxSums, maxSums + 1, size / blockSize, maxSums} {
		b, err := c.take(index)
		if err != nil {
			t.Fatal(err)
		}
		<-b.ready
		if want := min(blockSize, size-index*blockSize); int64(len(b.data)) != want || b.err != nil {
			t.Errorf("block %d has %d bytes: %v", index, len(b.data), b.err)
		}
		c.release(b)
	}
	finishing.Wait() // blocks are read ahead
	first, changed := &block{index: 3, data: []byte("a")}, &block{index: 3, data: []byte("b")}
	if !c.check(first, c.summer(first.data)) || c.check(changed, c.summer(changed.data)) || !c.check(first, c.summer(first.data)) {
		t.Error("a block that changed is not noticed")
	}
}

// TestOpenAfterACutWithoutAByte: what the first answer says counts no more if it breaks off before its first byte. The server
// that answers next may be another one, such as behind a load balancer, and have no ranges.
func TestOpenAfterACutWithoutAByte(t *testing.T) {
	t.Parallel()
	content := random(1 << 20)
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(content)-1, len(content)))
			w.Header().Set("Content-Length", fmt.Sprint(len(content)))
			w.WriteHeader(http.StatusPartialContent)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		_ = http.NewResponseController(w).Flush() // so that it does not say its size
		_, _ = w.Write(content)
	}))
	defer server.Close()
	f := open(t, options(server.URL))
	got, err := io.ReadAll(f.Stream())
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes of %d, ranges %v, size %d: %v", len(got), len(content), f.Ranges, f.Size, err)
	}
}
