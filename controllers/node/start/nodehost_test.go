package start

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/internal/handlerlease"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// TestNodeHostIsWhatAGuestFinds: the facts that a node tells are those of the host of a guest that starts there.
func TestNodeHostIsWhatAGuestFinds(t *testing.T) {
	s := newStarter(nodetest.Broken())
	s.Chooser.PermitEmulation(true)
	s.NoHyperV = true
	s.Cluster = func(context.Context) (*v1.KubeVirtConfiguration, error) {
		return &v1.KubeVirtConfiguration{SMBIOS: &v1.SMBIOSConfiguration{Family: "Rack"},
			VirtualMachineOptions: &v1.VirtualMachineOptions{DisableFreePageReporting: &v1.Empty{}}}, nil
	}
	text, err := s.NodeHost(t.Context(), "11.1.3", []string{"aes=on"})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"accelerator":"tcg","qemuVersion":"11.1.3","noHyperV":true,"hostModel":["aes=on"],` +
		`"smbios":{"family":"Rack"},"noFreePageReporting":true}`
	if text != want {
		t.Errorf("%s, want %s", text, want)
	}
	var host resolve.Host
	if err := json.Unmarshal([]byte(text), &host); err != nil || host.VhostNet {
		t.Errorf("a node that emulates has vhost-net: %v", err)
	}
}

// TestNodeHostOfANodeThatRunsNoGuests: a node without an accelerator tells that. What is not known, or too much, is an
// error.
func TestNodeHostOfANodeThatRunsNoGuests(t *testing.T) {
	s := newStarter(nodetest.Broken())
	broken := errors.New("no configuration")
	for name, c := range map[string]struct {
		emulates bool
		version  string
		flags    []string
		cluster  error
		text     string
		want     string
	}{
		"no accelerator": {version: "11.1.3", text: `{"accelerator":"","qemuVersion":"11.1.3"}`},
		"no version":     {emulates: true, want: "not known"},
		"no cluster":     {emulates: true, version: "11.1.3", cluster: broken, want: broken.Error()},
		"too much": {emulates: true, version: "11.1.3", flags: slices.Repeat([]string{"aes=on"}, handlerlease.MaxHost/8),
			want: "more than"},
	} {
		s.Chooser.PermitEmulation(c.emulates)
		s.Cluster = func(context.Context) (*v1.KubeVirtConfiguration, error) {
			return &v1.KubeVirtConfiguration{}, c.cluster
		}
		text, err := s.NodeHost(t.Context(), c.version, c.flags)
		if text != c.text || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v, want %q", name, text, err, c.want)
		}
	}
}

// TestVhostNetOfTheNode: a node with KVM offers vhost-net if the device opens.
func TestVhostNetOfTheNode(t *testing.T) {
	s := newStarter(nodetest.Broken())
	for _, err := range []error{nil, os.ErrNotExist} {
		s.Wiring.OpenVhostNet = func(int) ([]*os.File, error) { return nil, err }
		if got := s.Wiring.OffersVhostNet(qemuargs.KVM); got != (err == nil) {
			t.Errorf("%v: %v", err, got)
		}
		if s.Wiring.OffersVhostNet(qemuargs.TCG) {
			t.Error("a node that emulates offers vhost-net")
		}
	}
}
