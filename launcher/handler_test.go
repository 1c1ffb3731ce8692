package launcher

import (
	"net"
	"os"
	"sync"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// handler is virt-handler's end of the slot's socket.
type handler struct {
	listener    *net.UnixListener
	connections chan *connection
	wait        sync.WaitGroup
}

// connection is a launcher that has said hello.
type connection struct {
	*control.Client
	hello  control.Hello
	netns  *os.File
	states chan control.StateReport
}

func listen(t *testing.T, socket string) *handler {
	t.Helper()
	os.Remove(socket)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	h := &handler{listener: listener, connections: make(chan *connection, 100)}
	h.wait.Go(func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			h.serve(t, conn)
		}
	})
	t.Cleanup(h.close)
	return h
}

func (h *handler) serve(t *testing.T, conn *net.UnixConn) {
	c := &connection{states: make(chan control.StateReport, 100)}
	ready := make(chan struct{})
	c.Client = control.NewClient(control.NewConn(conn), control.Limits{}, func(m *control.Message) {
		<-ready
		h.event(t, c, m)
	})
	close(ready)
}

func (h *handler) event(t *testing.T, c *connection, m *control.Message) {
	if m.Event == control.EventHello && c.netns == nil && len(m.Files) == 1 {
		c.netns = m.Files[0].File
		if err := control.Decode(m.Data, &c.hello); err != nil {
			t.Errorf("hello %s: %v", m.Data, err)
		}
		h.connections <- c
		return
	}
	var report control.StateReport
	if err := control.Decode(m.Data, &report); m.Event != control.EventState || len(m.Files) != 0 || err != nil || c.netns == nil {
		t.Errorf("unexpected event %s with %d files: %s (%v)", m.Event, len(m.Files), m.Data, err)
	}
	m.Close()
	c.states <- report
}

// hello waits for the next connection and its hello.
func (h *handler) hello(t *testing.T) *connection {
	t.Helper()
	c := receive(t, h.connections, "a launcher's hello")
	t.Cleanup(func() { c.Close(); c.netns.Close() })
	return c
}

// close stops listening; connections live on.
func (h *handler) close() {
	h.listener.Close()
	h.wait.Wait()
}
