package e2e

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestDebian boots the demo's guest: systemd, cloud-init, login, shutdown.
func TestDebian(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	kubectl(t, "-n", ns, "apply", "-f", "../../config/samples/vmi-debian.yaml")
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
		{"cloud-init status --wait", "status: done"},
		{"systemctl is-system-running --wait", "running"},
	} {
		if out, status := console.run(2*time.Minute, ask.command); status != 0 || !strings.Contains(out, ask.want) {
			t.Errorf("%s printed %q (%d), want %q", ask.command, out, status, ask.want)
		}
	}

	v.delete()
	log.shows(10*time.Second, `(?i)power down|powering off`)
	if message := v.event("Stopped"); !strings.Contains(message, "powered off after the ACPI power button") {
		t.Errorf("event Stopped says %q", message)
	}
}
