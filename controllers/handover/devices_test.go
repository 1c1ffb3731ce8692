package handover

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestEachInterfaceGetsItsCard: each interface gets the card that Multus connected to its network, and no guess is made.
func TestEachInterfaceGetsItsCard(t *testing.T) {
	facts := func(resource string, addresses ...string) qemuargs.DeviceFacts {
		return qemuargs.DeviceFacts{Resource: resource, Addresses: addresses}
	}
	both := facts("r/a", "0000:3b:02.1", "0000:3b:02.2")
	for name, tt := range map[string]struct {
		reply []qemuargs.DeviceFacts
		told  map[string]v1.PCIAddress
		want  map[string]string
		err   error
	}{
		"each its resource":        {[]qemuargs.DeviceFacts{facts("r/a", "0000:3b:02.1"), facts("r/b", "0000:3b:02.2")}, nil, map[string]string{"a": "0000:3b:02.1", "b": "0000:3b:02.2"}, nil},
		"one resource":             {[]qemuargs.DeviceFacts{both, both}, map[string]v1.PCIAddress{"b": "0000:3b:02.1", "a": "0000:3b:02.2"}, map[string]string{"a": "0000:3b:02.2", "b": "0000:3b:02.1"}, nil},
		"one resource, not told":   {[]qemuargs.DeviceFacts{both, both}, nil, nil, ErrDeviceUnknown},
		"one resource, half told":  {[]qemuargs.DeviceFacts{both, both}, map[string]v1.PCIAddress{"a": "0000:3b:02.1"}, nil, ErrDeviceUnknown},
		"the same card twice":      {[]qemuargs.DeviceFacts{both, both}, map[string]v1.PCIAddress{"a": "0000:3b:02.1", "b": "0000:3b:02.1"}, nil, ErrDeviceUnknown},
		"another pod's card":       {[]qemuargs.DeviceFacts{both, both}, map[string]v1.PCIAddress{"a": "0000:ff:02.1", "b": "0000:3b:02.1"}, nil, ErrDeviceUnknown},
		"one card of two missing":  {[]qemuargs.DeviceFacts{facts("r/a", "0000:3b:02.1"), facts("r/b")}, nil, map[string]string{"a": "0000:3b:02.1"}, nil},
		"no address":               {[]qemuargs.DeviceFacts{facts("r/a", "/dev/vfio/1"), facts("r/b")}, nil, nil, control.ErrProtocol},
		"an answer for one of two": {[]qemuargs.DeviceFacts{both}, nil, nil, control.ErrProtocol},
		"too many":                 {[]qemuargs.DeviceFacts{facts("r/a", make([]string, 33)...), facts("r/b")}, nil, nil, control.ErrProtocol},
	} {
		got, err := Devices(control.InspectRequest{Devices: []string{"a", "b"}}, control.InspectReply{Devices: tt.reply}, tt.told)
		if diff := cmp.Diff(tt.want, got); diff != "" || !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, -want +got:\n%s", name, err, diff)
		}
	}
}
