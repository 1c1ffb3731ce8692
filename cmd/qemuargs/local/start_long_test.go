//go:build long

package local

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// mostOfBare is how long a start may take, as a multiple of that of bare QEMU.
const mostOfBare = 1.1

const smallVM = `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: small}
spec:
  domain:
    memory: {guest: 128Mi}
    devices:
      autoattachGraphicsDevice: false
      rng: {}
      disks: [{name: root, disk: {bus: virtio}}]
      interfaces: [{name: default, masquerade: {}}]
  networks: [{name: default, pod: {}}]
  volumes: [{name: root, containerDisk: {image: registry.example/small:v1}}]
`

// TestStartTime: from “start” to running guest CPUs, against bare QEMU with the same arguments.
func TestStartTime(t *testing.T) {
	const rounds = 15
	dir, err := os.MkdirTemp("", "start")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	launchertest.Guest(t, dir+"/guest.img")
	qemu, err := findQEMU(t.Context(), "qemu-system-x86_64", dir+"/cache")
	if err != nil {
		t.Fatal(err)
	}
	v := readyVM(t, dir, smallVM, Options{Accelerator: qemuargs.TCG, Images: map[string]string{"root": dir + "/guest.img"}})
	v.qemu = qemu
	host, err := v.host(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, errs := resolve.Machine(v.vmi, host)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var ours, bare []time.Duration
	for round := range rounds + 1 {
		a, b, c, d := timeLaunched(t, v, m), timeBare(t, v, m), timeBare(t, v, m), timeLaunched(t, v, m)
		if round > 0 { // the first fills the page cache
			ours, bare = append(ours, (a+d)/2), append(bare, (b+c)/2)
		}
	}
	slices.Sort(ours)
	slices.Sort(bare)
	ratio := float64(ours[rounds/2]) / float64(bare[rounds/2])
	t.Logf("medians: run %v, bare QEMU %v: %.3f ×", ours[rounds/2], bare[rounds/2], ratio)
	if ratio > mostOfBare {
		t.Errorf("a start takes %.3f × that of bare QEMU, at most %.2f × is wanted", ratio, mostOfBare)
	}
}

// timeLaunched has a launcher of its own start the machine.
func timeLaunched(t *testing.T, v *vm, m *qemuargs.Machine) time.Duration {
	t.Helper()
	os.Remove(v.folder.below(layout.SlotSocket))
	handler, err := listen(v.folder.below(layout.SlotSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer handler.close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan control.Termination, 1)
	messages, err := os.Create(filepath.Join(v.folder.path, "messages"))
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Close()
	go func() { ended <- launcher.Run(ctx, v.config(nil, messages)) }()
	defer func() { cancel(); <-ended }()
	request, err := v.request(m)
	if err == nil {
		err = handler.accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := handler.call(ctx, control.CommandStart, request); err != nil {
		t.Fatal(err)
	}
	for testkit.Receive(t, handler.states, "the guest") != control.StateRunning {
	}
	return time.Since(begin)
}

// timeBare execs QEMU and tells it to let the guest run, by the least that can do so.
func timeBare(t *testing.T, v *vm, m *qemuargs.Machine) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	request := &control.StartRequest{Machine: *m}
	if err := v.folder.folders().Prepare(t.Context(), request, map[string]*os.File{}, 0, nil); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	q, err := process.StartQEMU(v.qemu.path, m, false, map[string]*os.File{}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		q.End()
		q.QMP.Close()
		q.Serial.Close()
		q.Agent.Close()
	}()
	q.QMP.SetDeadline(time.Now().Add(testkit.Patience))
	lines := bufio.NewReader(q.QMP)
	for _, command := range []string{"", "qmp_capabilities", "cont"} {
		if command != "" {
			fmt.Fprintf(q.QMP, "{\"execute\":%q}\n", command)
		}
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("%s: %v; QEMU: %s", command, err, q.Said())
			}
			if command == "" || strings.Contains(line, `"return"`) {
				break
			}
		}
	}
	return time.Since(begin)
}
