package e2e

import (
	"bufio"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// talk is a connection over a LAN on which the guest echoes lines.
type talk struct {
	stop  chan struct{}
	ended chan error
	heard chan struct{} // has a token once a line came back
	lines int           // echoed; read once it has ended
	gap   time.Duration // the longest wait for an echo
}

// echoPatience is how long an echo may take. A guest that migrates is silent for less.
const echoPatience = 60 * time.Second

// talkTo sends a line ten times a second, and wants each back.
func (l lan) talkTo(address string, port int) *talk {
	l.t.Helper()
	conn, err := l.dial(address, port)
	if err != nil {
		l.t.Fatal(err)
	}
	c := &talk{stop: make(chan struct{}), ended: make(chan error, 1), heard: make(chan struct{}, 1)}
	go func() {
		defer conn.Close()
		reader := bufio.NewReader(conn)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-c.stop:
				c.ended <- nil
				return
			case <-tick.C:
			}
			asked, line := time.Now(), fmt.Sprintf("line %d\n", c.lines)
			conn.SetDeadline(asked.Add(echoPatience))
			if _, err := conn.Write([]byte(line)); err != nil {
				c.ended <- err
				return
			}
			if got, err := reader.ReadString('\n'); err != nil || got != line {
				c.ended <- fmt.Errorf("line %d came back as %q: %w", c.lines, got, err)
				return
			}
			c.lines, c.gap = c.lines+1, max(c.gap, time.Since(asked))
			select {
			case c.heard <- struct{}{}:
			default:
			}
		}
	}()
	return c
}

// goesOn waits for a line that comes back from now on. The talk ends, and with it the wait, if a line takes longer than echoPatience.
func (c *talk) goesOn() error {
	select {
	case <-c.heard:
	default:
	}
	select {
	case <-c.heard:
		return nil
	case err := <-c.ended:
		return err
	}
}

// over ends the talk, and returns its error if it has broken off before.
func (c *talk) over() error {
	close(c.stop)
	return <-c.ended
}

// cards are names and MAC addresses of a VMI's cards, as its status has them.
func (v vmi) cards() string {
	v.t.Helper()
	var of []string
	for _, i := range v.get().Status.Interfaces {
		of = append(of, i.Name+" "+i.MAC)
	}
	return strings.Join(of, ", ")
}

// TestMigrationNetwork: a guest that counts, and writes each number with fsync, goes back and forth
// between two nodes that are on one LAN. Connections over the LAN stay, both those to the guest and
// those of the guest's. So do the cards in the VMI's status.
func TestMigrationNetwork(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	l := newLAN(t)
	installMultus(t)
	apply(t, ns, lanNetwork+macvlanNetwork)
	kubectl(t, "cordon", secondName)
	m := createVM(t, ns, "open", v1.RunStrategyAlways, emptyDisk("data", "32Mi"), on("lan", "lan"), on("shared", "shared"))
	m.runs("")
	kubectl(t, "uncordon", secondName)
	leased, shared := l.awaitLease(m.vmi, "lan"), l.awaitLease(m.vmi, "shared")
	uid, shell, cards := m.uid(), m.shell(), m.cards()
	must := func(command string) string {
		t.Helper()
		out, status := shell.run(command)
		if status != 0 {
			t.Fatalf("%s: %q (%d)", command, out, status)
		}
		return strings.TrimSpace(out)
	}
	// Both cards are on one LAN. Each address is to be reached by its own card.
	must("for i in eth1 eth2; do echo 1 >/proc/sys/net/ipv4/conf/$i/arp_ignore; echo 2 >/proc/sys/net/ipv4/conf/$i/arp_announce; done; ip route replace " + lanAddress + "/32 dev eth1")
	must("mkdir -p /tmp; " + counting)
	l.serve(8080)
	must("(i=0; while :; do i=$((i+1)); echo $i; usleep 200000; done) | nc " + lanAddress + " 8080 >/tmp/echoed & until [ -s /tmp/echoed ]; do usleep 200000; done")
	// The guest answers by eth1 whatever comes: an answer by macvlan goes by a card that other frames
	// have not come by.
	talks := map[string]*talk{leased: l.talkTo(leased, 7), shared: l.talkTo(shared, 7)}
	for i := range 20 {
		to := []string{secondName, firstName}[i%2]
		echoed := int(seconds(t, must("tail -n 1 /tmp/echoed")))
		begun := time.Now()
		s := m.migrate(fmt.Sprint("move-", i), nil).ends(v1.MigrationSucceeded)
		downtime, _ := cost(s)
		t.Logf("to %s in %.1f s; QEMU's downtime is %d ms", to, time.Since(begun).Seconds(), downtime)
		now := m.get()
		if now.UID != uid || now.Status.NodeName != to || now.Status.Phase != v1.Running {
			t.Fatalf("VMI %s is %s on %s", now.UID, now.Status.Phase, now.Status.NodeName)
		}
		if err := poll(func() error {
			if got := m.cards(); got != cards {
				return fmt.Errorf("after the move the VMI has the cards %s, and had %s before", got, cards)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		shell = m.shell()
		told := int(seconds(t, must("cat /tmp/count")))
		if got := must(fmt.Sprintf("echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vdb bs=512 skip=%d count=%d 2>/dev/null | tr -d '\\000' | md5sum", firstSector+1, told)); got != numbers(told) {
			t.Errorf("of %d numbers that the guest wrote, some are lost", told)
		}
		err := pollFor(echoPatience, func() error {
			if n := int(seconds(t, must("tail -n 1 /tmp/echoed"))); n <= echoed {
				return fmt.Errorf("the LAN has echoed %d lines of the guest's, and %d before", n, echoed)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// The card by which the guest does not send hears nothing for seconds: from when the target's pod is connected until the source announces
		// the guest again. TCP asks ever more seldom, so the next such time is to wait until a line has come back.
		for address, c := range talks {
			if err := c.goesOn(); err != nil {
				t.Fatalf("migration %d: the connection to %s: %v", i, address, err)
			}
		}
	}
	for address, c := range talks {
		if err := c.over(); err != nil {
			t.Errorf("the connection to %s: %v", address, err)
		}
		t.Logf("%d lines to %s and back; the longest took %.1f s", c.lines, address, c.gap.Seconds())
	}
	if again, err := l.lease(nicOf(m.get(), "lan").MAC); err != nil || again != leased {
		t.Errorf("the lease is %s, and was %s: %v", again, leased, err)
	}
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
}
