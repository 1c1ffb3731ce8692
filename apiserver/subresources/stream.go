package subresources

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/apiserver/upload"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
)

// subprotocol is that of KubeVirt's clients: binary messages, whose boundaries mean nothing.
const subprotocol = "plain.kubevirt.io"

const (
	// streamBuffer is KubeVirt's, in bytes.
	streamBuffer = 10240
	pingInterval = 30 * time.Second
	// streamPatience is how long a client may neither answer pings nor take data. It is long
	// because a user may stop the terminal (Ctrl+S) to read.
	streamPatience = 5 * time.Minute
	portDial       = 10 * time.Second
)

// bounds are pingInterval and streamPatience; tests use shorter ones.
type bounds struct{ ping, patience time.Duration }

func (s *Server) console(w http.ResponseWriter, c *call) error {
	return s.attach(w, c, handlerapi.Console, nil)
}

func (s *Server) vnc(w http.ResponseWriter, c *call) error {
	parameters := url.Values{}
	if c.URL.Query().Get("preserveSession") == "true" {
		parameters.Set(handlerapi.PreserveSession, "true")
	}
	return s.attach(w, c, handlerapi.VNC, parameters)
}

// attach connects a client with a stream from virt-handler.
func (s *Server) attach(w http.ResponseWriter, c *call, operation string, parameters url.Values) error {
	vmi, err := s.cluster.instance(c.Context(), c.namespace, c.name)
	if err != nil {
		return err
	}
	if err := attachable(vmi, operation); err != nil {
		return err
	}
	if err := upgradable(c.Request, subprotocol); err != nil {
		return err
	}
	ctx, release, err := s.limits.consoles.Take(c.Context(), c.user, c.namespace)
	if err != nil {
		return err
	}
	defer release()
	to, err := s.target(ctx, vmi)
	if err != nil {
		return callers.GaveWay(ctx, err)
	}
	guest, err := s.Handlers.Stream(ctx, to, operation, parameters)
	if err != nil {
		return callers.GaveWay(ctx, answered(vmi, err))
	}
	s.splice(ctx, w, c, stream{Conn: guest, buffer: streamBuffer, patience: s.bounds.patience, cutWithGuest: c.Header.Get("Origin") == ""})
	return nil
}

// forward connects a client with a port of the guest, which is reached at the
// pod's address.
func (s *Server) forward(w http.ResponseWriter, c *call) error {
	port, err := strconv.ParseUint(c.parameters[0], 10, 16)
	if err != nil || port == 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("%q is not a port", c.parameters[0]))
	}
	protocol := "tcp"
	if len(c.parameters) > 1 {
		protocol = c.parameters[1]
	}
	if protocol != "tcp" && protocol != "udp" {
		return apierrors.NewBadRequest(fmt.Sprintf("protocol %q is neither tcp nor udp", protocol))
	}
	vmi, err := s.cluster.instance(c.Context(), c.namespace, c.name)
	if err != nil {
		return err
	}
	if err := operable(vmi, "portforward"); err != nil {
		return err
	}
	if paused(vmi) {
		return vmiConflict(vmi, "VMI is paused")
	}
	address, err := guestAddress(vmi)
	if err != nil {
		return err
	}
	if err := upgradable(c.Request, subprotocol); err != nil {
		return err
	}
	ctx, release, err := s.limits.forwards.Take(c.Context(), c.user, c.namespace)
	if err != nil {
		return err
	}
	defer release()
	dialing, cancel := context.WithTimeout(ctx, portDial)
	defer cancel()
	guest, err := (&net.Dialer{}).DialContext(dialing, protocol, netip.AddrPortFrom(address, uint16(port)).String())
	if err != nil {
		return callers.GaveWay(ctx, apierrors.NewInternalError(fmt.Errorf("connect to the guest: %w", err)))
	}
	to := stream{Conn: guest, buffer: streamBuffer, patience: s.bounds.patience}
	if protocol == "udp" {
		to.buffer = maxDatagram
	}
	s.splice(ctx, w, c, to)
	return nil
}

// upload takes an image from the page.
func (s *Server) upload(w http.ResponseWriter, c *call) error {
	if err := s.Uploads.Await(c.Context(), c.user, c.namespace, c.name); err != nil {
		return err
	}
	if err := upgradable(c.Request, upload.Subprotocol); err != nil {
		return err
	}
	return s.Uploads.Stream(w, c.Request, c.user, c.namespace, c.name)
}

// guestAddress returns the address of a guest's ports: that on the cluster's pod network. Other interfaces come from the guest's agent, or are
// on networks of Multus, whose addresses a tenant may choose, also if the network is in the place of the pod network: with
// their addresses, a guest or a tenant could make virt-api connect anywhere.
//
// The node's virt-handler writes the interfaces, and an intruder on the node may write any address there. So the address must be
// one of the launcher pods': virt-controller writes these as Kubernetes has them, and virt-handler may not.
func guestAddress(vmi *v1.VirtualMachineInstance) (netip.Addr, error) {
	own := vmi.Spec.Domain.Devices.Interfaces
	at := slices.IndexFunc(vmi.Status.Interfaces, func(s v1.NetworkInterfaceStatus) bool {
		network := vmi.Spec.Network(s.Name)
		return network != nil && network.Pod != nil && slices.ContainsFunc(own, func(i v1.Interface) bool { return i.Name == s.Name })
	})
	if at < 0 {
		return netip.Addr{}, vmiConflict(vmi, "VMI has no network interface on the pod network")
	}
	address, err := netip.ParseAddr(vmi.Status.Interfaces[at].IP)
	// Global unicast only: a node must not make virt-api connect to itself (loopback).
	if err != nil || !address.IsGlobalUnicast() {
		return netip.Addr{}, vmiConflict(vmi, "VMI has no address yet")
	}
	if !ofLauncherPod(vmi, address) {
		return netip.Addr{}, vmiConflict(vmi, "the address that the VMI's node reports is not that of the launcher pod")
	}
	return address, nil
}

// ofLauncherPod reports whether a launcher pod of a VMI has an address, by the pod's own status.
func ofLauncherPod(vmi *v1.VirtualMachineInstance, address netip.Addr) bool {
	return slices.ContainsFunc(vmi.Status.LauncherPods, func(pod v1.LauncherPod) bool {
		return slices.ContainsFunc(pod.IPs, func(text string) bool {
			ip, err := netip.ParseAddr(text)
			return err == nil && ip == address
		})
	})
}

// upgradable returns an error if a request cannot become a stream. It comes before anything is
// done for the request.
func upgradable(r *http.Request, protocol string) error {
	if !websocket.IsWebSocketUpgrade(r) {
		return apierrors.NewBadRequest("this is a websocket, protocol " + protocol)
	}
	return ownPage(r)
}

// stream is the guest's end of a client's connection. Each read becomes one message to the
// client, of at most buffer bytes. Each message from the client becomes one write if it fits
// the buffer: a datagram must stay whole.
type stream struct {
	net.Conn
	buffer   int
	patience time.Duration
	// cutWithGuest says that a client whose stream was cut, and did not end with the guest, loses its connection without
	// a close frame (1006), as in KubeVirt: virtctl then says that somebody else has connected, or the network failed. A
	// page connects again after 1006, and two pages would take the console from each other without end: a page, which
	// has an Origin, gets a close frame.
	cutWithGuest bool
}

// end is the guest's end of a connection that is copied both ways. It knows whether it was cut, and did not end in
// order.
type end struct {
	stream
	reading, writing sync.Mutex
	cut              atomic.Bool
	// over: nothing is read and written any more. It is set before the deadline that ends what waits.
	over atomic.Bool
	// reads is closed when the first read has begun. wasCut waits for a read that has begun, and for no other.
	reads chan struct{}
	first sync.Once
}

func (e *end) Read(p []byte) (int, error) {
	e.reading.Lock()
	defer e.reading.Unlock()
	e.first.Do(func() { close(e.reads) })
	n, err := e.stream.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		e.cut.Store(true)
	}
	return n, err
}

// Write writes to the guest's end, and fails if that does not take all of p within patience. The kernel tells of a
// reset once: if a write hears of it, a read finds the end of the stream. After an end in order, a write hears of a
// broken pipe (EPIPE) instead. No write comes before the first read: its failure would end the stream before anybody
// could hear of a reset.
func (e *end) Write(p []byte) (int, error) {
	<-e.reads
	e.writing.Lock()
	defer e.writing.Unlock()
	if err := e.SetWriteDeadline(time.Now().Add(e.patience)); err != nil {
		return 0, err
	}
	if e.over.Load() { // this deadline may have come after wasCut's
		return 0, os.ErrDeadlineExceeded
	}
	n, err := e.Conn.Write(p)
	if errors.Is(err, syscall.ECONNRESET) {
		e.cut.Store(true)
	}
	return n, err
}

// wasCut ends all reads and writes, and reports whether one of them has heard that the guest's end was cut.
func (e *end) wasCut() bool {
	e.over.Store(true)
	if e.SetDeadline(time.Unix(1, 0)) != nil {
		return e.cut.Load() // it is closed
	}
	e.reading.Lock()
	defer e.reading.Unlock()
	e.writing.Lock()
	defer e.writing.Unlock()
	return e.cut.Load()
}

// maxDatagram is UDP's largest, in bytes.
const maxDatagram = 64 << 10

// splice upgrades the connection, and copies both ways until one end ends, or
// another namespace needs the room (callers.Kind).
func (s *Server) splice(room context.Context, w http.ResponseWriter, c *call, to stream) {
	guest := &end{stream: to, reads: make(chan struct{})}
	defer guest.Close()
	upgrader := websocket.Upgrader{ReadBufferSize: streamBuffer, WriteBufferSize: streamBuffer, Subprotocols: []string{subprotocol},
		// upgradable has checked the origin.
		CheckOrigin: func(*http.Request) bool { return true }}
	client, err := upgrader.Upgrade(w, c.Request, nil)
	if err != nil {
		s.Log.V(1).Info("upgrade", "path", c.URL.Path, "reason", err.Error()) // Upgrade has answered the client
		return
	}
	log := s.Log.WithValues("subresource", c.endpoint.Subresource, "namespace", c.namespace, "name", c.name, "user", c.user.Name)
	log.Info("stream opened")
	ctx, cancel := context.WithCancel(room)
	var both sync.WaitGroup
	both.Go(func() { fromClient(guest, client); cancel() })
	both.Go(func() { toClient(client, guest); cancel() })
	ping(ctx, client, s.bounds.ping)
	goodbye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	if errors.Is(context.Cause(room), callers.ErrGaveWay) {
		goodbye = websocket.FormatCloseMessage(websocket.CloseTryAgainLater, callers.ErrGaveWay.Error())
	}
	if !guest.cutWithGuest || !guest.wasCut() {
		_ = client.WriteControl(websocket.CloseMessage, goodbye, time.Now().Add(time.Second))
	}
	client.Close()
	guest.Close()
	both.Wait()
	log.Info("stream closed", "gaveWay", errors.Is(context.Cause(room), callers.ErrGaveWay))
}

// toClient copies to the client until one end ends.
func toClient(client *websocket.Conn, guest *end) {
	buffer := make([]byte, guest.buffer)
	for {
		n, err := guest.Read(buffer)
		if n > 0 && (client.SetWriteDeadline(time.Now().Add(guest.patience)) != nil || client.WriteMessage(websocket.BinaryMessage, buffer[:n]) != nil) {
			return
		}
		if err != nil {
			return
		}
	}
}

// fromClient copies the client's binary messages until one end ends. It ignores other messages.
func fromClient(guest *end, client *websocket.Conn) {
	alive := func(string) error { return client.SetReadDeadline(time.Now().Add(guest.patience)) }
	client.SetPongHandler(alive)
	buffer := make([]byte, guest.buffer)
	for alive("") == nil {
		kind, message, err := client.NextReader()
		if err != nil {
			return
		}
		if kind != websocket.BinaryMessage {
			continue
		}
		for err == nil {
			var n int
			n, err = io.ReadFull(message, buffer)
			if n > 0 {
				if _, err := guest.Write(buffer[:n]); err != nil {
					return
				}
			}
		}
	}
}

// ping makes the client show that it is alive, until ctx ends or the client has gone.
func ping(ctx context.Context, client *websocket.Conn, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			var timeout net.Error
			err := client.WriteControl(websocket.PingMessage, nil, time.Now().Add(interval))
			if err != nil && !(errors.As(err, &timeout) && timeout.Timeout()) {
				return
			}
		}
	}
}
