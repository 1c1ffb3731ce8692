package intake

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// TestBodyIsReadWholeOrRefused: what is sent is read whole, or it is said why not, and nothing stays
// taken.
func TestBodyIsReadWholeOrRefused(t *testing.T) {
	const most = 100 << 10
	var reads atomic.Pointer[Bodies]
	outcome := make(chan error, 1)
	var got []byte
	s := newTestServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, release, err := reads.Load().Read(w, r, "x", most)
		if got = bytes.Clone(text); err == nil {
			release()
		}
		outcome <- err
	}))
	chunks := func(n int) string {
		return fmt.Sprintf("%x\r\n%s\r\n", n, strings.Repeat("x", n))
	}
	for name, c := range map[string]struct {
		head, body string
		length     int // of what is read; -1 is none
		hangs      bool
	}{
		"none":                {"Content-Length: 0", "", 0, false},
		"some":                {"Content-Length: 5", "hello", 5, false},
		"as much as may be":   {fmt.Sprint("Content-Length: ", most), strings.Repeat("x", most), most, false},
		"too much":            {fmt.Sprint("Content-Length: ", most+1), "", -1, false},
		"less than said":      {"Content-Length: 6", "hello", -1, true},
		"in chunks":           {"Transfer-Encoding: chunked", chunks(5) + chunks(20000) + chunks(30000) + "0\r\n\r\n", 50005, false},
		"most in chunks":      {"Transfer-Encoding: chunked", chunks(most) + "0\r\n\r\n", most, false},
		"too much in chunks":  {"Transfer-Encoding: chunked", chunks(most) + chunks(1) + "0\r\n\r\n", -1, false},
		"chunks without end":  {"Transfer-Encoding: chunked", chunks(5), -1, true},
		"a length of no size": {"Content-Length: 9223372036854775807", "", -1, false},
	} {
		bodies := NewBodies(1 << 20)
		if bodies.Timeout = testkit.Patience; c.hangs {
			bodies.Timeout = 100 * time.Millisecond
		}
		reads.Store(bodies)
		conn := s.tls("127.0.0.2")
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\n"+c.head+"\r\n\r\n"+c.body); err != nil {
			t.Fatal(err)
		}
		if err := <-outcome; (err == nil) != (c.length >= 0) || err == nil && len(got) != c.length {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if used := bodies.Budget.Used(); used != 0 {
			t.Errorf("%s: %d bytes are still taken", name, used)
		}
		conn.Close()
	}
}

// TestHalfSentBodiesGiveWay: those that are not whole give way to one that is, of another
// address and of the same, and none takes more than there is.
func TestHalfSentBodiesGiveWay(t *testing.T) {
	const size, each = 1 << 20, 300 << 10
	bodies := NewBodies(size)
	bodies.Timeout = time.Hour // those that are half sent do not time out while the test waits
	gaveWay := make(chan struct{}, 100)
	s := newTestServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, release, err := bodies.Read(w, r, Source(r.RemoteAddr), each)
		switch {
		case errors.Is(err, ErrGaveWay):
			gaveWay <- struct{}{}
		case err == nil:
			defer release()
			fmt.Fprintln(w, len(text))
		}
	}))
	for i, head := range []string{fmt.Sprint("Content-Length: ", each), "Transfer-Encoding: chunked"} {
		for range 2 * strangers {
			conn := s.tls("127.0.0.2")
			if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\n"+head+"\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if i == 1 {
				fmt.Fprintf(conn, "%x\r\n%s", each, strings.Repeat("x", each/2))
			}
			if used := bodies.Budget.Used(); used > size {
				t.Fatalf("%d bytes are taken", used)
			}
		}
		for _, from := range []string{"127.0.0.2", "127.0.0.3"} {
			conn := s.tls(from)
			_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
			if _, err := io.WriteString(conn, fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", each, strings.Repeat("y", each))); err != nil {
				t.Fatal(err)
			}
			answer := make([]byte, len("HTTP/1.1 200 OK"))
			if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 200 OK" {
				t.Errorf("%s: a whole body from %s: %q, %v", head, from, answer, err)
			}
		}
	}
	testkit.Receive(t, gaveWay, "one that gives way")
}
