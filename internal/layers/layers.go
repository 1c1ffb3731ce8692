// Package layers looks beneath a connection that wraps another one, such as TLS over TCP.
package layers

import (
	"iter"
	"net"
)

// Of returns a connection and all that are beneath it, from the outermost to the innermost. A connection that wraps another one has the method NetConn, as
// tls.Conn has.
func Of(conn net.Conn) iter.Seq[net.Conn] {
	return func(yield func(net.Conn) bool) {
		for conn != nil && yield(conn) {
			outer, ok := conn.(interface{ NetConn() net.Conn })
			if !ok {
				return
			}
			conn = outer.NetConn()
		}
	}
}

// Find returns the outermost connection of a type, or false if there is none.
func Find[C net.Conn](conn net.Conn) (found C, ok bool) {
	for c := range Of(conn) {
		if found, ok = c.(C); ok {
			return found, true
		}
	}
	return found, false
}
