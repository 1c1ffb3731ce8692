package launcher

import (
	"bufio"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestLinksComeUpAgain: QEMU takes down one link and does not answer for another one. The link that is down comes up again.
func TestLinksComeUpAgain(t *testing.T) {
	t.Parallel()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends []net.Conn
	for _, fd := range fds {
		file := os.NewFile(uintptr(fd), "qmp")
		end, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	client := qmp.New(ends[0].(*net.UnixConn), qmp.Options{})
	var done []string
	played := make(chan struct{})
	go func() {
		defer close(played)
		m := &fakeMonitor{conn: ends[1], commands: bufio.NewScanner(ends[1])}
		m.handshake()
		for m.commands.Scan() {
			name := "a"
			if m.reads("nic-b") {
				name = "b"
			}
			if strings.Contains(m.commands.Text(), `"up":true`) {
				name += " up"
			}
			done = append(done, name)
			if name != "b" {
				m.answer(`"return": {}`)
			}
		}
	}()
	if err := client.Connect(); err != nil {
		t.Fatal(err)
	}
	nics := []qemuargs.NIC{{Name: "a", RefreshLink: true}, {Name: "b", RefreshLink: true}, {Name: "card", HostDevice: "0000:01:00.0"}}
	err = settleEach(t.Context(), time.Second, client, nics)
	if !errors.Is(err, qmp.ErrTimeout) {
		t.Errorf("QEMU did not answer: %v", err)
	}
	client.Close()
	ends[1].Close()
	<-played
	if want := []string{"a", "b", "a up", "b up"}; !slices.Equal(done, want) {
		t.Errorf("QEMU was told %q, want %q", done, want)
	}
}
