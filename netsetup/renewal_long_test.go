//go:build long

package netsetup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// TestLeaseIsRenewedOverThreeTimes: a guest that renews its lease keeps its address and its connections, over
// three lease times, and so it does when the sockets are opened anew in between.
func TestLeaseIsRenewedOverThreeTimes(t *testing.T) {
	const seconds = 16 // busybox takes no shorter lease
	for name, setUp := range map[string]func(t *testing.T) *pod{
		"masquerade":    func(t *testing.T) *pod { return newPod(t, Masquerade{}) },
		"bridge ptp":    func(t *testing.T) *pod { return newBridged(t, networks()["ptp"], Bridged{}) },
		"bridge calico": func(t *testing.T) *pod { return newBridged(t, networks()["calico"], Bridged{}) },
	} {
		t.Run(name, func(t *testing.T) {
			p := setUp(t)
			p.leaseSeconds = seconds
			told := p.start()
			if told["lease"] != fmt.Sprint(seconds) {
				t.Fatalf("lease of %q s", told["lease"])
			}
			p.serveTCP(p.other, ":8080")
			conn, _, err := p.dial(p.guest, p.addressOf(p.other)+":8080")
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			script, said := filepath.Join(dir, "script"), filepath.Join(dir, "said")
			testkit.Program(t, script, []byte("#!/bin/busybox sh\necho $1 $ip >>"+said+"\n"))
			client := exec.Command("busybox", "udhcpc", "-f", "-i", guestLink, "-s", script)
			p.inside(p.guest, client.Start)
			defer func() { client.Process.Kill(); client.Wait() }()
			for i := range 3 {
				time.Sleep(seconds * time.Second)
				echo(t, conn, 1<<16)
				if i == 0 {
					p.serveDHCP() // beside the first
				}
			}
			time.Sleep(seconds / 2 * time.Second) // the third renewal is due about now
			text, err := os.ReadFile(said)
			if err != nil {
				t.Fatal(err)
			}
			if lines := string(text); strings.Count(lines, "bound "+told["ip"]) != 1 || strings.Count(lines, "renew "+told["ip"]) < 3 || strings.Count(lines, "deconfig") != 1 {
				t.Errorf("the client says:\n%s", lines)
			}
		})
	}
}
