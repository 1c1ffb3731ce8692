package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const lanPage = "../../docs/lan.md"

// block is a fenced block of a page.
type block struct{ language, text string }

// file is the name that a block's first line gives it; empty without one.
func (b block) file() string {
	first, _, _ := strings.Cut(b.text, "\n")
	name, _ := strings.CutPrefix(first, "# ")
	if !strings.HasSuffix(name, ".yaml") {
		return ""
	}
	return name
}

// blocksOf are the blocks of a page, by the heading above them.
func blocksOf(t *testing.T, path string) map[string][]block {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out, heading := map[string][]block{}, ""
	var open *block
	for line := range strings.Lines(string(text)) {
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &block{language: strings.TrimSpace(language)}
		case fence:
			out[heading] = append(out[heading], *open)
			open = nil
		case open != nil:
			open.text += line
		case strings.HasPrefix(line, "## "):
			heading = strings.TrimSpace(strings.TrimPrefix(line, "## "))
		}
	}
	return out
}

// reader follows a page as somebody at a node and at kubectl does.
type reader struct {
	t         *testing.T
	blocks    map[string][]block
	namespace string
	folder    string
	replaced  *strings.Replacer
}

// follow does what a section says, in its order: objects are applied, files are written, commands with kubectl run beside the cluster, and others on the
// node.
func (r reader) follow(heading string, cards ...string) {
	r.t.Helper()
	if len(r.blocks[heading]) == 0 {
		r.t.Fatalf("%s has no block below %q", lanPage, heading)
	}
	for _, b := range r.blocks[heading] {
		text := strings.NewReplacer(cards...).Replace(r.replaced.Replace(b.text))
		var err error
		switch {
		case b.language == "yaml" && b.file() != "":
			err = os.WriteFile(filepath.Join(r.folder, b.file()), []byte(text), 0o644)
		case b.language == "yaml":
			apply(r.t, r.namespace, text)
		case b.language == "sh" && strings.Contains(text, "kubectl"):
			err = r.run(text)
		case b.language == "sh":
			_, err = onNode("set -e\n" + text)
		default:
			r.t.Fatalf("%s has a block of %q below %q", lanPage, b.language, heading)
		}
		if err != nil {
			r.t.Fatalf("follow %q of %s: %v", heading, lanPage, err)
		}
	}
}

// run runs commands whose kubectl is in the test's namespace.
func (r reader) run(script string) error {
	cmd := exec.Command("bash", "-ec", `kubectl() { command kubectl -n "$namespace" "$@"; }`+"\n"+script)
	cmd.Dir, cmd.Env = r.folder, append(os.Environ(), "namespace="+r.namespace)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// TestLANPage follows docs/lan.md to the letter: each block of it, with the names of the node's second card and of the image replaced by those that
// are there, and nothing else. The LAN has a DHCP server, a reservation for a MAC, and a VLAN with a DHCP server of its own.
func TestLANPage(t *testing.T) {
	ns := namespace(t)
	l := unbridgedLAN(t)
	installMultus(t)
	l.inside("ip", "address", "add", "192.168.1.1/24", "dev", "switch")
	l.serveDHCP("switch", "192.168.77.100,192.168.77.150", "--dhcp-host=02:00:00:00:00:10,192.168.77.10")
	tagged := lan{t: t, netns: l.netns, leases: filepath.Join(t.TempDir(), "tagged")}
	vlans := hasVLANs()
	if vlans {
		l.inside("ip", "link", "add", "link", "switch", "name", "switch.20", "type", "vlan", "id", "20")
		l.inside("ip", "address", "add", "192.168.20.1/24", "dev", "switch.20")
		l.inside("ip", "link", "set", "switch.20", "up")
		tagged.serveDHCP("switch.20", "192.168.20.100,192.168.20.150")
	} else {
		t.Log("THIS MACHINE'S KERNEL HAS NO VLANS, OR NO BRIDGES THAT KNOW VLANS: THE STEP WITH A VLAN IS LEFT OUT")
	}

	r := reader{t: t, blocks: blocksOf(t, lanPage), namespace: ns, folder: t.TempDir(), replaced: strings.NewReplacer("registry.example/debian:12", tinyImage)}
	m := vm{vmi: vmi{t: t, namespace: ns, name: "home"}}
	r.follow("What the node needs")
	r.follow("The network")
	r.follow("A VM with its address from the router")
	uid := m.runs("")
	leased := l.awaitLease(m.vmi, "lan")
	m.log().shows("tiny: eth0 " + regexp.QuoteMeta(leased) + "/24")
	reached(t, l, leased)

	for _, step := range []struct {
		heading string
		cards   []string
		lan     lan
		address string // of the guest; empty for one that the DHCP server chooses
	}{
		{"A second network card", nil, l, leased},
		{"A fixed MAC", nil, l, "192.168.77.10"},
		{"A static address", nil, l, "192.168.1.20"},
		{"A VLAN", nil, tagged, ""},
		{"Without a bridge: macvlan", []string{"eth1", "eth2"}, l, "192.168.77.10"},
	} {
		if step.heading == "A VLAN" && !vlans {
			continue
		}
		r.follow(step.heading, step.cards...)
		uid = m.runs(uid)
		address := step.address
		if address != "192.168.1.20" { // which no DHCP server of the LAN gives
			given := step.lan.awaitLease(m.vmi, "lan")
			if address == "" {
				address = given
			}
			if given != address {
				t.Errorf("%s: the guest has %s, want %s", step.heading, given, address)
			}
		}
		log := m.log()
		log.shows(`tiny: eth0 10\.0\.2\.2/24`)
		log.shows("tiny: eth1 " + regexp.QuoteMeta(address) + "/24")
		reached(t, step.lan, address)
		if got := nicOf(m.get(), "lan"); step.heading != "A second network card" && got.MAC != "02:00:00:00:00:10" {
			t.Errorf("%s: status.interfaces is %+v", step.heading, got)
		}
	}
	if spec := m.get().Spec; len(spec.Networks) != 2 || spec.Networks[1].Multus == nil || spec.Networks[1].Multus.NetworkName != "shared" || spec.Networks[0].Pod == nil {
		t.Errorf("at last, the networks are %+v", spec.Networks)
	}
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
}

// hasVLANs says whether the node's kernel has VLANs, and bridges that tell them apart.
func hasVLANs() bool {
	_, err := onNode(`ip link add probe0 type bridge vlan_filtering 1 || exit 1; ip link add link probe0 name probe1 type vlan id 20; has=$?; ip link del probe0; exit $has`)
	return err == nil
}

// reached fails the test if the LAN does not reach the guest's echo server.
func reached(t *testing.T, l lan, address string) {
	t.Helper()
	if err := poll(func() error { return l.echoes(address, 7, 100_000) }); err != nil {
		t.Errorf("from the LAN to %s: %v", address, err)
	}
}
