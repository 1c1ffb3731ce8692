package qemuargs

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

func TestMain(m *testing.M) { golden.Main(m, "testdata/*.args") }

// userMachine returns a machine with a card of each kind, each behind a network inside QEMU.
func userMachine() *Machine {
	network := func(forwards ...Forward) *UserNetwork {
		return &UserNetwork{Network: netip.MustParsePrefix("10.0.2.0/24"), Router: netip.MustParseAddr("10.0.2.1"),
			Guest: netip.MustParseAddr("10.0.2.2"), DNS: netip.MustParseAddr("10.0.2.3"), Hostname: "web", Forwards: forwards}
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	return &Machine{Type: "pc-q35-7.2", NICs: []NIC{
		{Name: "default", Driver: "virtio-net-pci-non-transitional", MAC: "52:54:00:0c:a5:75", MTU: 1500, Queues: 1, QueueSize: 256, PCI: PCIAddress{Bus: "pci.1"},
			User: network(Forward{TCP, loopback, 2222, 22}, Forward{UDP, netip.MustParseAddr("0.0.0.0"), 5353, 53})},
		{Name: "fast", Driver: "virtio-net-pci-non-transitional", MAC: "52:54:00:0c:a5:76", Queues: 4, QueueSize: 256, PCI: PCIAddress{Bus: "pci.2"}, User: network()},
		{Name: "old", Driver: "e1000", MAC: "52:54:00:0c:a5:77", Queues: 1, PCI: PCIAddress{Bus: "pcie.0", Slot: 9}, User: network()},
	}}
}

// TestUserNetwork: the arguments of a network inside QEMU, whose card is the same as with a tap.
func TestUserNetwork(t *testing.T) {
	user, tap := userMachine(), userMachine()
	for i := range tap.NICs {
		tap.NICs[i].User = nil
	}
	golden.Compare(t, "testdata/user-network.args", Quote("qemu-system-x86_64", user.Args()))
	other := func(args []Arg) []Arg {
		return slices.DeleteFunc(slices.Clone(args), func(a Arg) bool { return a.Flag == "-netdev" })
	}
	if got, want := Strings(other(user.Args())), Strings(other(tap.Args())); !reflect.DeepEqual(got, want) {
		t.Errorf("more than the -netdev differs:\n%q\n%q", got, want)
	}
	if got := user.Inherits(); len(got) != 1 || len(tap.Inherits()) != 1+1+4+1 {
		t.Errorf("QEMU inherits %v, want no tap among it; with taps %v", got, tap.Inherits())
	}
	data, err := json.Marshal(user)
	if err != nil {
		t.Fatal(err)
	}
	var replayed Machine
	if err := json.Unmarshal(data, &replayed); err != nil || !reflect.DeepEqual(&replayed, user) {
		t.Errorf("over JSON it is %+v, %v", replayed, err)
	}
}
