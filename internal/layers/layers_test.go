package layers

import (
	"crypto/tls"
	"net"
	"slices"
	"testing"
)

// wrapped is a connection that wraps another one.
type wrapped struct{ net.Conn }

func (w wrapped) NetConn() net.Conn { return w.Conn }

func TestLayersOfAConnection(t *testing.T) {
	innermost, other := net.Pipe()
	defer innermost.Close()
	defer other.Close()
	middle := wrapped{innermost}
	outermost := tls.Client(middle, nil)
	if got := slices.Collect(Of(outermost)); !slices.Equal(got, []net.Conn{outermost, middle, innermost}) {
		t.Errorf("the layers are %v", got)
	}
	if got, ok := Find[wrapped](outermost); !ok || got != middle {
		t.Errorf("found %v, %t", got, ok)
	}
	if got, ok := Find[*net.TCPConn](outermost); ok {
		t.Errorf("found %v", got)
	}
	for c := range Of(wrapped{}) {
		if c == nil {
			t.Error("a connection that is none is a layer")
		}
	}
}
