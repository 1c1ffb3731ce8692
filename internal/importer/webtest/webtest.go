// Package webtest is a web server with one file, for tests of what reads from web servers. It does what
// it is told to, good or bad, and counts what it sends.
package webtest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Behaviour is how the server answers.
type Behaviour struct {
	// ETag and Modified are sent if they are not empty.
	ETag, Modified string
	// NoRanges: the whole file is sent whatever was asked for. NoSize: without its size.
	NoRanges, NoSize bool
	// CutAfter bytes of an answer the connection is cut, if it is not 0.
	CutAfter int64
	// Delay is the time between two pieces of an answer.
	Delay time.Duration
	// User and Password are wanted if User is not empty.
	User, Password string
	// Wanted are headers that each request must have.
	Wanted http.Header
	// Before answers instead of the server, if it returns true.
	Before func(w http.ResponseWriter, r *http.Request) bool
}

// Server is a server with one file, at whatever path.
type Server struct {
	*httptest.Server
	// Sent are the bytes of the file that were sent, Requests how many were answered, and Cuts how many
	// connections were cut.
	Sent, Requests, Cuts atomic.Int64

	mu        sync.Mutex
	content   io.ReaderAt
	size      int64
	behaviour Behaviour
}

// Start starts a server that ends with the test.
func Start(t testing.TB, content io.ReaderAt, size int64, b Behaviour) *Server {
	return start(t, content, size, b, (*httptest.Server).Start)
}

// StartTLS starts a server with a certificate of its own.
func StartTLS(t testing.TB, content io.ReaderAt, size int64, b Behaviour) *Server {
	return start(t, content, size, b, (*httptest.Server).StartTLS)
}

func start(t testing.TB, content io.ReaderAt, size int64, b Behaviour, how func(*httptest.Server)) *Server {
	s := &Server{content: content, size: size, behaviour: b}
	s.Server = httptest.NewUnstartedServer(s)
	how(s.Server)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

// Change changes how the server answers.
func (s *Server) Change(change func(*Behaviour)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.behaviour)
}

// Replace puts another file there.
func (s *Server) Replace(content io.ReaderAt, size int64, etag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content, s.size, s.behaviour.ETag = content, size, etag
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Requests.Add(1)
	s.mu.Lock()
	content, size, b := s.content, s.size, s.behaviour
	s.mu.Unlock()
	if b.Before != nil && b.Before(w, r) {
		return
	}
	if user, password, _ := r.BasicAuth(); b.User != "" && (user != b.User || password != b.Password) {
		http.Error(w, "the body of a refusal", http.StatusUnauthorized)
		return
	}
	for name := range b.Wanted {
		if r.Header.Get(name) != b.Wanted.Get(name) {
			http.Error(w, "the body of a refusal", http.StatusForbidden)
			return
		}
	}
	if b.ETag != "" {
		w.Header().Set("ETag", b.ETag)
	}
	if b.Modified != "" {
		w.Header().Set("Last-Modified", b.Modified)
	}
	from, to := int64(0), size
	if !b.NoRanges {
		from, to = asked(r, size)
	}
	if from >= size {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		return
	}
	if !b.NoSize {
		w.Header().Set("Content-Length", strconv.FormatInt(to-from, 10))
	}
	if !b.NoRanges && r.Header.Get("Range") != "" {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, size))
		w.WriteHeader(http.StatusPartialContent)
	}
	s.send(w, io.NewSectionReader(content, from, to-from), b)
}

// asked is the range that a request asks for, or the whole file.
func asked(r *http.Request, size int64) (from, to int64) {
	if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n != 2 {
		return 0, size
	}
	return from, min(to+1, size)
}

func (s *Server) send(w http.ResponseWriter, content io.Reader, b Behaviour) {
	piece := make([]byte, 16<<10)
	for sent := int64(0); ; {
		n, err := content.Read(piece)
		if b.CutAfter > 0 {
			n = int(min(int64(n), b.CutAfter-sent))
		}
		if _, err := w.Write(piece[:n]); err != nil {
			return
		}
		sent += int64(n)
		s.Sent.Add(int64(n))
		if err != nil {
			return
		}
		if b.CutAfter > 0 && sent == b.CutAfter {
			_ = http.NewResponseController(w).Flush()
			s.Cuts.Add(1)
			panic(http.ErrAbortHandler)
		}
		if b.Delay > 0 {
			_ = http.NewResponseController(w).Flush()
			time.Sleep(b.Delay)
		}
	}
}
