package qmp

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// FuzzStream plays a QEMU that sends anything: the client ends with the
// connection, or before, and says how; no command and no event hangs.
func FuzzStream(f *testing.F) {
	for _, s := range []string{"", greetingLine + "\n", greetingLine + "\n" + `{"return": {}, "id": 1}` + "\n", `{"event": "STOP"}` + "\n" + `{"event": "RESUME"`,
		`{"return": [], "id": "x"}` + "\n\n\r\n" + `{"error": {"class": 1}}` + "\n", "\xff\x00\n", `{"error": {}, "id": 1}` + "\n" + greetingLine + "\n" + greetingLine} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		ours, theirs := testkit.SocketPair(t)
		defer theirs.Close()
		c := New(ours, Options{Timeout: testkit.Patience})
		defer c.Close()
		events, err := c.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		commanded := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			_, err := c.QueryStatus(ctx)
			commanded <- err
		}()
		go io.Copy(io.Discard, theirs)
		theirs.Write(stream) // fails if the client has had enough
		theirs.CloseWrite()
		n := 0
		for range events {
			n++
		}
		<-c.Done()
		if err := c.Err(); !errors.Is(err, ErrClosed) {
			t.Fatalf("end: %v", err)
		}
		if err := <-commanded; errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("command: %v", err)
		}
		if n > len(stream)/2 {
			t.Fatalf("%d events of %d bytes", n, len(stream))
		}
	})
}
