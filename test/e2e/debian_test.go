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
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {mine: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGmXQ0pOzm1nU3vIYd9nLm2SJ7u7Jq0R4cQ2p8m5u0aB me@home"}
`

// TestDebian boots the demo's guest: systemd, cloud-init, login, shutdown. Its
// network data is in a Secret, and gives it a static address; so is an SSH key.
func TestDebian(t *testing.T) {
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
	const key = "  accessCredentials: [{sshPublicKey: {source: {secret: {secretName: keys}}, propagationMethod: {noCloud: {}}}}]\n"
	manifest := strings.Replace(string(sample), seed, seed+"      networkDataSecretRef: {name: network}\n", 1)
	apply(t, ns, strings.Replace(manifest, "\nspec:\n", "\nspec:\n"+key, 1))
	v := vmi{t: t, namespace: ns, name: "debian"}
	v.await(v1.Running)
	t.Parallel() // it boots while others are tested
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
		// The user data names no default user, so that it is root's.
		{"sudo cat /root/.ssh/authorized_keys", " me@home"},
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
