package launcher

import (
	"bufio"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestLinksComeUpAgain: QEMU takes down one link and does not answer for another one. The link that is down comes up
// again.
func TestLinksComeUpAgain(t *testing.T) {
	t.Parallel()
	testkit.Slower(t, 500*time.Millisecond, func(each time.Duration) error { return linksComeUpAgain(t, each) })
}

// linksComeUpAgain returns an error if QEMU was told something else, such as when its answers come too late.
func linksComeUpAgain(t *testing.T, each time.Duration) error {
	t.Helper()
	ours, theirs := testkit.SocketPair(t)
	client := qmp.New(ours, qmp.Options{})
	var done []string
	played := make(chan struct{})
	go func() {
		defer close(played)
		m := &fakeMonitor{conn: theirs, commands: bufio.NewScanner(theirs)}
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
	nics := []qemuargs.NIC{{Name: "a", RefreshLink: true}, {Name: "b", RefreshLink: true},
		{Name: "card", HostDevice: "0000:01:00.0"}}
	err := settleEach(t.Context(), each, client, nics)
	if !errors.Is(err, qmp.ErrTimeout) {
		t.Errorf("QEMU did not answer: %v", err)
	}
	client.Close()
	theirs.Close()
	<-played
	if want := []string{"a", "b", "a up", "b up"}; !slices.Equal(done, want) {
		return fmt.Errorf("QEMU was told %q, want %q", done, want)
	}
	return nil
}
