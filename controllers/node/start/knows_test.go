package start

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// links returns the names of the links in a network namespace.
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

// without returns the commands of this version without a field of a command's arguments, and what is below that field.
func without(command, field string) control.Commands {
	out := maps.Clone(control.KnownCommands())
	out[command] = slices.DeleteFunc(slices.Clone(out[command]),
		func(f string) bool { return f == field || strings.HasPrefix(f, field+".") })
	return out
}

// startDemanding starts a demanding guest with a launcher, and returns the last that the launcher was asked, and
// whether the guest's network was wired.
func startDemanding(t *testing.T, commands control.Commands,
	change func(*v1.VirtualMachineInstance)) (last *control.Message, wired bool) {
	t.Helper()
	n, netns, vmi := newNode(t), nodetest.PodNetwork(t), nodetest.Demanding()
	change(vmi)
	v1.Default(vmi)
	launcher := n.Dial(t, "vm1")
	launcher.Knows(commands, nodetest.NetNSFile(t, netns))
	n.Await(t)
	s := newStarter(nodetest.Broken())
	before := links(t, netns)
	started := make(chan error, 1)
	go func() { started <- s.Start(t.Context(), vmi, n.sessions.Get(nodetest.Pod("a")), false) }()
	last = launcher.AnswerUntil(control.CommandStart, control.CommandReject)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	return last, !slices.Equal(before, links(t, netns))
}

// TestLauncherIsToldWhatItDoesNotKnow: a launcher that does not know a field which a VM needs is told that by the
// field's name, before anything is wired.
func TestLauncherIsToldWhatItDoesNotKnow(t *testing.T) {
	for _, field := range []string{"machine.serial", "machine.graphics", "machine.agent", "paused",
		"cloudInit.configDriveUUID", "cloudInit.accessCredentials",
		"keepLauncher", "machine.clock.offset", "machine.chassis", "machine.cpu.required"} {
		t.Run(field, func(t *testing.T) {
			last, wired := startDemanding(t, without(control.CommandStart, field), func(*v1.VirtualMachineInstance) {})
			want := fmt.Sprintf("needs %q in the command \"start\", which this pod's virt-launcher does not know", field)
			if !rejects(last, want) || wired {
				t.Errorf("%s %s, wired %v", last.Execute, last.Data, wired)
			}
		})
	}
}

// TestLauncherThatKnowsNoLeasesIsToldSo: after the network was wired, which says what the guest is told.
func TestLauncherThatKnowsNoLeasesIsToldSo(t *testing.T) {
	last, _ := startDemanding(t, without(control.CommandStart, "dhcp"), func(*v1.VirtualMachineInstance) {})
	if !rejects(last, `needs "dhcp" in the command "start"`) {
		t.Errorf("%s %s", last.Execute, last.Data)
	}
}

// TestLauncherIsStarted: a launcher that knows all that a VM needs is started, with the files that it needs.
func TestLauncherIsStarted(t *testing.T) {
	last, wired := startDemanding(t, control.KnownCommands(), func(*v1.VirtualMachineInstance) {})
	var request control.StartRequest
	if err := control.Decode(last.Data, &request); err != nil || last.Execute != control.CommandStart || !wired {
		t.Errorf("%s, wired %v: %v", last.Execute, wired, err)
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
}

// TestUnknownQuestionsRejectTheVM: a launcher that does not know a question about the pod is told so.
func TestUnknownQuestionsRejectTheVM(t *testing.T) {
	withFiles := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "files", ConfigMap: &v1.ConfigMapVolumeSource{}})
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: "files"})
	}
	last, wired := startDemanding(t, without(control.CommandInspect, "configVolumes"), withFiles)
	if !rejects(last, `needs "configVolumes" in the command "inspect"`) || wired {
		t.Errorf("%s %s, wired %v", last.Execute, last.Data, wired)
	}
}
