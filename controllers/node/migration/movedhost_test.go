package migration_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// TestFactsGoAlongWithAGuest: the target's launcher keeps the facts from which a guest's arguments were made, but for
// what the target decides. Facts that nobody can use hold up no guest.
func TestFactsGoAlongWithAGuest(t *testing.T) {
	const facts = `{"accelerator":"tcg","qemuVersion":"7.2.22","vhostNet":true,"aio":{"native":true},"now":7}`
	const kept = `{"accelerator":"tcg","qemuVersion":"7.2.22","aio":{"native":true},"now":7}`
	for name, c := range map[string]struct{ host, qemu, want string }{
		"the same QEMU": {facts, "7.2.22", kept},
		"an older QEMU": {facts, "7.2.1", ""},
		"none":          {"", "7.2.22", ""},
		"no facts":      {`{"accelerator":7}`, "7.2.22", ""},
		"too long":      {strings.Repeat(" ", peers.MaxHost) + facts, "7.2.22", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			m.status() // the source knows of its migration
			offer := &peers.Offer{Version: peers.Version, Namespace: "default", Name: "vm", UID: "u", QEMUVersion: c.qemu,
				Machine: *m.source.is().Machine, Host: c.host}
			if err := m.prepare("here", "m", offer); err != nil {
				t.Fatal(err)
			}
			var request control.StartRequest
			if err := control.Decode(m.target.arguments(control.CommandStart), &request); err != nil {
				t.Fatal(err)
			}
			if request.Host != c.want {
				t.Errorf("the target keeps %q, want %q", request.Host, c.want)
			}
		})
	}
}

// TestSourceOffersTheFactsOfItsLauncher: what the source's launcher keeps comes to the target's. A guest moves without,
// too.
func TestSourceOffersTheFactsOfItsLauncher(t *testing.T) {
	for name, keeps := range map[string]bool{"kept": true, "not kept": false} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			if keeps {
				m.source.answer(control.CommandArguments,
					`{"program":"q","arguments":["-S"],"host":{"accelerator":"tcg","qemuVersion":"7.2.22","now":7}}`)
			} else {
				m.source.refuses(control.CommandArguments, "no QEMU runs")
			}
			m.copies()
			var request control.StartRequest
			if err := control.Decode(m.target.arguments(control.CommandStart), &request); err != nil {
				t.Fatal(err)
			}
			var host resolve.Host
			if keeps {
				if err := json.Unmarshal([]byte(request.Host), &host); err != nil {
					t.Fatal(err)
				}
			}
			if (request.Host != "") != keeps || keeps && host.Now != 7 {
				t.Errorf("the target keeps %q", request.Host)
			}
		})
	}
}
