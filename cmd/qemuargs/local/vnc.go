package local

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// nothing is what there is to close where nobody listens.
type nothing struct{}

func (nothing) Close() error { return nil }

// ParseVNC reads an address for VNC clients: [ADDRESS:]PORT. A VNC server has no password, so it
// listens on 127.0.0.1 unless another address is named. The empty text and UnixVNC stay.
func ParseVNC(text string) (string, error) {
	if text == "" || text == UnixVNC {
		return text, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = "", text
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("vnc %q: want [ADDRESS:]PORT", text)
	}
	return net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port), nil
}

// serveVNC shows where QEMU's VNC server is, and listens for it on an address if the user wants
// that.
func (v *vm) serveVNC() (io.Closer, error) {
	socket := v.folder.below(layout.VNCSocket)
	switch v.VNC {
	case "":
		return nothing{}, nil
	case UnixVNC:
		v.notes.say("VNC: the unix socket %s", socket)
		return nothing{}, nil
	}
	listener, err := net.Listen("tcp", v.VNC)
	if err != nil {
		return nil, fmt.Errorf("listen for VNC clients: %w", err)
	}
	v.notes.say("VNC: %s", listener.Addr())
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go relay(client, socket)
		}
	}()
	return listener, nil
}

// relay connects a client with a socket until one of them ends.
func relay(client net.Conn, socket string) {
	defer client.Close()
	server, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer client.Close()
		_, _ = io.Copy(client, server)
	}()
	_, _ = io.Copy(server, client)
}
