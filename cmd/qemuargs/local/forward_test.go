package local

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func TestParseForward(t *testing.T) {
	all := netip.MustParseAddr("0.0.0.0")
	for text, want := range map[string]qemuargs.Forward{
		"2222:22":         {Protocol: qemuargs.TCP, Address: loopback, Port: 2222, GuestPort: 22},
		"0:22":            {Protocol: qemuargs.TCP, Address: loopback, GuestPort: 22},
		"53:53/udp":       {Protocol: qemuargs.UDP, Address: loopback, Port: 53, GuestPort: 53},
		"0.0.0.0:80:8080": {Protocol: qemuargs.TCP, Address: all, Port: 80, GuestPort: 8080},
		"0.0.0.0:1:2/TCP": {Protocol: qemuargs.TCP, Address: all, Port: 1, GuestPort: 2},
	} {
		if got, err := ParseForward(text); got != want || err != nil {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "22", ":22", "22:", "22:0", "65536:22", "22:65536", "-1:22", "1:2/sctp", "1:2/", "host:1:2", "::1:1:2", "[::1]:1:2", "1:2:3:4", "1.2.3.4:1", "+1:2", "1:2,hostfwd=tcp::1-:2"} {
		if got, err := ParseForward(text); err == nil || !strings.Contains(err.Error(), strconv.Quote(text)) {
			t.Errorf("%q is read as %+v, %v", text, got, err)
		}
	}
}

// FuzzParseForward: what is read stands for itself in QEMU's syntax.
func FuzzParseForward(f *testing.F) {
	f.Add("127.0.0.1:2222:22/udp")
	f.Add("0:1")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseForward(text)
		if err != nil {
			return
		}
		again, err := ParseForward(got.Address.String() + ":" + strconv.Itoa(int(got.Port)) + ":" + strconv.Itoa(int(got.GuestPort)) + "/" + string(got.Protocol))
		if err != nil || again != got || got.GuestPort == 0 || !got.Address.Is4() {
			t.Errorf("%q: %+v, again %+v, %v", text, got, again, err)
		}
	})
}

// TestUsersForwardsComeFirst: the user's forwards come first, and the manifest's ports after them.
func TestUsersForwardsComeFirst(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{
		{Name: "a", Ports: []v1.Port{{Port: 22}, {Port: 8080}, {Port: 5353, Protocol: "UDP"}, {Port: 8080}, {Port: 9000, Protocol: "TCP"}}},
		{Name: "b", Ports: []v1.Port{{Port: 8080}}}}
	taken := map[uint16]bool{8080: true}
	next := uint16(40000)
	claim := func(f qemuargs.Forward, need bool) (uint16, error) {
		if f.Port != 0 && !taken[f.Port] {
			taken[f.Port] = true
			return f.Port, nil
		}
		if need && f.Port != 0 {
			return 0, errors.New("taken")
		}
		next++
		return next, nil
	}
	tcp := func(port, guest uint16) qemuargs.Forward {
		return qemuargs.Forward{Protocol: qemuargs.TCP, Address: loopback, Port: port, GuestPort: guest}
	}
	got, err := forwards(vmi, []qemuargs.Forward{tcp(2222, 22), tcp(0, 443)}, claim)
	want := map[string][]qemuargs.Forward{
		"a": {tcp(2222, 22), tcp(40001, 443), tcp(40002, 8080), {Protocol: qemuargs.UDP, Address: loopback, Port: 5353, GuestPort: 5353}, tcp(9000, 9000)},
		"b": {tcp(40003, 8080)}}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	if got, err := forwards(vmi, []qemuargs.Forward{tcp(8080, 80)}, claim); err == nil {
		t.Errorf("a port that is taken: %v", got)
	}
	if got, err := forwards(&v1.VirtualMachineInstance{}, []qemuargs.Forward{tcp(1, 1)}, claim); err == nil {
		t.Errorf("a VM without interface: %v", got)
	}
}

// TestPortIsHeldUntilRelease: a port is another process's or free, and held until release.
func TestPortIsHeldUntilRelease(t *testing.T) {
	for _, protocol := range []qemuargs.Protocol{qemuargs.TCP, qemuargs.UDP} {
		var p, others ports
		defer p.release()
		defer others.release()
		f := qemuargs.Forward{Protocol: protocol, Address: loopback}
		taken, err := others.claim(f, true)
		if err != nil || taken == 0 {
			t.Fatalf("any port: %d, %v", taken, err)
		}
		f.Port = taken
		if port, err := p.claim(f, true); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("a port that is needed: %d, %v", port, err)
		}
		if port, err := p.claim(f, false); err != nil || port == taken {
			t.Errorf("a port that is not needed: %d, %v", port, err)
		}
		others.release()
		if port, err := p.claim(f, true); err != nil || port != taken {
			t.Errorf("after its release: %d, %v", port, err)
		}
	}
	var none ports
	elsewhere := qemuargs.Forward{Protocol: qemuargs.TCP, Address: netip.MustParseAddr("192.0.2.1"), Port: 1234}
	if port, err := none.claim(elsewhere, false); err == nil {
		t.Errorf("an address of another machine: %d", port)
	}
}
