// Package nbd serves bytes to one program on the same machine, by the protocol of network block
// devices, for reading only. It has what qemu-img wants of a server and nothing else: the newstyle
// handshake without TLS, simple replies, READ and DISC.
//
// The protocol: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
package nbd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

const (
	// maxRead is how many bytes a client may read at once. It is told so. qemu-img reads that many bytes at once;
	// with a smaller limit it would split a read, and read the halves in another order.
	maxRead = 2 << 20
	// maxConnections are served at the same time, and others wait. Each takes maxRead bytes.
	maxConnections = 2
	// maxOptions are how many options a client may send, and maxOption how long one may be.
	maxOptions = 32
	maxOption  = 4 << 10
)

// Server serves a source.
type Server struct {
	source io.ReaderAt
	size   int64
	told   func(served int64)
	served atomic.Int64

	mu  sync.Mutex
	err error
}

// New makes a server of the first size bytes of a source. told is called with how many bytes were read by
// clients, whenever there are more.
func New(source io.ReaderAt, size int64, told func(served int64)) *Server {
	return &Server{source: source, size: size, told: told}
}

// Served is how many bytes were read by clients.
func (s *Server) Served() int64 { return s.served.Load() }

// Err is the first error of the source. A client learns only that there was an error, not which one.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *Server) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

// Serve answers connections until ctx ends, and closes the listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	var connections sync.WaitGroup
	defer connections.Wait()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	room := make(chan struct{}, maxConnections)
	for {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept a connection: %w", err)
		}
		connections.Go(func() {
			defer func() { <-room }()
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			// A client that breaks the protocol is cut off. It is qemu-img, which says then what failed.
			_ = s.talk(conn)
		})
	}
}

// errEnd: the client ends the connection.
var errEnd = errors.New("the client ends")

// talk serves one connection.
func (s *Server) talk(conn io.ReadWriter) error {
	if err := s.negotiate(conn); err != nil {
		return err
	}
	buffer := make([]byte, replyHeader+maxRead)
	for {
		if err := s.answer(conn, buffer); err != nil {
			return err
		}
	}
}

const (
	requestMagic = 0x25609513
	replyMagic   = 0x67446698
	replyHeader  = 16

	commandRead       = 0
	commandDisconnect = 2

	codeIO      = 5
	codeInvalid = 22
)

// request is what a client sends in the transmission phase.
type request struct {
	Magic  uint32
	Flags  uint16
	Type   uint16
	Cookie uint64
	Offset uint64
	Length uint32
}

// answer reads a request and answers it.
func (s *Server) answer(conn io.ReadWriter, buffer []byte) error {
	var r request
	if err := binary.Read(conn, binary.BigEndian, &r); err != nil {
		return fmt.Errorf("read a request: %w", err)
	}
	switch {
	case r.Magic != requestMagic:
		return errors.New("read a request: it is none")
	case r.Type == commandDisconnect:
		return errEnd
	case r.Type == 1: // WRITE: the bytes that follow would be taken for requests
		return errors.New("read a request: the client writes")
	}
	code, length := uint32(codeInvalid), uint32(0)
	if r.Type == commandRead && r.Flags == 0 && s.inside(r.Offset, r.Length) {
		code = 0
		length = r.Length
		if _, err := s.source.ReadAt(buffer[replyHeader:replyHeader+length], int64(r.Offset)); err != nil {
			s.failed(err)
			code, length = codeIO, 0
		}
	}
	binary.BigEndian.PutUint32(buffer, replyMagic)
	binary.BigEndian.PutUint32(buffer[4:], code)
	binary.BigEndian.PutUint64(buffer[8:], r.Cookie)
	if _, err := conn.Write(buffer[:replyHeader+length]); err != nil {
		return fmt.Errorf("write a reply: %w", err)
	}
	s.told(s.served.Add(int64(length)))
	return nil
}

// inside says whether a range may be read.
func (s *Server) inside(offset uint64, length uint32) bool {
	return length > 0 && length <= maxRead && offset <= uint64(s.size) && uint64(length) <= uint64(s.size)-offset
}
