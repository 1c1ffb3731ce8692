package peers

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/authority/authoritytest"
	"github.com/kubeqemu/kubeqemu/internal/batch"
	"github.com/kubeqemu/kubeqemu/internal/layers"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// TestChannelsShareThePace: all channels of a migration together carry no more than the pace in each direction,
// whatever the launchers send.
func TestChannelsShareThePace(t *testing.T) { synctest.Test(t, pacedRelays) }

func pacedRelays(t *testing.T) {
	const perSecond, channels, each = 1 << 20, 2, 768 << 10
	pace := NewPace(perSecond)
	ends := make([]net.Conn, channels)
	for i := range ends {
		launcher, here := net.Pipe()
		there, target := net.Pipe()
		ends[i] = target
		done := make(chan struct{})
		go func() { defer close(done); Relay(t.Context(), here, there, pace) }()
		t.Cleanup(func() { launcher.Close(); target.Close(); <-done })
		go launcher.Write(make([]byte, each))
		go io.Copy(io.Discard, launcher)
	}
	begun := time.Now()
	for _, end := range ends {
		if _, err := io.ReadFull(end, make([]byte, each)); err != nil {
			t.Fatal(err)
		}
	}
	// The first of it may come at once.
	least := time.Duration(channels*each-buffer) * time.Second / perSecond * 8 / 10
	if took := time.Since(begun); took < least {
		t.Errorf("%d bytes took %s, want at least %s", channels*each, took, least)
	}
	begun = time.Now()
	if _, err := ends[0].Write(make([]byte, buffer)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > least/2 {
		t.Errorf("what comes back waited %s for what goes there", took)
	}
}

// TestWaitForThePaceEndsWithTheContext: a relay that waits for its pace for hours ends with its context, and with the
// other connection.
func TestWaitForThePaceEndsWithTheContext(t *testing.T) {
	for name, end := range map[string]func(cancel context.CancelFunc, target net.Conn){
		"context": func(cancel context.CancelFunc, _ net.Conn) { cancel() },
		"target":  func(_ context.CancelFunc, target net.Conn) { target.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			launcher, here := net.Pipe()
			there, target := net.Pipe()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan struct{})
			go func() { defer close(done); Relay(ctx, here, there, NewPace(1)) }()
			go io.Copy(io.Discard, target)
			if _, err := launcher.Write(make([]byte, buffer)); err != nil {
				t.Fatal(err)
			}
			if _, err := launcher.Write(make([]byte, buffer)); err != nil { // which now waits
				t.Fatal(err)
			}
			end(cancel, target)
			testkit.Receive(t, done, "the relay's end")
		})
	}
}

// TestPaceOfZeroIsNoBound: 0 is no bound.
func TestPaceOfZeroIsNoBound(t *testing.T) {
	for _, n := range []int64{0, -1} {
		if NewPace(n) != nil {
			t.Errorf("%d bytes a second are a bound", n)
		}
	}
}

// TestRelayToAStuckNodeEndsAtOnce: a relay to a node that takes nothing more ends at once. TLS would wait 5 s to say
// so, and the guest stands still meanwhile.
func TestRelayToAStuckNodeEndsAtOnce(t *testing.T) {
	testkit.Soon(t, "the end of a relay", 4*time.Second, func() time.Duration { return relayEnds(t) })
}

// relayEnds measures how long a relay takes to end.
func relayEnds(t *testing.T) time.Duration {
	t.Helper()
	cas := authoritytest.New(t, "virt-handler")
	guest := &target{guests: make(chan net.Conn, 1)}
	to := serve(t, cas, issue(cas, authority.HandlerServer, "b"), guest)
	there, err := dial(cas, issue(cas, authority.HandlerClient, "a"), &to).State(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	defer (<-guest.guests).Close() // nobody reads from it
	if batch.Of(there) == nil {
		t.Fatal("the channel carries one TLS record with each system call")
	}
	launcher, here := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); Relay(ctx, here, there, nil) }()
	for stuck := false; !stuck; {
		launcher.SetWriteDeadline(time.Now().Add(time.Second))
		_, err := launcher.Write(make([]byte, 32<<10))
		stuck = errors.Is(err, os.ErrDeadlineExceeded)
	}
	if n, most := waiting(t, there), unsent+buffer; n > most {
		t.Errorf("%d bytes wait in the kernel, want at most %d: the guest stands still until such bytes have gone", n, most)
	}
	begun := time.Now()
	cancel()
	<-done
	return time.Since(begun)
}

// waiting returns how many bytes of a connection TCP has not sent yet (tcp(7), SIOCOUTQNSD).
func waiting(t *testing.T, conn net.Conn) (n int) {
	t.Helper()
	tcp, ok := layers.Find[*net.TCPConn](conn)
	if !ok {
		t.Fatal("no TCP is beneath the channel")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	failed := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQNSD) })
	if err := errors.Join(failed, err); err != nil {
		t.Fatal(err)
	}
	return n
}
