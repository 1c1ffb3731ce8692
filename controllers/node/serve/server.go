// Package serve answers virt-api: it carries out the users' requests for VMIs of the node.
package serve

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/intake"
	"github.com/kubeqemu/kubeqemu/internal/layers"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Server carries out virt-api's requests for this node's VMIs (package handlerapi). It looks
// at no byte of a stream, but copies between virt-api and a socket that the launcher hands
// out.
type Server struct {
	Client client.Reader
	// Launcher returns the launcher of a VMI, or nil while the VMI has no launcher that
	// may be asked.
	Launcher    func(*v1.VirtualMachineInstance) *sessions.Session
	Clock       clock.PassiveClock
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Address     string
	Log         logr.Logger

	// patience is streamPatience, except in tests.
	patience time.Duration
	// goneAfter is handlerapi.GoneAfter, except in tests.
	goneAfter time.Duration

	limits *vmiLimits // of all of serve's requests
	limit  sync.Once

	mu      sync.Mutex
	streams map[string]*held // by operation and VMI
	ended   bool
}

const (
	serverMaxHeader = 8 << 10
	// serverStrangers bounds the connections that have not yet proven to be virt-api's.
	serverStrangers = 64
	// streamPatience is how long virt-api may take no byte of a stream. virt-api itself gives
	// up after five minutes.
	streamPatience = 6 * time.Minute
)

// Start serves until ctx ends. It is a manager.Runnable.
func (s *Server) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{KeepAliveConfig: handlerapi.KeepAlive()}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("listen for virt-api: %w", err)
	}
	return s.serve(ctx, listener)
}

func (s *Server) serve(ctx context.Context, listener net.Listener) error {
	s.limit.Do(func() { s.limits = newVMILimits() })
	server := intake.Server(s.handler(), s.Log)
	server.MaxHeaderBytes, server.BaseContext = serverMaxHeader, func(net.Listener) context.Context { return ctx }
	stop := context.AfterFunc(ctx, func() {
		server.Close()
		s.endStreams()
	})
	defer stop()
	config := handlerapi.ServerConfig(s.Certificate, func() (*x509.CertPool, error) { return s.roots(ctx) }, s.Clock.Now)
	// Only virt-api gets through the handshake.
	known := intake.Known(config, func(tls.ConnectionState) bool { return true })
	if err := server.Serve(tls.NewListener(intake.Listen(listener, serverStrangers), known)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve virt-api: %w", err)
	}
	return nil
}

// roots returns the CAs that certify virt-api. They are read from the cache at every handshake.
func (s *Server) roots(ctx context.Context) (*x509.CertPool, error) {
	published := &corev1.ConfigMap{}
	if err := s.Client.Get(ctx, types.NamespacedName{Namespace: v1.KubeVirtNamespace, Name: authority.APICA}, published); err != nil {
		return nil, fmt.Errorf("read virt-api's CA: %w", err)
	}
	return authority.Pool(published.Data[authority.BundleEntry])
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT "+handlerapi.Pattern, s.limited(s.operate))
	mux.HandleFunc("GET "+handlerapi.Pattern, s.get)
	return mux
}

// fail answers with an error. A launcher's text in it is made printable, and cut to
// handlerapi.MaxText.
func fail(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	var remote *control.RemoteError
	var lacking sessions.LackingError
	switch {
	case errors.Is(err, control.ErrBusy):
		code = http.StatusTooManyRequests
	case errors.As(err, &lacking):
		code = http.StatusConflict
	case errors.As(err, &remote):
		code, err = http.StatusConflict, remote
	case errors.Is(err, errNoStream):
		code = http.StatusNotFound
	case errors.Is(err, errNoLauncher), errors.Is(err, errPreserved), errors.Is(err, errEnded), errors.Is(err, control.ErrClosed), errors.Is(err, context.DeadlineExceeded):
		code = http.StatusServiceUnavailable
	case errors.Is(err, errNoVMI):
		code = http.StatusNotFound
	case errors.Is(err, errBadRequest):
		code = http.StatusBadRequest
	case errors.Is(err, errTooMany):
		code = http.StatusTooManyRequests
	}
	http.Error(w, control.Printable(err.Error(), handlerapi.MaxText), code)
}

var (
	errNoVMI      = errors.New("there is no such VirtualMachineInstance on this node")
	errNoLauncher = errors.New("virt-launcher is not connected to virt-handler")
	errBadRequest = errors.New("bad request")
	errNoStream   = errors.New("there is no such stream")
	errPreserved  = errors.New("there is a session already, which is to be preserved")
	errEnded      = errors.New("virt-handler is ending")
	errTooMany    = errors.New("virt-handler is asked too much at once")
)

// find returns the launcher of the VMI that a request names.
func (s *Server) find(r *http.Request) (*sessions.Session, error) {
	object := &v1.VirtualMachineInstance{}
	err := s.Client.Get(r.Context(), types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}, object)
	switch {
	case apierrors.IsNotFound(err):
		return nil, errNoVMI
	case err != nil:
		return nil, err
	case string(object.UID) != r.URL.Query().Get(handlerapi.UID):
		return nil, errNoVMI
	}
	if launcher := s.Launcher(object); launcher != nil {
		return launcher, nil
	}
	return nil, errNoLauncher
}

func (s *Server) operate(w http.ResponseWriter, r *http.Request) {
	launcher, err := s.find(r)
	if err != nil {
		fail(w, err)
		return
	}
	operation := r.PathValue("operation")
	switch operation {
	case handlerapi.Pause:
		err = launcher.Call(r.Context(), control.CommandPause, nil, nil)
	case handlerapi.Unpause:
		err = launcher.Call(r.Context(), control.CommandUnpause, nil, nil)
	case handlerapi.Reset:
		err = launcher.Call(r.Context(), control.CommandReset, nil, nil)
	case handlerapi.Unfreeze:
		err = launcher.Call(r.Context(), control.CommandUnfreeze, nil, nil)
	case handlerapi.SoftReboot:
		err = launcher.Call(r.Context(), control.CommandSoftReboot, nil, nil)
	case handlerapi.Grace, handlerapi.Freeze:
		seconds, parseErr := strconv.ParseInt(r.URL.Query().Get(handlerapi.Seconds), 10, 64)
		if parseErr != nil || seconds < 0 {
			fail(w, fmt.Errorf("%w: no seconds", errBadRequest))
			return
		}
		if operation == handlerapi.Freeze {
			err = launcher.Call(r.Context(), control.CommandFreeze, control.FreezeRequest{TimeoutSeconds: seconds}, nil)
		} else {
			err = launcher.Call(r.Context(), control.CommandGrace, control.GraceRequest{Seconds: seconds}, nil)
		}
	default:
		http.NotFound(w, r)
		return
	}
	if err != nil {
		fail(w, err)
		return
	}
	s.Log.Info("did what virt-api asked", "operation", operation, "pod", launcher.Pod.String())
}

// get answers with a stream to a request for an upgrade, and else with a document.
func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "" {
		s.stream(w, r)
		return
	}
	s.limited(s.query)(w, r)
}

// stream connects virt-api with a socket that the launcher hands out.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	key, guest, err := s.open(r)
	if err != nil {
		fail(w, err)
		return
	}
	defer guest.Close()
	release, err := s.limits.stream(r, guest)
	if err != nil {
		fail(w, err)
		return
	}
	defer release()
	s.splice(w, key, &held{Conn: guest}, preserves(r))
}

// preserves reports whether a stream may not end the one before.
func preserves(r *http.Request) bool { return r.URL.Query().Get(handlerapi.PreserveSession) == "true" }

// held is the guest's end of a stream.
type held struct {
	net.Conn
	// takers counts for what other reason than its guest's end the stream ends: somebody else opens one, or virt-handler
	// ends.
	takers atomic.Int32
}

// take ends a stream whose guest goes on.
func (h *held) take() {
	h.takers.Add(1)
	h.Close()
}

// end closes the connection with virt-api. If the guest goes on, end resets the connection: by that virt-api knows
// that the stream was cut, and lets its client know. Go's TLS takes an end without the farewell of TLS for an end in
// order.
func (h *held) end(peer net.Conn) {
	if h.takers.Load() > 0 {
		if raw, ok := layers.Find[*net.TCPConn](peer); ok {
			_ = raw.SetLinger(0) // it fails only on a connection that is closed already
			raw.Close()
		}
	}
	peer.Close()
}

// open lets the launcher hand out a socket. There is at most one stream of each key.
func (s *Server) open(r *http.Request) (key string, guest net.Conn, err error) {
	r, release, err := s.limits.call(r)
	if err != nil {
		return "", nil, err
	}
	defer release()
	launcher, err := s.find(r)
	if err != nil {
		return "", nil, err
	}
	command := map[string]string{handlerapi.Console: control.CommandConsole, handlerapi.VNC: control.CommandVNC,
		handlerapi.Screenshot: control.CommandScreenshot}[r.PathValue("operation")]
	if command == "" || r.Header.Get("Upgrade") != handlerapi.Protocol {
		return "", nil, errNoStream
	}
	key = command + " " + r.URL.Query().Get(handlerapi.UID)
	if command == control.CommandScreenshot {
		key += " " + r.RemoteAddr // a screenshot ends no other stream
	}
	if preserves(r) && s.busy(key) {
		return "", nil, errPreserved
	}
	if r.URL.Query().Get(handlerapi.MoveCursor) == "true" {
		if err := launcher.Call(r.Context(), control.CommandMovePointer, nil, nil); err != nil {
			return "", nil, err
		}
	}
	// The launcher ends the stream before as soon as it has made this one.
	old := s.before(key)
	old.takers.Add(1)
	stream, err := launcher.Stream(r.Context(), command, nil)
	if err != nil {
		old.takers.Add(-1)
		return "", nil, err
	}
	return key, stream, nil
}

// before returns the stream that a new one of its key takes the place of, or one of nobody.
func (s *Server) before(key string) *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.streams[key]; old != nil {
		return old
	}
	return &held{}
}

func (s *Server) splice(w http.ResponseWriter, key string, guest *held, preserve bool) {
	// A new session ends the one before, as in KubeVirt.
	if err := s.keep(key, guest, preserve); err != nil {
		fail(w, err)
		return
	}
	defer s.forget(key, guest)
	peer, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		fail(w, err)
		return
	}
	defer peer.Close()
	fmt.Fprintf(buffered, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", handlerapi.Protocol)
	if err := errors.Join(buffered.Flush(), peer.SetDeadline(time.Time{})); err != nil {
		return
	}
	defer handlerapi.EndWhenGone(peer, cmp.Or(s.goneAfter, handlerapi.GoneAfter))()
	both := make(chan struct{})
	go func() {
		defer close(both)
		io.Copy(guest, buffered.Reader) // first the bytes read beyond the request's head
		guest.Close()
		guest.end(peer)
	}()
	io.Copy(patient{peer, cmp.Or(s.patience, streamPatience)}, guest)
	guest.Close()
	guest.end(peer)
	<-both
}

// patient is a connection whose writes fail if the peer takes nothing for long. Keep-alive
// does not find such a peer: the kernel sends no probe while data waits for an
// acknowledgement.
type patient struct {
	net.Conn
	patience time.Duration
}

func (p patient) Write(b []byte) (int, error) {
	if err := p.SetWriteDeadline(time.Now().Add(p.patience)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}

func (s *Server) busy(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[key] != nil
}

// keep makes a stream the only one of its key. It returns an error once the server ends, and if there is a stream
// that is to be preserved.
func (s *Server) keep(key string, guest *held, preserve bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errEnded
	}
	if old := s.streams[key]; old != nil {
		if preserve {
			return errPreserved
		}
		old.take()
	}
	if s.streams == nil {
		s.streams = map[string]*held{}
	}
	s.streams[key] = guest
	return nil
}

func (s *Server) forget(key string, guest *held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[key] == guest {
		delete(s.streams, key)
	}
}

func (s *Server) endStreams() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, guest := range s.streams {
		guest.take()
	}
}
