package node

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// demanding is a VMI that needs every feature that a start can need.
func demanding() *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name, vmi.UID = "ns", "guest", "0a1b2c3d-0000-4000-8000-000000000001"
	vmi.Annotations = map[string]string{v1.KeepLauncherAnnotation: "true"}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))}
	vmi.Spec.StartStrategy = v1.StartStrategyPaused
	vmi.Spec.Volumes = []v1.Volume{{Name: "seed", CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{UserData: "#cloud-config"}}}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "seed"}}
	vmi.Spec.AccessCredentials = []v1.AccessCredential{{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{
		Source:            v1.SSHPublicKeyAccessCredentialSource{Secret: &v1.AccessCredentialSecretSource{SecretName: "keys"}},
		PropagationMethod: v1.SSHPublicKeyAccessCredentialPropagationMethod{ConfigDrive: &v1.ConfigDriveSSHPublicKeyAccessCredentialPropagation{}}}}}
	vmi.Spec.Domain.Clock = &v1.Clock{Timezone: "Asia/Kathmandu"}
	vmi.Spec.Domain.Chassis = &v1.Chassis{Asset: "rack-1"}
	vmi.Spec.Domain.CPU = &v1.CPU{Features: []v1.CPUFeature{{Name: "aes"}}}
	v1.Default(vmi)
	return vmi
}

// links are the names of the links in a network namespace.
func links(t *testing.T, netns ns.NetNS) []string {
	t.Helper()
	var names []string
	err := netns.Do(func(ns.NetNS) error {
		all, err := netlink.LinkList()
		for _, l := range all {
			names = append(names, l.Attrs().Name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestLauncherIsToldWhichFeatureItLacks: a launcher with one feature less than a VM needs is told
// that by the feature's name, before anything is wired; with all of them it is started.
func TestLauncherIsToldWhichFeatureItLacks(t *testing.T) {
	needs := []string{control.FeatureConsole, control.FeatureVNC, control.FeatureAgent, control.FeaturePause, control.FeatureConfigDrive, control.FeatureCredentials, control.FeatureKeep,
		control.FeatureClock, control.FeatureBoard, control.FeatureRequired}
	for _, missing := range append(needs, "") {
		t.Run(missing, func(t *testing.T) {
			n, netns := newNode(t), nodetest.PodNetwork(t)
			launcher := n.Dial(t, "vm1")
			hello := nodetest.Hello()
			hello.Features = slices.DeleteFunc(control.Features(), func(f string) bool { return f == missing })
			launcher.Send(control.EventHello, hello, nodetest.NetNSFile(t, netns))
			n.Await(t)
			acceleration := accelerator.New(broken)
			acceleration.PermitEmulation(true)
			r := &Reconciler{Chooser: acceleration, Clock: clock.RealClock{}, Sessions: n.sessions, Events: events.NewFakeRecorder(10)}
			before := links(t, netns)
			started := make(chan error, 1)
			go func() { started <- r.start(t.Context(), demanding(), n.sessions.Get(nodetest.Pod("a")), false) }()
			last := answerUntil(t, launcher, control.CommandStart, control.CommandReject)
			if err := <-started; err != nil {
				t.Fatal(err)
			}
			wired := !slices.Equal(before, links(t, netns))
			if missing == "" {
				var request control.StartRequest
				if err := control.Decode(last.Data, &request); err != nil || last.Execute != control.CommandStart || !wired || !slices.Equal(request.Needs, needs) {
					t.Errorf("%s with the needs %q, wired %v: %v", last.Execute, request.Needs, wired, err)
				}
				if offset := request.Machine.Clock.Offset; offset != 20700 { // Nepal's time has been 5:45 hours ahead of UTC since 1986
					t.Errorf("the clock is %d seconds ahead of UTC", offset)
				}
				var names []string
				for _, f := range last.Files {
					names = append(names, f.Name)
				}
				if want := []string{"tap/default/0", "dhcp/default"}; !slices.Equal(names, want) {
					t.Errorf("it came with the files %q, want %q", names, want)
				}
				return
			}
			if last.Execute != control.CommandReject || !strings.Contains(string(last.Data), `\"`+missing+`\"`) || wired {
				t.Errorf("%s %s, wired %v", last.Execute, last.Data, wired)
			}
		})
	}
}

// TestConfigVolumesNeedLauncher: a launcher that makes no disks of config volumes is not asked about any, and is told what
// it lacks.
func TestConfigVolumesNeedLauncher(t *testing.T) {
	n, netns := newNode(t), nodetest.PodNetwork(t)
	launcher := n.Dial(t, "vm1")
	hello := nodetest.Hello()
	hello.Features = slices.DeleteFunc(control.Features(), func(f string) bool { return f == control.FeatureConfig })
	launcher.Send(control.EventHello, hello, nodetest.NetNSFile(t, netns))
	n.Await(t)
	acceleration := accelerator.New(broken)
	acceleration.PermitEmulation(true)
	r := &Reconciler{Chooser: acceleration, Sessions: n.sessions, Events: events.NewFakeRecorder(10), Clock: clock.RealClock{}}
	vmi := demanding()
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "files", ConfigMap: &v1.ConfigMapVolumeSource{}})
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: "files"})
	v1.Default(vmi)
	started := make(chan error, 1)
	go func() { started <- r.start(t.Context(), vmi, n.sessions.Get(nodetest.Pod("a")), false) }()
	first := answerUntil(t, launcher, control.CommandInspect, control.CommandStart, control.CommandReject)
	if first.Execute != control.CommandReject || !strings.Contains(string(first.Data), `needs the feature \"config-volumes\", which this pod's virt-launcher does not have`) {
		t.Errorf("%s %s", first.Execute, first.Data)
	}
	if first.Execute == control.CommandReject {
		if err := <-started; err != nil {
			t.Fatal(err)
		}
	}
}

// answerUntil answers what is asked with nothing to say, up to one of the commands.
func answerUntil(t *testing.T, launcher *nodetest.Launcher, commands ...string) *control.Message {
	t.Helper()
	for {
		m, err := launcher.Conn.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if err := launcher.Conn.Send(control.Message{ID: m.ID, Return: json.RawMessage(`{}`)}); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(commands, m.Execute) {
			return m
		}
		m.Close()
	}
}
