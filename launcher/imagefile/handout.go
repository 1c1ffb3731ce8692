package imagefile

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A container disk is the file of another image. Where pods have no image volumes, a container of that image opens the
// file, and hands its descriptor to whoever connects to its socket: the launcher's container. The descriptor outlives
// the container. So QEMU goes on when the container is restarted.

const (
	// HandPatience bounds the write and the read of one answer: neither end waits for the other's program.
	HandPatience = 5 * time.Second
	// MaxAnswer is how long an answer may be, in bytes.
	MaxAnswer = 512
)

// Kind is the first byte of an answer. After it comes the text that says why there is no file.
type Kind byte

const (
	// Found: the file comes beside the answer.
	Found Kind = 'f'
	// Never: the image has no such file.
	Never Kind = 'n'
	// Again: the error is not one of the image, and the next connection may get the file.
	Again Kind = 'a'
)

// Server hands out a file at a socket.
type Server struct{ listener int }

// Listen returns a server that listens at a path. It removes the socket that an earlier process of the container has
// left there.
func Listen(path string) (*Server, error) {
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, failed("make room for the socket", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, failed("make a socket", err)
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	if err != nil {
		unix.Close(fd)
		return nil, failed("listen at "+path, err)
	}
	return &Server{listener: fd}, nil
}

// HandOut answers each connection with a file that open has opened for it, or with open's error, until Close. Each
// connection gets an open file of its own: the flags of one, such as O_DIRECT, are not the other's.
func (s *Server) HandOut(open func() (File, error)) error {
	defer unix.Close(s.listener)
	for {
		conn, _, err := unix.Accept4(s.listener, unix.SOCK_CLOEXEC)
		switch {
		case err == nil:
			// An answer fails only if the client is gone or reads nothing. The next client does not care.
			_ = hand(conn, open, HandPatience)
		case errors.Is(err, unix.EINVAL): // Close
			return nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
		default:
			return failed("take a connection", err)
		}
	}
}

// Close ends HandOut, after the answer that it writes. Nobody can connect any more.
func (s *Server) Close() { _ = unix.Shutdown(s.listener, unix.SHUT_RDWR) }

// hand answers a connection, and ends it. The write waits no longer than patience.
func hand(conn int, open func() (File, error), patience time.Duration) error {
	defer unix.Close(conn)
	wait := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(conn, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait); err != nil {
		return err
	}
	f, err := open()
	if err != nil {
		return unix.Sendmsg(conn, refusal(err), nil, nil, unix.MSG_NOSIGNAL)
	}
	defer f.Close()
	return unix.Sendmsg(conn, []byte{byte(Found)}, unix.UnixRights(int(f)), nil, unix.MSG_NOSIGNAL)
}

// refusal returns the answer that says why there is no file.
func refusal(err error) []byte {
	kind, text := Never, err.Error()
	if Scarce(err) {
		kind = Again
	}
	return append([]byte{byte(kind)}, text[:min(len(text), MaxAnswer-1)]...)
}

// Scarce reports whether the kernel had no room for what was asked, or was interrupted: the same may work later.
func Scarce(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, unix.EINTR},
		func(of error) bool { return errors.Is(err, of) })
}
