// Package serve serves the disk on a claim to another pod, which copies it. The bytes are served as they
// are, whatever they look like. Only the peer gets an answer: see package peer.
package serve

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/importer/peer"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

const (
	// maxStrangers is how many connections there are that have sent no request yet. When there are more,
	// the address with most of them loses its oldest, so nobody can keep the peer out by waiting.
	maxStrangers = 8
	// maxPeers is how many connections the peer has. When there are more, its oldest ends: it may be one
	// that the peer no longer knows of.
	maxPeers = 8
	// stopTimeout bounds the wait for answers when the server ends.
	stopTimeout = time.Second
	// alone is how long a device is served while virt-controller does not ask for the identity.
	alone = 30 * time.Second
)

// errAlone ends a process that serves a device. While virt-controller is away, nobody looks for pods that write to the
// device, and a device does not tell when it was written to. The next process's device counts as another one, so the
// copy begins anew.
var errAlone = errors.New("virt-controller has not asked for 30 s, so nobody knows whether the device was written to meanwhile")

// Config is what a Server is made with.
type Config struct {
	// Path is the disk's file, or its device if Block is set.
	Path  string
	Block bool
	Pair  *peer.Pair
	Log   *slog.Logger
}

// Server serves one disk.
type Server struct {
	Config
	disk  *disk
	began time.Time
	// reached is how far the disk was served.
	reached     atomic.Int64
	connections connections
	// alone is the constant, or shorter in a test.
	alone time.Duration
}

// New opens the disk; began is the time at which the process started. It must be closed.
func New(c Config, began time.Time) (*Server, error) {
	d, err := openDisk(c.Path, c.Block)
	if err != nil {
		return nil, err
	}
	return &Server{Config: c, disk: d, began: began, connections: connections{most: maxPeers}, alone: alone}, nil
}

// Close closes the disk.
func (s *Server) Close() error { return s.disk.file.Close() }

// Run serves the peer until ctx ends, and closes the listener.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	server := s.server()
	ended := make(chan error, 1)
	go func() {
		ended <- server.Serve(tls.NewListener(tlsAlone{intake.Listen(listener, maxStrangers)}, s.config()))
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("serve the peer: %w", err)
	case <-s.left(ctx):
		server.Close()
		<-ended
		return errAlone
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := server.Shutdown(stop); err != nil {
		server.Close() // the peer asks the next process for the rest
	}
	<-ended
	return nil
}

// left is closed when virt-controller has left a device alone for too long. It is never closed for a file, whose ETag
// tells when it was written to.
func (s *Server) left(ctx context.Context) <-chan struct{} {
	left := make(chan struct{})
	if !s.Block {
		return left
	}
	go func() {
		tick := time.NewTicker(s.alone / 10)
		defer tick.Stop()
		for last := time.Now(); time.Since(last) < s.alone; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if asked := s.Pair.Asked(); asked.After(last) {
				last = asked
			}
		}
		close(left)
	}()
	return left
}

// config returns a TLS configuration that refuses handshakes until a peer has been named, and marks that peer as
// known.
func (s *Server) config() *tls.Config {
	config := intake.Known(s.Pair.ServerConfig(), func(tls.ConnectionState) bool { return true })
	known := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if s.Pair.Current() == nil {
			return nil, errors.New("no peer was told yet")
		}
		return known(hello)
	}
	return config
}

// server makes the server of the peer.
func (s *Server) server() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+importer.PeerDiskPath, s.serveDisk) // HEAD too
	mux.HandleFunc("GET "+importer.PeerDataPath, s.serveData)
	server := intake.Server(s.peerAlone(mux), logr.FromSlogHandler(s.Log.Handler()))
	states := server.ConnState
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		states(conn, state)
		switch state {
		case http.StateActive: // a request has come, so the peer has its key
			s.connections.add(conn)
		case http.StateClosed:
			s.connections.remove(conn)
		}
	}
	return server
}

// peerAlone answers the peer that was told last. It ends an answer when another peer takes the place.
func (s *Server) peerAlone(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		other := s.Pair.Current()
		if !other.Is(r.TLS) {
			panic(http.ErrAbortHandler) // without an answer
		}
		client := http.NewResponseController(w)
		defer context.AfterFunc(other.Replaced(), func() { _ = client.SetWriteDeadline(time.Unix(1, 0)) })()
		handler.ServeHTTP(w, r)
	})
}

// serveDisk answers with the disk, or a range of it.
func (s *Server) serveDisk(w http.ResponseWriter, r *http.Request) {
	now, err := s.disk.version()
	if err != nil {
		s.Log.Error("serve the claim's disk", "error", err)
		http.Error(w, "the disk cannot be read", http.StatusInternalServerError)
		return
	}
	if strings.Contains(r.Header.Get("Range"), ",") || len(r.Header.Values("Range")) > 1 {
		http.Error(w, "one range can be asked for at a time", http.StatusBadRequest)
		return
	}
	w.Header().Set("ETag", now.tag)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, &content{disk: s.disk, version: now, read: s.reach})
}

// serveData answers with the next part of the disk that may have data.
func (s *Server) serveData(w http.ResponseWriter, r *http.Request) {
	from, err := strconv.ParseInt(r.URL.Query().Get("from"), 10, 64)
	if err != nil || from < 0 {
		http.Error(w, "from is no offset", http.StatusBadRequest)
		return
	}
	extent, of, err := s.disk.next(from)
	if err != nil {
		s.Log.Error("serve the claim's disk", "error", err)
		http.Error(w, "the disk cannot be read, or it changes", http.StatusInternalServerError)
		return
	}
	s.reach(extent.Offset)
	w.Header().Set("ETag", of.tag)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(extent)
}

// reach notes how far the disk was served.
func (s *Server) reach(upTo int64) {
	for {
		before := s.reached.Load()
		if upTo <= before || s.reached.CompareAndSwap(before, upTo) {
			return
		}
	}
}

// Progress is how far the disk was served. It does not fall if the peer begins anew.
func (s *Server) Progress() importer.Progress {
	now, err := s.disk.version()
	if err != nil {
		return importer.Progress{Since: s.began}
	}
	return importer.Progress{Done: min(s.reached.Load(), now.bytes), Total: now.bytes, Since: s.began}
}

// ServeHTTP answers with the progress.
func (s *Server) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.Progress())
}
