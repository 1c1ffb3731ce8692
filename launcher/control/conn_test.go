package control

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// socketpair returns a connected pair of sockets that a test does not wait for without end.
func socketpair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	a, b = testkit.SocketPair(t)
	for _, conn := range []*net.UnixConn{a, b} {
		conn.SetDeadline(time.Now().Add(testkit.Patience))
	}
	return a, b
}

// text returns a file that can be told by its content.
func text(t testing.TB, content string) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
	return f
}

func contents(t *testing.T, files []File) string {
	t.Helper()
	var all []string
	for _, f := range files {
		data, err := io.ReadAll(io.NewSectionReader(f, 0, 100))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f.Name+"="+string(data))
	}
	return strings.Join(all, " ")
}

func TestFilesGoWithTheirMessages(t *testing.T) {
	a, b := socketpair(t)
	from, to := NewConn(a), NewConn(b)
	one, two, three := text(t, "one"), text(t, "two"), text(t, "three")
	for _, m := range []Message{
		{Event: "first", Files: []File{{"1", one}, {"2", two}}},
		{Event: "none"},
		{Event: "last", Files: []File{{"1", three}}},
	} {
		if err := from.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"first: 1=one 2=two", "none: ", "last: 1=three"} {
		m, err := to.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Event + ": " + contents(t, m.Files); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		for _, f := range m.Files {
			if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("a received file would be inherited by children (flags %#x, %v)", flags, err)
			}
		}
		m.Close()
		if m.Files != nil {
			t.Error("Close left the files")
		}
	}
	if contents(t, []File{{"", one}}) != "=one" {
		t.Error("the sender's file was closed")
	}
}

// A large message is written in pieces and read in pieces.
func TestLargestMessage(t *testing.T) {
	a, b := socketpair(t)
	from, to := NewConn(a), NewConn(b)
	envelope := len(`{"event":"e","data":""}`)
	data := []byte(`"` + strings.Repeat("x", MaxMessageBytes-1-envelope) + `"`)
	sent := make(chan error, 1)
	go func() { sent <- from.Send(Message{Event: "e", Data: data}) }()
	m, err := to.Receive()
	if err != nil || !bytes.Equal(m.Data, data) {
		t.Fatalf("received %d bytes of data, error %v, want %d", len(m.Data), err, len(data))
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	data = []byte(`"` + strings.Repeat("x", MaxMessageBytes-envelope) + `"`)
	if err := from.Send(Message{Event: "e", Data: data}); !errors.Is(err, ErrProtocol) {
		t.Errorf("a byte more: %v, want it refused before it is sent", err)
	}
	if err := from.Send(Message{Event: "e", Files: make([]File, MaxFiles+1)}); !errors.Is(err, ErrProtocol) {
		t.Errorf("too many files: %v", err)
	}
}

func TestReceiveRefuses(t *testing.T) {
	tests := map[string]string{
		"garbage":            "GET / HTTP/1.1\r\n",
		"empty line":         "\n",
		"not an object":      "[]\n",
		"unknown field":      `{"execute":"e","pod":"another"}` + "\n",
		"two values":         `{"event":"e"}{"event":"e"}` + "\n",
		"no kind":            `{"id":1}` + "\n",
		"two kinds":          `{"event":"e","execute":"stop"}` + "\n",
		"return and error":   `{"id":1,"return":{},"error":{"desc":"no"}}` + "\n",
		"files without any":  `{"event":"e","files":["a"]}` + "\n",
		"a number of files":  `{"event":"e","files":["a"]}` + "\n",
		"too many names":     `{"event":"e","files":[` + strings.Repeat(`"",`, 100_000) + `""]}` + "\n",
		"a name twice":       `{"event":"e","files":["a","a"]}` + "\n",
		"an empty name":      `{"event":"e","files":[""]}` + "\n",
		"a long name":        `{"event":"e","files":["` + strings.Repeat("a", 256) + `"]}` + "\n",
		"a wrong type":       `{"event":7}` + "\n",
		"a NUL":              "{\"event\":\"e\"}\x00\n",
		"a line too long":    strings.Repeat("x", MaxMessageBytes+4096),
		"deeply nested data": `{"event":"e","data":` + strings.Repeat("[", 100_000) + "\n",
	}
	for name, line := range tests {
		t.Run(name, func(t *testing.T) {
			a, b := socketpair(t)
			go a.Write([]byte(line))
			if m, err := NewConn(b).Receive(); !errors.Is(err, ErrProtocol) {
				t.Errorf("got %+v, error %v, want one of protocol", m, err)
			}
		})
	}
}

func TestReceiveEnd(t *testing.T) {
	tests := map[string]string{
		"at once":      "",
		"mid-line":     `{"event":`,
		"before \\n":   `{"event":"e"}`,
		"after a line": `{"event":"e"}` + "\n",
	}
	for name, sent := range tests {
		t.Run(name, func(t *testing.T) {
			a, b := socketpair(t)
			if _, err := a.Write([]byte(sent)); err != nil {
				t.Fatal(err)
			}
			a.Close()
			c := NewConn(b)
			m, err := c.Receive()
			if strings.HasSuffix(sent, "\n") {
				if err != nil || m.Event != "e" {
					t.Fatalf("got %+v, %v", m, err)
				}
				m, err = c.Receive()
			}
			// io.ErrUnexpectedEOF or io.EOF, but never a message.
			if m != nil || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("got %+v, error %v", m, err)
			}
		})
	}
}

// More files than a connection may hold are refused, however they come.
func TestTooManyFiles(t *testing.T) {
	f := text(t, "")
	rights := func(n int) []byte {
		fds := make([]int, n)
		for i := range fds {
			fds[i] = int(f.Fd())
		}
		return unix.UnixRights(fds...)
	}
	// The kernel sends no more than MaxFiles at once.
	tests := map[string][]int{"one by one without a line": {200, MaxFiles - 200, 1}}
	for name, batches := range tests {
		t.Run(name, func(t *testing.T) {
			before := openFiles(t)
			a, b := socketpair(t)
			for _, n := range batches {
				if _, _, err := a.WriteMsgUnix([]byte(" "), rights(n), nil); err != nil {
					t.Fatal(err)
				}
			}
			if m, err := NewConn(b).Receive(); !errors.Is(err, ErrProtocol) {
				t.Errorf("got %+v, error %v", m, err)
			}
			a.Close()
			b.Close()
			if after := openFiles(t); after != before {
				t.Errorf("%d files open, %d before", after, before)
			}
		})
	}
}

// Unclaimed files go at the stream's end.
func TestUnclaimedFilesAreClosed(t *testing.T) {
	before := openFiles(t)
	a, b := socketpair(t)
	f := text(t, "")
	if _, _, err := a.WriteMsgUnix([]byte(`{"event":"e"}`+"\n"), unix.UnixRights(int(f.Fd()), int(f.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	a.Close()
	c := NewConn(b)
	if m, err := c.Receive(); err != nil || len(m.Files) != 0 {
		t.Fatalf("got %+v, %v", m, err)
	}
	if _, err := c.Receive(); err == nil {
		t.Fatal("no end")
	}
	b.Close()
	f.Close()
	if after := openFiles(t); after != before {
		t.Errorf("%d files open, %d before", after, before)
	}
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// What Send writes, Receive reads: whatever bytes come before and after.
func FuzzReceive(f *testing.F) {
	for _, seed := range []string{"", "\n", `{"event":"hello","data":{"version":1},"files":["a"]}` + "\n", `{"id":1,"return":null}` + "\n",
		`{"execute":"start","id":2,"data":{}}` + "\n{", `{"id":3,"error":{"desc":"no"}}` + "\n", "\xff\x00\n", `{"event":"e","files":["a","b"]}` + "\n"} {
		f.Add([]byte(seed), uint8(1))
	}
	f.Fuzz(func(t *testing.T, stream []byte, files uint8) {
		a, b := socketpair(t)
		rights := []int{}
		for range files % 8 {
			rights = append(rights, 0) // standard input, whatever it is
		}
		go func() {
			a.WriteMsgUnix(append([]byte(" "), stream...), unix.UnixRights(rights...), nil)
			a.Close()
		}()
		c := NewConn(b)
		claimed := 0
		for {
			m, err := c.Receive()
			if err != nil {
				if m != nil {
					t.Fatalf("a message %+v beside the error %v", m, err)
				}
				break
			}
			if claimed += len(m.Files); len(m.Files) != len(m.names) || claimed > len(rights) {
				t.Fatalf("message has %d files, says %q; %d of %d claimed", len(m.Files), m.names, claimed, len(rights))
			}
			m.Close()
		}
	})
}

// TestPeerPID: the kernel says who has dialed.
func TestPeerPID(t *testing.T) {
	a, _ := socketpair(t)
	if got := NewConn(a).PeerPID(); got != os.Getpid() {
		t.Errorf("process %d has dialed, want %d", got, os.Getpid())
	}
}
