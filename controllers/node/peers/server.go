package peers

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/batch"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/intake"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Target receives guests.
type Target interface {
	// Expects says whether a guest is to come from a node now.
	Expects(ctx context.Context, node string) bool
	// Prepare has a launcher wait for a guest that a node offers.
	Prepare(ctx context.Context, node string, migration types.UID, offer *Offer) (*Answer, error)
	// State returns the launcher's end of the channel for the guest's memory and devices.
	State(ctx context.Context, node string, migration types.UID) (net.Conn, error)
	// Disk returns the launcher's end of a channel to a disk.
	Disk(ctx context.Context, node string, migration types.UID, disk string) (net.Conn, error)
	// Receive has the launcher receive the guest over the channels.
	Receive(ctx context.Context, node string, migration types.UID) error
}

// ErrUnexpected is the error of a request that no migration permits. Its peer learns nothing else.
var ErrUnexpected = errors.New("no such guest is to come from this node")

// ErrNotYet is the error of an offer that is to be made again soon.
var ErrNotYet = errors.New("the target's launcher is not connected to virt-handler yet")

// Server is the target's side.
type Server struct {
	Target Target
	// Certificate returns virt-handler's server certificate.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Roots returns the CAs of virt-handlers.
	Roots   func(context.Context) (*x509.CertPool, error)
	Clock   clock.PassiveClock
	Address string
	Log     logr.Logger

	// goneAfter is handlerapi.GoneAfter, except in tests.
	goneAfter time.Duration
}

const (
	maxHead = 8 << 10
	// strangers bounds the connections that have not yet proven to be of a virt-handler from which a guest comes.
	strangers = 64
	// bodies bounds the offers that are read at a time, in bytes.
	bodies = 2 << 20
)

// Start serves until ctx ends. It is a manager.Runnable.
func (s *Server) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{KeepAliveConfig: handlerapi.KeepAlive()}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("listen for other virt-handlers: %w", err)
	}
	return s.serve(ctx, listener)
}

func (s *Server) serve(ctx context.Context, listener net.Listener) error {
	server := intake.Server(s.limited(s.handler()), s.Log)
	server.SetKeepAlivesEnabled(false) // so that a connection is a request, and limited bounds them
	server.MaxHeaderBytes, server.BaseContext = maxHead, func(net.Listener) context.Context { return ctx }
	defer context.AfterFunc(ctx, func() { server.Close() })()
	config := handlerapi.ConfigFor(s.Certificate, s.Clock.Now, func(state tls.ConnectionState) error {
		_, err := s.peer(ctx, state)
		return err
	})
	known := intake.Known(config, func(tls.ConnectionState) bool { return true })
	if err := server.Serve(tls.NewListener(intake.Listen(batch.Listener{Listener: listener}, strangers), known)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve other virt-handlers: %w", err)
	}
	return nil
}

// maxRequests bounds the requests of one node that are answered at a time. A guest has one channel for each disk, and
// one.
const maxRequests = 128

var errBusy = errors.New("this node asks too much at once")

// limited bounds how much one node asks at a time: it may have been taken.
func (s *Server) limited(next http.Handler) http.Handler {
	places := &intake.Budget{Size: 8 * maxRequests, Share: maxRequests}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		node, _ := source(r)
		hold, err := places.Take(r.Context(), node, 1, nil)
		if err != nil {
			fail(w, errBusy)
			return
		}
		defer hold.Release()
		next.ServeHTTP(w, r)
	})
}

// peer returns the node of a peer from which a guest is to come.
func (s *Server) peer(ctx context.Context, state tls.ConnectionState) (string, error) {
	// The name first: a peer that nobody expects costs no question to the API server.
	if len(state.PeerCertificates) == 0 || !s.Target.Expects(ctx, state.PeerCertificates[0].Subject.CommonName) {
		return "", ErrUnexpected
	}
	roots, err := s.Roots(ctx)
	if err != nil {
		return "", err
	}
	return authority.Peer(state, authority.HandlerClient, roots, s.Clock.Now())
}

func (s *Server) handler() http.Handler {
	read := intake.NewBodies(bodies)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/migrations/{migration}/prepare", func(w http.ResponseWriter, r *http.Request) { s.prepare(w, r, read) })
	mux.HandleFunc("POST /v1/migrations/{migration}/receive", func(w http.ResponseWriter, r *http.Request) {
		node, migration := source(r)
		if err := s.Target.Receive(r.Context(), node, migration); err != nil {
			fail(w, err)
		}
	})
	mux.HandleFunc("GET /v1/migrations/{migration}/state", func(w http.ResponseWriter, r *http.Request) {
		s.channel(w, r, s.Target.State)
	})
	mux.HandleFunc("GET /v1/migrations/{migration}/disks/{disk}", func(w http.ResponseWriter, r *http.Request) {
		s.channel(w, r, func(ctx context.Context, node string, migration types.UID) (net.Conn, error) {
			return s.Target.Disk(ctx, node, migration, r.PathValue("disk"))
		})
	})
	return mux
}

// source returns the node of a request's peer, and the migration that the request names. The handshake has checked
// the certificate.
func source(r *http.Request) (node string, migration types.UID) {
	return r.TLS.PeerCertificates[0].Subject.CommonName, types.UID(r.PathValue("migration"))
}

func (s *Server) prepare(w http.ResponseWriter, r *http.Request, read *intake.Bodies) {
	node, migration := source(r)
	text, release, err := read.Read(w, r, node, maxOffer)
	if err != nil {
		fail(w, err)
		return
	}
	offer, err := readOffer(text)
	release()
	var answer *Answer
	if err == nil {
		answer, err = s.Target.Prepare(r.Context(), node, migration, offer)
	}
	if err == nil {
		text, err = json.Marshal(answer)
	}
	if err != nil {
		s.Log.Info("refuse a guest", "node", node, "migration", migration, "reason", control.Printable(err.Error(), handlerapi.MaxText))
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // a peer that is gone makes its offer again
}

// channel connects the peer with a socket of the launcher.
func (s *Server) channel(w http.ResponseWriter, r *http.Request, open func(context.Context, string, types.UID) (net.Conn, error)) {
	if r.Header.Get("Upgrade") != handlerapi.Protocol {
		http.Error(w, "a channel needs Upgrade: "+handlerapi.Protocol, http.StatusBadRequest)
		return
	}
	node, migration := source(r)
	launcher, err := open(r.Context(), node, migration)
	if err != nil {
		fail(w, err)
		return
	}
	defer launcher.Close()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		fail(w, err)
		return
	}
	defer conn.Close()
	fmt.Fprintf(buffered, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", handlerapi.Protocol)
	if errors.Join(buffered.Flush(), conn.SetDeadline(time.Time{})) != nil {
		return
	}
	defer handlerapi.EndWhenGone(conn, cmp.Or(s.goneAfter, handlerapi.GoneAfter))()
	Relay(r.Context(), &rest{conn, buffered.Reader}, launcher, nil) // the source's virt-handler keeps the pace
}

// fail answers with an error. A launcher's text in it is made printable, and cut to handlerapi.MaxText.
func fail(w http.ResponseWriter, err error) {
	code := http.StatusConflict
	switch {
	case errors.Is(err, ErrUnexpected):
		code, err = http.StatusForbidden, ErrUnexpected
	case errors.Is(err, errBadOffer):
		code = http.StatusBadRequest
	case errors.Is(err, ErrNotYet), errors.Is(err, errBusy):
		code = http.StatusServiceUnavailable
	}
	http.Error(w, control.Printable(err.Error(), handlerapi.MaxText), code)
}

// rest is a connection of which a reader has read some bytes already.
type rest struct {
	net.Conn
	reader interface{ Read([]byte) (int, error) }
}

// NetConn returns the connection itself.
func (r *rest) NetConn() net.Conn { return r.Conn }

func (r *rest) Read(p []byte) (int, error) { return r.reader.Read(p) }
