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

// machines has the goldens of package resolve.
const machines = "../qemuargs/resolve/testdata/machines"

// In a launcher's pod, podFolder has the disks, and vncSocket is where the screen is to be seen.
const (
	podFolder = "/var/lib/kubeqemu"
	vncSocket = "/run/kubeqemu/vnc.sock"
)

// elsewhere returns a text with a folder in place of podFolder, and with the socket in that folder.
func elsewhere(text, folder string) string {
	return strings.NewReplacer(podFolder, folder, vncSocket, folder+"/vnc.sock").Replace(text)
}

// inPod undoes elsewhere.
func inPod(text, folder string) string {
	return strings.NewReplacer(folder+"/vnc.sock", vncSocket, folder, podFolder).Replace(text)
}

// golden returns a VMI of package resolve's goldens, and the text of its Machine.
func golden(t *testing.T, name string) (vmi *v1.VirtualMachineInstance, machine string) {
	t.Helper()
	read := func(file string) []byte {
		text, err := os.ReadFile(filepath.Join(machines, name, file))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	vmi = &v1.VirtualMachineInstance{}
	if err := yaml.UnmarshalStrict(read("vmi.yaml"), vmi); err != nil {
		t.Fatal(err)
	}
	return vmi, string(read("machine.json"))
}

// machine decodes a Machine, in a folder in place of the pod's.
func machine(t *testing.T, text, folder string) (m qemuargs.Machine) {
	t.Helper()
	if err := json.Unmarshal([]byte(elsewhere(text, folder)), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// imageQEMU writes a script that runs the QEMU of the launcher's image.
func imageQEMU(t *testing.T, file string) string {
	t.Helper()
	root, err := filepath.Abs("../_output/cache/launcher-root")
	if err == nil {
		_, err = os.Stat(root)
	}
	if err != nil {
		t.Fatalf("find the launcher's image (run make image-launcher): %v", err)
	}
	testkit.Program(t, file, fmt.Appendf(nil, `#!/bin/sh
libraries=%[1]s/usr/lib/x86_64-linux-gnu
QEMU_MODULE_DIR=$libraries/qemu exec %[1]s/usr/lib64/ld-linux-x86-64.so.2 --inhibit-cache --library-path $libraries %[1]s/usr/bin/qemu-system-x86_64 \
	-L %[1]s/usr/share/qemu -L %[1]s/usr/share/seabios "$@"
`, root))
	return file
}

// makeImages makes the images of a launcher's Machine. That of the first disk is the boot-sector guest's, and the
// others are empty.
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
		out, err := exec.Command(launchertest.Program(v.T, "qemu-img"), "convert", "-f", "raw", "-O", string(d.Image.Format),
			raw, d.Image.Path).CombinedOutput()
		if err != nil {
			v.Fatalf("qemu-img: %v: %s", err, out)
		}
	}
}

// reported returns the Machine that a launcher reports, as it would be in a pod.
func reported(v *vm) string {
	v.Helper()
	text, err := json.MarshalIndent(v.state().Machine, "", "  ")
	v.must(err)
	return inPod(string(text), v.dir) + "\n"
}

// TestMovedGuestHasTheSameMachine: a guest with disks on each bus, a tablet on USB or a virtio screen moves, and the
// target has the same Machine, byte for byte.
func TestMovedGuestHasTheSameMachine(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"cdrom-sata", "disk-serial-scsi", "disks-many", "input-usb", "video-virtio"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vmi, text := golden(t, name)
			m := &move{}
			program := func(c *Config) { c.QEMU = imageQEMU(t, filepath.Join(filepath.Dir(c.Images), "qemu")) }
			m.source, m.target = launch(t, program), launch(t, program)
			m.source.request.Machine = machine(t, text, m.source.dir)
			makeImages(m.source)
			m.source.boot()
			m.source.answers("1W", "1w")

			// As virt-handlers do it: the target has the source's Machine, in its own pod.
			arrived, err := resolve.Arrival(vmi,
				resolve.Origin{Machine: *m.source.state().Machine, QEMUVersion: m.source.conn.Hello.QEMUVersion},
				resolve.Host{Accelerator: qemuargs.TCG, QEMUVersion: m.target.conn.Hello.QEMUVersion,
					ContainerDisks: imagesOf(vmi, m.source.state().Machine)})
			m.target.must(err)
			replayed, err := json.Marshal(arrived)
			m.target.must(err)
			m.target.request.Machine = machine(t, inPod(string(replayed), m.source.dir), m.target.dir)
			makeImages(m.target)
			m.target.request.Incoming = true
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
				if diff := cmp.Diff(text, machine); diff != "" {
					t.Errorf("the %s has another Machine:\n%s", side, diff)
				}
			}
		})
	}
}

// imagesOf returns what the target's launcher finds of a VMI's container disks, which are where the source has them.
func imagesOf(vmi *v1.VirtualMachineInstance, source *qemuargs.Machine) map[string]qemuargs.ImageFacts {
	images := map[string]qemuargs.ImageFacts{}
	for _, d := range source.Disks {
		if v := vmi.Spec.Volume(d.Name); v == nil || v.ContainerDisk == nil {
			continue
		}
		facts := qemuargs.ImageFacts{Path: d.Image.Path, Format: d.Image.Format, Direct: d.Image.Direct}
		if d.Overlay != nil {
			facts.VirtualSize = d.Overlay.VirtualSize
		}
		images[d.Name] = facts
	}
	return images
}
