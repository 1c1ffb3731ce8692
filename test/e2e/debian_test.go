package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// staticNetwork is network data without DHCP: the guest's address and gateway
// with masquerade. The first PCI Express device is the interface.
const staticNetwork = `
apiVersion: v1
kind: Secret
metadata: {name: network}
stringData:
  networkdata: |
    version: 2
    ethernets:
      enp1s0:
        dhcp4: false
        addresses: [10.0.2.2/24]
        gateway4: 10.0.2.1
`

// TestDebian boots the demo's guest: systemd, cloud-init, login, shutdown. Its
// network data is in a Secret, and gives it a static address.
func TestDebian(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, ns, staticNetwork)
	sample, err := os.ReadFile("../../config/samples/vmi-debian.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const seed = "    cloudInitNoCloud:\n"
	if !strings.Contains(string(sample), seed) {
		t.Fatal("the sample has no place for network data")
	}
	apply(t, ns, strings.Replace(string(sample), seed, seed+"      networkDataSecretRef: {name: network}\n", 1))
	v := vmi{t: t, namespace: ns, name: "debian"}
	v.await(v1.Running)
	log := v.log()
	// Not from the log: it has whole lines only.
	console := v.console()
	console.expect(4*time.Minute, `debian login: `)
	console.send("demo\n")
	console.expect(30*time.Second, `Password: `)
	console.send("demo\n")
	console.expect(60*time.Second, `demo@debian`)
	for _, ask := range []struct{ command, want string }{
		{"hostname", "debian"},
		{"ip -4 -o addr show scope global", " 10.0.2.2/24 "},
		// DHCP would have given it a lifetime.
		{"ip -4 -o addr show scope global permanent", " 10.0.2.2/24 "},
		{"ip -4 route show default", "via 10.0.2.1 "},
		{"cloud-init status --wait", "status: done"},
		{"systemctl is-system-running --wait", "running"},
	} {
		if out, status := console.run(2*time.Minute, ask.command); status != 0 || !strings.Contains(out, ask.want) {
			t.Errorf("%s printed %q (%d), want %q", ask.command, out, status, ask.want)
		}
	}
	v.reportsMemory(mustScraper(t, readerAccount(t, ns)))

	debianAgent(t, v, console)

	v.delete()
	log.shows(10*time.Second, `(?i)power down|powering off`)
	if message := v.event("Stopped"); !strings.Contains(message, "powered off after the ACPI power button") {
		t.Errorf("event Stopped says %q", message)
	}
}
