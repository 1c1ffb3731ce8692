package node

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestStartOlder: a VM whose pod was made before an upgrade starts in the launcher
// that the pod has, without what that does not know, or is refused for good.
func TestStartOlder(t *testing.T) {
	unknown := func(m *control.Message) control.Message {
		return control.Message{Error: &control.RemoteError{Description: fmt.Sprintf("unknown command %q", m.Execute)}}
	}
	noAgent := func(*control.Message) control.Message {
		return control.Message{Error: &control.RemoteError{Description: "the guest agent is not connected"}}
	}
	configDrive := v1.Volume{Name: "seed", CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{UserData: "#cloud-config"}}
	for name, c := range map[string]struct {
		guestInfo func(*control.Message) control.Message
		volume    *v1.Volume
		// last is the last command, and what it says or does not say.
		last, has, hasNot string
	}{
		"of now":                    {noAgent, nil, control.CommandStart, `"agent":{`, "\x00"},
		"of now, a ConfigDrive":     {noAgent, &configDrive, control.CommandStart, "configDriveUUID", "\x00"},
		"older":                     {unknown, nil, control.CommandStart, `"machine":{`, "agent"},
		"older, with a ConfigDrive": {unknown, &configDrive, control.CommandReject, "spec.volumes[seed].cloudInitConfigDrive", "\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			launcher := dialLauncher(t, newFolder(t, n.slots, "vm1"))
			launcher.send(control.EventHello, goodHello(), netnsFile(t, podNetwork(t)))
			n.awaitChange(t)
			vmi := &v1.VirtualMachineInstance{}
			vmi.Namespace, vmi.Name, vmi.UID = "ns", "guest", "0a1b2c3d-0000-4000-8000-000000000001"
			vmi.Spec.Domain.Devices.AutoattachPodInterface = ptr.To(false)
			vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))}
			if c.volume != nil {
				vmi.Spec.Volumes = []v1.Volume{*c.volume}
				vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: c.volume.Name}}
			}
			v1.Default(vmi)
			acceleration := NewAcceleration(broken)
			acceleration.PermitEmulation(true)
			r := &Reconciler{Acceleration: acceleration, Sessions: n.sessions}
			started := make(chan error, 1)
			go func() { started <- r.start(t.Context(), vmi, n.sessions.Get(podNamed("a"))) }()
			var last *control.Message
			for last == nil {
				m, err := launcher.conn.Receive()
				if err != nil {
					t.Fatal(err)
				}
				answer := control.Message{Return: json.RawMessage(`{}`)}
				switch m.Execute {
				case control.CommandGuestInfo:
					answer = c.guestInfo(m)
				case control.CommandStart, control.CommandReject:
					last = m
				}
				answer.ID = m.ID
				if err := launcher.conn.Send(answer); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-started; err != nil {
				t.Fatal(err)
			}
			if said := string(last.Data); last.Execute != c.last || !strings.Contains(said, c.has) || strings.Contains(said, c.hasNot) {
				t.Errorf("%s %s; want %s with %q and without %q", last.Execute, said, c.last, c.has, c.hasNot)
			}
		})
	}
}
