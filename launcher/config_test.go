package launcher

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// configFolders gives a launcher folders for config volumes and for what is made of them.
func configFolders(t *testing.T) func(*Config) {
	dir := t.TempDir()
	return func(c *Config) {
		c.Config, c.Run = filepath.Join(dir, "config"), filepath.Join(dir, "run")
		for _, folder := range []string{c.Config, c.Run} {
			if err := os.Mkdir(folder, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// fill writes a file of a config volume.
func (v *vm) fill(volume, file, text string) {
	v.Helper()
	v.must(os.MkdirAll(filepath.Join(v.Config.Config, volume), 0o755),
		os.WriteFile(filepath.Join(v.Config.Config, volume, file), []byte(text), 0o644))
}

// inspectConfig makes the launcher make disks of config volumes, and returns what it says of them.
func (v *vm) inspectConfig(volumes ...control.ConfigVolume) []qemuargs.ConfigFacts {
	v.Helper()
	var reply control.InspectReply
	v.must(v.call(control.CommandInspect, control.InspectRequest{ConfigVolumes: volumes}, &reply))
	if len(reply.ConfigVolumes) != len(volumes) {
		v.Fatalf("%d answers for %d volumes", len(reply.ConfigVolumes), len(volumes))
	}
	return reply.ConfigVolumes
}

// TestConfigVolumes: the launcher makes disks of config volumes in a folder of its own, and says how large each is
// or what is wrong with its volume.
func TestConfigVolumes(t *testing.T) {
	t.Parallel()
	v := launch(t, configFolders(t))
	v.fill("settings", "greeting", "hello")
	v.fill("answers", "UNATTEND.xml", "<unattend/>")
	v.fill("large", "a", strings.Repeat("x", 1<<20+1))
	got := v.inspectConfig(control.ConfigVolume{Volume: "settings", Label: "cfgdata"},
		control.ConfigVolume{Volume: "settings", Label: "no label"},
		control.ConfigVolume{Volume: "settings", Label: "x", AnswerFile: true},
		control.ConfigVolume{Volume: "answers", Label: "x", AnswerFile: true},
		control.ConfigVolume{Volume: "large", Label: "x"}, control.ConfigVolume{Volume: "none", Label: "x"},
		control.ConfigVolume{Volume: "../../etc", Label: "x"})
	for i, want := range []string{"", "label", "neither autounattend.xml nor unattend.xml", "", "larger than 1 MiB",
		"no such file", "no such file"} {
		if g := got[i]; (want == "") != (g.Error == "") || !strings.Contains(g.Error, want) || (g.Size > 0) != (want == "") {
			t.Errorf("%d: %+v, want the error %q", i, g, want)
		}
	}
	made, err := os.ReadDir(v.Config.Run)
	v.must(err)
	names := ""
	for _, m := range made {
		names += m.Name() + " "
	}
	if names != "config-answers.iso config-settings.iso " {
		t.Errorf("the disks made are %s", names)
	}
	if image, err := os.ReadFile(filepath.Join(v.Config.Run, "config-settings.iso")); err != nil ||
		int64(len(image)) != got[0].Size || !bytes.Contains(image, []byte("hello")) {
		t.Errorf("a disk of %d bytes (%v), want %d", len(image), err, got[0].Size)
	}
}

// packed returns a disk of files at a path.
func packed(name, path string, size int64, driver qemuargs.DiskDriver) qemuargs.Disk {
	d := qemuargs.Disk{Name: name, Driver: driver, ReadOnly: driver != qemuargs.IDEDisk,
		Image: qemuargs.Image{Path: path, Format: qemuargs.Raw, Packed: size}}
	switch driver {
	case qemuargs.VirtioBlk:
		d.PCI = &qemuargs.PCIAddress{Bus: "pci.2"}
	case qemuargs.IDECD:
		d.Bus = "ide.1"
	default:
		d.Bus = "ide.2"
	}
	return d
}

// TestConfigDiskOfOtherSize: QEMU is not started with a disk that is not the one the machine was made for.
func TestConfigDiskOfOtherSize(t *testing.T) {
	t.Parallel()
	v := launch(t, configFolders(t))
	v.fill("files", "greeting", "hello")
	facts := v.inspectConfig(control.ConfigVolume{Volume: "files", Label: "x"})[0]
	v.request.Machine.Disks = append(v.request.Machine.Disks,
		packed("files", filepath.Join(v.Config.Run, "config-files.iso"), facts.Size+2048, qemuargs.VirtioBlk))
	v.must(v.call(control.CommandStart, v.request, nil))
	v.expectEnd(control.ReasonStartFailed, fmt.Sprintf("the image has %d bytes", facts.Size))
}

// TestMigrateConfigDisks: disks of files arrive as they are at the source, read-only ones and a hard disk that is
// not, whatever the target's volume holds.
func TestMigrateConfigDisks(t *testing.T) {
	t.Parallel()
	m := &move{source: launch(t, configFolders(t))}
	drivers := map[string]qemuargs.DiskDriver{"a": qemuargs.VirtioBlk, "b": qemuargs.IDECD, "c": qemuargs.IDEDisk}
	machine := &m.source.request.Machine
	machine.SATA = true
	for _, name := range []string{"a", "b", "c"} {
		m.source.fill(name, "greeting", strings.Repeat("of the source "+name, 30_000))
		facts := m.source.inspectConfig(control.ConfigVolume{Volume: name, Label: name})[0]
		machine.Disks = append(machine.Disks,
			packed(name, filepath.Join(m.source.Config.Run, "config-"+name+".iso"), facts.Size, drivers[name]))
	}
	m.source.boot()
	if err := m.source.call(control.CommandInspect,
		control.InspectRequest{ConfigVolumes: []control.ConfigVolume{{Volume: "a", Label: "a"}}}, nil); err == nil {
		t.Error("a disk that QEMU has is made anew")
	}
	m.target = launch(t, configFolders(t))
	target := *machine
	target.Disks = append([]qemuargs.Disk(nil), machine.Disks...)
	for i := range target.Disks[1:] {
		d := &target.Disks[i+1]
		m.target.fill(d.Name, "greeting", "of the target")
		d.Image.Path = filepath.Join(m.target.Config.Run, filepath.Base(d.Image.Path))
	}
	m.target.request.Machine, m.target.request.Incoming = target, true
	m.target.must(m.target.call(control.CommandStart, m.target.request, nil))
	m.target.until(control.StateReceiving)
	m.connect(control.CommandOpenChannel, control.CommandOpenChannel, nil)
	for _, name := range []string{"a", "b", "c"} {
		m.connect(control.CommandMirrorDisk, control.CommandExportDisk, control.DiskRequest{Disk: name})
	}
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.until(control.StateMoved)
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	for i := range target.Disks[1:] {
		sent, err := os.ReadFile(machine.Disks[i+1].Image.Path)
		m.source.must(err)
		arrived, err := os.ReadFile(target.Disks[i+1].Image.Path)
		m.target.must(err)
		if !bytes.Equal(sent, arrived) || !bytes.Contains(arrived, []byte("of the source")) {
			t.Errorf("disk %s differs", target.Disks[i+1].Name)
		}
	}
	m.target.answers("2W", "2w")
}
