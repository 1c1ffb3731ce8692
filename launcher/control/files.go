package control

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of the files of one message.
const (
	// MaxFiles is the kernel's own bound (SCM_MAX_FD in net/scm.h). For a receiver with room
	// for that many, the kernel never has to close files that did not fit.
	MaxFiles    = 253
	maxFileName = 255
)

// Names of the files that go with messages. Those of a start request come from
// qemuargs.Inherited, DHCPFile, RouterFile and DHCP6File.
const (
	FileNetNS      = "netns"
	FileConsole    = "console"
	FileVNC        = "vnc"
	FileScreenshot = "screenshot"
)

// DHCPFile returns the name of the socket on which a NIC's lease is served.
func DHCPFile(nic string) string { return "dhcp/" + nic }

// RouterFile and DHCP6File are the names of the sockets of an IPv6Server.
func RouterFile(nic string) string { return "router/" + nic }
func DHCP6File(nic string) string  { return "dhcp6/" + nic }

// File is a file that goes with a message, and its name there.
type File struct {
	Name string
	*os.File
}

// fileKind is what kind of file a launcher must send.
type fileKind string

const (
	networkNamespace fileKind = "a network namespace"
	streamSocket     fileKind = "a unix stream socket"
)

// Brought is a file that a launcher's message brings.
type Brought struct {
	Name string
	kind fileKind
}

// EventFile returns the file that an event brings, if it brings one.
func EventFile(event string) (Brought, bool) {
	return Brought{FileNetNS, networkNamespace}, event == EventHello
}

// AnswerFile returns the file that a good answer to a command brings, if it brings one.
func AnswerFile(command string) (Brought, bool) {
	switch command {
	case CommandConsole:
		return Brought{FileConsole, streamSocket}, true
	case CommandVNC:
		return Brought{FileVNC, streamSocket}, true
	case CommandScreenshot:
		return Brought{FileScreenshot, streamSocket}, true
	case CommandOpenChannel, CommandExportDisk, CommandMirrorDisk:
		return Brought{FileChannel, streamSocket}, true
	}
	return Brought{}, false
}

// checkNames checks the bounds of the names of a message's files.
func checkNames(names []string) error {
	for i, name := range names {
		if name == "" || len(name) > maxFileName || slices.Contains(names[:i], name) {
			return fmt.Errorf("%w: file name %.32q is empty, too long, or used twice", ErrProtocol, name)
		}
	}
	return nil
}

// descriptor is a file of unknown kind that a launcher has sent. The file's driver answers
// most calls on it, in its own time: fstat, fstatfs, poll, ioctl and close of a file of FUSE
// or NFS ask a server, which may be the launcher's. Even os.NewFile polls a file that is
// non-blocking.
type descriptor int

func (d descriptor) Close() error { return unix.Close(int(d)) }

// is reports whether the file is of a kind. It asks only what the kernel answers
// without the file's driver:
//   - getsockopt looks at the file's operations first: for a file that is no socket it
//     fails with ENOTSOCK (sock_from_file in net/socket.c). SO_DOMAIN and SO_TYPE are read
//     from the socket without its lock (sk_getsockopt in net/core/sock.c).
//   - readlink of /proc/self/fd/N is d_path (do_proc_readlink in fs/proc/base.c). A name
//     without a leading slash comes from the file system type itself: only nsfs makes
//     names like net:[N] (ns_dname in fs/nsfs.c).
func (d descriptor) is(kind fileKind) bool {
	switch kind {
	case streamSocket:
		domain, err := unix.GetsockoptInt(int(d), unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil || domain != unix.AF_UNIX {
			return false
		}
		of, err := unix.GetsockoptInt(int(d), unix.SOL_SOCKET, unix.SO_TYPE)
		return err == nil && of == unix.SOCK_STREAM
	case networkNamespace:
		name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(d)))
		return err == nil && strings.HasPrefix(name, "net:[")
	}
	return false
}

func closers(descriptors []descriptor) []io.Closer {
	out := make([]io.Closer, len(descriptors))
	for i, d := range descriptors {
		out[i] = d
	}
	return out
}

// received returns the descriptors that came with one read of a socket.
func received(oob []byte) ([]descriptor, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	var out []descriptor
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		numbers, err := unix.ParseUnixRights(&m)
		if err != nil {
			return out, fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		for _, n := range numbers {
			out = append(out, descriptor(n)) // MSG_CMSG_CLOEXEC was asked for
		}
	}
	return out, nil
}

// Stream is a launcher's end of a console, a VNC connection or a screenshot. A launcher can
// send files along with the bytes. If the reader does not take these files, the kernel closes
// them on the reader's thread. A Stream takes the files, leaves them to the launcher's Closer,
// and ends.
type Stream struct {
	net.Conn
	unix *net.UnixConn
	// shared says that the launcher has this end of the socket too, so that only the launcher may
	// end the connection.
	shared bool
	closer *Closer
	oob    []byte
	once   sync.Once
}

func newStream(d descriptor, shared bool, closer *Closer) (*Stream, error) {
	file := os.NewFile(uintptr(d), "stream")
	defer closer.Close(file) // net.FileConn has a descriptor of its own
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("take virt-launcher's socket: %w", err)
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		closer.Close(conn)
		return nil, fmt.Errorf("take virt-launcher's socket: %w: it is a %T", ErrProtocol, conn)
	}
	return &Stream{Conn: conn, unix: socket, shared: shared, closer: closer, oob: make([]byte, unix.CmsgSpace(MaxFiles*4))}, nil
}

// Read is for one goroutine.
func (s *Stream) Read(p []byte) (int, error) {
	n, oobn, _, _, err := s.unix.ReadMsgUnix(p, s.oob)
	if errors.Is(err, io.EOF) {
		err = io.EOF // ReadMsgUnix wraps it
	}
	if oobn == 0 {
		return n, err
	}
	files, _ := received(s.oob[:oobn])
	s.closer.Close(closers(files)...)
	_ = s.Close()
	return n, fmt.Errorf("%w: a stream brings no files", ErrProtocol)
}

// Close ends reads and writes under way at once, and leaves the rest to the Closer.
func (s *Stream) Close() error {
	s.once.Do(func() {
		if s.shared {
			_ = s.unix.SetDeadline(time.Unix(1, 0)) // shutdown(2) would end the connection for all
		} else {
			hangUp(s.unix)
		}
		s.closer.Close(s.unix)
	})
	return nil
}

// hangUp ends reads and writes under way, here and at the other end, and closes nothing.
func hangUp(c *net.UnixConn) {
	_ = c.SetDeadline(time.Unix(1, 0))
	_ = c.CloseRead()
	_ = c.CloseWrite()
}
