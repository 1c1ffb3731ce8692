package launcher

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// fixtures are those of package resolve.
const fixtures = "../qemuargs/resolve/testdata"

// In a launcher's pod, podFolder has the disks, and vncSocket is where the screen is to be seen.
const (
	podFolder = "/var/lib/kubeqemu"
	vncSocket = "/run/kubeqemu/vnc.sock"
)

// elsewhere has a folder in place of podFolder, and the socket in there.
func elsewhere(text, folder string) string {
	return strings.NewReplacer(podFolder, folder, vncSocket, folder+"/vnc.sock").Replace(text)
}

// inPod undoes elsewhere.
func inPod(text, folder string) string {
	return strings.NewReplacer(folder+"/vnc.sock", vncSocket, folder, podFolder).Replace(text)
}

// earlier is a Machine of the first version of Kubeqemu whose guests could move, and the shell command that this version started QEMU with.
type earlier struct {
	text, command string
	vmi           v1.VirtualMachineInstance
}

func newEarlier(t *testing.T, name string) *earlier {
	t.Helper()
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(fixtures, path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	e := &earlier{text: read("earlier/" + name + ".json"), command: read("earlier/" + name + ".args")}
	if err := yaml.UnmarshalStrict([]byte(read("machines/"+name+"/vmi.yaml")), &e.vmi); err != nil {
		t.Fatal(err)
	}
	return e
}

// machine decodes a Machine, in a folder in place of the pod's.
func machine(t *testing.T, text, folder string) (m qemuargs.Machine) {
	t.Helper()
	if err := json.Unmarshal([]byte(elsewhere(text, folder)), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// imageQEMU writes a script that runs the QEMU of the launcher's image, with arguments in the shell's language.
func imageQEMU(t *testing.T, file, arguments string) string {
	t.Helper()
	root, err := filepath.Abs("../_output/cache/launcher-root")
	if err == nil {
		_, err = os.Stat(root)
	}
	if err != nil {
		t.Fatalf("find the launcher's image (run make image-launcher): %v", err)
	}
	script := fmt.Sprintf(`#!/bin/sh
libraries=%[1]s/usr/lib/x86_64-linux-gnu
qemu() { QEMU_MODULE_DIR=$libraries/qemu exec %[1]s/usr/lib64/ld-linux-x86-64.so.2 --inhibit-cache --library-path $libraries %[1]s/usr/bin/qemu-system-x86_64 -L %[1]s/usr/share/qemu -L %[1]s/usr/share/seabios "$@"; }
[ "$1" != -version ] || qemu -version
qemu %[2]s
`, root, arguments)
	testkit.Program(t, file, []byte(script))
	return file
}

// makeImages makes the images of a launcher's Machine. That of the first disk is the boot-sector guest's, and the others are empty.
func makeImages(v *vm) {
	v.Helper()
	for i, d := range v.request.Machine.Disks {
		if d.Image.Create > 0 {
			continue
		}
		v.must(os.MkdirAll(filepath.Dir(d.Image.Path), 0o755))
		raw := v.path("raw")
		launchertest.Guest(v.T, raw)
		size := int64(1 << 20)
		if d.Overlay != nil {
			size = d.Overlay.VirtualSize
		}
		v.must(os.Truncate(raw, size))
		if i > 0 {
			v.must(os.Truncate(raw, 0), os.Truncate(raw, size))
		}
		out, err := exec.Command(launchertest.Program(v.T, "qemu-img"), "convert", "-f", "raw", "-O", string(d.Image.Format), raw, d.Image.Path).CombinedOutput()
		if err != nil {
			v.Fatalf("qemu-img: %v: %s", err, out)
		}
	}
}

// reported is the Machine that a launcher reports, as it would be in a pod.
func reported(v *vm) string {
	v.Helper()
	text, err := json.MarshalIndent(v.state().Machine, "", "  ")
	v.must(err)
	return inPod(string(text), v.dir) + "\n"
}

// TestEarlierMachineMoves: a guest whose QEMU was started by the first version of Kubeqemu whose guests could move, with the Machine and the arguments
// of that version, moves to a launcher of this version. The target has the same Machine, byte for byte.
func TestEarlierMachineMoves(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"minimal", "cdrom-sata", "disk-serial-scsi", "disks-many", "input-usb", "video-virtio"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEarlier(t, name)
			m := &move{}
			m.source = launch(t, func(c *Config) {
				dir := filepath.Dir(c.Images)
				_, arguments, _ := strings.Cut(e.command, " ")
				c.QEMU = imageQEMU(t, filepath.Join(dir, "qemu"), elsewhere(arguments, dir))
			})
			m.target = launch(t, func(c *Config) { c.QEMU = imageQEMU(t, filepath.Join(filepath.Dir(c.Images), "qemu"), `"$@"`) })
			m.source.request.Machine = machine(t, e.text, m.source.dir)
			makeImages(m.source)
			m.source.boot()
			m.source.answers("1W", "1w")

			// As virt-handlers do it: the target has the source's Machine, in its own pod.
			version := m.target.conn.Hello.QEMUVersion
			arrived, err := resolve.Replay(&e.vmi, resolve.Origin{Machine: *m.source.state().Machine, QEMUVersion: m.source.conn.Hello.QEMUVersion},
				resolve.Host{Accelerator: qemuargs.TCG, QEMUVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(arrived)
			m.target.must(err)
			m.target.request.Machine = machine(t, inPod(string(text), m.source.dir), m.target.dir)
			makeImages(m.target)
			m.target.request.Incoming = true
			m.target.request.Needs = m.target.request.NeededFeatures()
			m.target.must(m.target.call(control.CommandStart, m.target.request, nil))
			m.target.until(control.StateReceiving)
			m.connect(control.CommandOpenChannel, control.CommandOpenChannel, nil)
			for _, d := range arrived.Disks {
				if d.Overlay != nil || d.Image.Create > 0 {
					m.connect(control.CommandMirrorDisk, control.CommandExportDisk, control.DiskRequest{Disk: d.Name})
				}
			}
			m.begin(limits)
			m.target.until(control.StateReceived)
			m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
			m.target.until(control.StateRunning)
			machines := map[string]string{"source": reported(m.source), "target": reported(m.target)}
			m.source.must(m.source.call(control.CommandRelease, nil, nil))
			m.source.expectEnd(control.ReasonMigrated, "another pod")
			m.target.answers("2W", "2w")
			for side, machine := range machines {
				if diff := cmp.Diff(e.text, machine); diff != "" {
					t.Errorf("the %s has another Machine:\n%s", side, diff)
				}
			}
		})
	}
}
