package parts

import (
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/process"
)

// socketPair returns the launcher's end of a socket of QEMU's, and QEMU's end.
func socketPair(t *testing.T) (ours, theirs *net.UnixConn) {
	t.Helper()
	ours, file, err := process.SocketPair("test")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return ours, conn.(*net.UnixConn)
}

// TestSerialOutput: what the guest writes goes to the first console, and to the pod's log unless the start request
// says otherwise.
func TestSerialOutput(t *testing.T) {
	for _, logged := range []bool{true, false} {
		ours, guest := socketPair(t)
		console, reader := socketPair(t)
		log := testkit.NewTranscript(t, "the pod's log")
		s := &Serial{Socket: filepath.Join(t.TempDir(), "console"), Output: log, Console: console, Log: quiet}
		if err := s.Attach(&control.StartRequest{NoSerialLog: !logged}, &process.QEMU{Serial: ours}); err != nil {
			t.Fatal(err)
		}
		if _, err := guest.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		guest.Close()
		if said, err := io.ReadAll(reader); err != nil || string(said) != "hello" {
			t.Errorf("the console has %q (%v)", said, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if (log.String() == "hello") != logged {
			t.Errorf("logged (%t): %q", logged, log.String())
		}
	}
}

// TestNoSerial: a machine without a serial port has none, and no socket for consoles.
func TestNoSerial(t *testing.T) {
	s := &Serial{Socket: "/none/console"}
	if err := s.Attach(&control.StartRequest{}, &process.QEMU{}); err != nil || s.Port() != nil {
		t.Errorf("%v, %v", s.Port(), err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
