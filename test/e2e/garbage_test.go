package e2e

import (
	"crypto/md5"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/serial"
)

// garbageImage is busybox and the program ./garbage, which only these tests use.
const garbageImage = "localhost/kubeqemu-e2e/garbage:1"

// garbageManifest is a pod that hands the program to guests.
const garbageManifest = `
apiVersion: v1
kind: Pod
metadata: {name: garbage}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: program
    image: ` + garbageImage + `
    imagePullPolicy: Never
    command: [busybox, nc, -ll, -p, "8081", -e, busybox, cat, /bin/garbage]
`

// garbage is the program ./garbage: on this machine, and in a pod that hands it out.
type garbage struct {
	path, sum string
	pod       string // its address
}

func makeGarbage(t *testing.T, ns string) garbage {
	t.Helper()
	folder := t.TempDir()
	g := garbage{path: filepath.Join(folder, "garbage")}
	archive := filepath.Join(folder, "image.tar")
	for _, command := range [][]string{
		{"env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", g.path, "./garbage"},
		{"cluster", "pack-image", garbageImage, "-o", archive, "/bin/busybox:/bin/busybox", g.path + ":/bin/garbage"},
		{"cluster", "load-image", "--name", os.Getenv(clusterVariable), archive},
	} {
		if _, err := output("", command[0], command[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(g.path)
	if err != nil {
		t.Fatal(err)
	}
	g.sum = fmt.Sprintf("%x", md5.Sum(program))
	apply(t, ns, garbageManifest)
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/garbage", "--timeout=600s")
	g.pod = get[corev1.Pod](t, "-n", ns, "pod", "garbage").Status.PodIP
	return g
}

// takes brings the program into the guest, and returns its shell.
func (v vmi) takes(g garbage) *transcript {
	v.t.Helper()
	v.log().shows(`tiny: eth0 `)
	shell := v.shell()
	err := poll(func() error {
		if out, _ := shell.run("nc " + g.pod + " 8081 </dev/null >/garbage; chmod +x /garbage; md5sum /garbage"); !strings.HasPrefix(out, g.sum) {
			return fmt.Errorf("the program is %q in guest %s, want %s", out, v.name, g.sum)
		}
		return nil
	})
	if err != nil {
		v.t.Fatal(err)
	}
	return shell
}

// watched is what a hostile guest must not reach: virt-handler, and a neighbour.
type watched struct {
	t         *testing.T
	guest     vmi
	neighbour vmi
	quiet     *transcript
	handler   nodeProcess
	rss       int
	qemu      nodeProcess
	logged    int
	begin     time.Time
}

func watchOver(t *testing.T, guest, neighbour vmi) *watched {
	t.Helper()
	w := &watched{t: t, guest: guest, neighbour: neighbour, quiet: neighbour.shell(), qemu: neighbour.qemu(), begin: time.Now()}
	w.handler, w.rss = handlerUse(t)
	w.logged = w.podLog()
	return w
}

// podLog is how much the guest's pod has in its log, in bytes.
func (w *watched) podLog() int {
	w.t.Helper()
	out, err := onNode(`cat /var/log/pods/"$1"_virt-launcher-"$2"-*/compute/*.log* | wc -c`, w.guest.namespace, w.guest.name)
	n, numberErr := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || numberErr != nil {
		w.t.Fatalf("measure the log of %s: %q, %v", w.guest.name, out, err)
	}
	return n
}

// answers looks whether the neighbour does, soon.
func (w *watched) answers() {
	w.t.Helper()
	asked := time.Now()
	if out, _ := w.quiet.run("echo $((6 * 7))"); out != "42\n" {
		w.t.Errorf("the neighbour's console answers %q", out)
	}
	if err := nodeEchoes(w.neighbour.get().Status.Interfaces[0].IP, 7); err != nil {
		w.t.Errorf("the neighbour: %v", err)
	}
	if took := time.Since(asked); took > 10*time.Second {
		w.t.Errorf("the neighbour took %s to answer", took)
	}
}

// What QEMU and the launcher may say at once, and each second (launcher/podlog),
// with what the container runtime adds to each line.
const (
	saidAtOnce    = 256 << 10
	saidPerSecond = 8 << 10
)

// saysAtMost is how much a pod's log may have grown after so many seconds. What a
// guest's own kernel writes to the serial port is bounded by package serial, and the
// container runtime adds about as much to each of its short lines.
func saysAtMost(seconds int, kernelSpeaks bool) int {
	most := saidAtOnce + seconds*saidPerSecond
	if kernelSpeaks {
		most += 2 * (serial.LogBurst + seconds*serial.LogBytesPerSecond)
	}
	return most
}

// unharmed looks at all of it; kernelSpeaks says that the guest's kernel has crashed,
// and may report that without end.
func (w *watched) unharmed(kernelSpeaks bool) {
	w.t.Helper()
	if now, rss := handlerUse(w.t); now.Start != w.handler.Start || rss > w.rss+floodRSS {
		w.t.Errorf("virt-handler is process %d with %d KiB RSS, was %d with %d", now.PID, rss, w.handler.PID, w.rss)
	}
	if now := w.neighbour.qemu(); now.PID != w.qemu.PID || now.Start != w.qemu.Start {
		w.t.Errorf("the neighbour's QEMU is %d, was %d", now.PID, w.qemu.PID)
	}
	w.neighbour.awaitReady("GuestRunning")
	w.answers()
	seconds := int(time.Since(w.begin).Seconds()) + 1
	if grown := w.podLog() - w.logged; grown > saysAtMost(seconds, kernelSpeaks) {
		w.t.Errorf("the guest's log has grown by %d bytes within %d s", grown, seconds)
	}
}

// crashed are the words of a Linux kernel that its own rings have led devices to write
// over. Its guest may say nothing more, or the same for ever.
var crashed = regexp.MustCompile(`Kernel panic|BUG: |Oops: `)

// TestVirtioGarbage: a guest that writes junk into its devices' registers and
// rings harms itself only: the device gives up, and its log says why, or QEMU
// does, and the VMI says so, or the guest's own kernel crashes.
func TestVirtioGarbage(t *testing.T) {
	t.Parallel()
	seconds := 20
	if long() {
		seconds = 120
	}
	ns := namespace(t)
	program := makeGarbage(t, ns)
	guest, neighbour := create(t, ns, tiny("hostile", func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Rng = &v1.Rng{}
	})), create(t, ns, tiny("neighbour"))
	guest.await(v1.Running)
	neighbour.await(v1.Running)
	shell := guest.takes(program)
	devices, status := shell.run(`for d in /sys/bus/pci/devices/*; do [ "$(cat $d/vendor)" = 0x1af4 ] && basename $d; done`)
	if status != 0 && devices == "" || len(strings.Fields(devices)) < 4 {
		t.Fatalf("the guest's virtio devices are %q (%d)", devices, status)
	}
	w := watchOver(t, guest, neighbour)
	shell.send(fmt.Sprintf("/garbage virtio %d %s\n", seconds, strings.Join(strings.Fields(devices), " ")))
	ended := false
	for end := time.Now().Add(time.Duration(seconds+60) * time.Second); !ended && time.Now().Before(end); time.Sleep(time.Second) {
		w.answers()
		ended = guest.get().IsFinal() || strings.Contains(shell.all(), "garbage: ")
	}
	broken := crashed.MatchString(shell.all())
	if !ended && !broken {
		t.Errorf("the guest is not done; it says:\n%s", last(shell.all(), 2000))
	}
	w.unharmed(broken)
	now := guest.get()
	ready := now.Status.Condition(v1.ConditionReady)
	t.Logf("the guest is %s (%s): %s; it says: %s", now.Status.Phase, ready.Reason, ready.Message, last(shell.all(), 200))
	switch now.Status.Phase {
	case v1.Running:
		if !broken {
			if out, _ := shell.run("echo $((6 * 7))"); out != "42\n" {
				t.Errorf("the guest's console answers %q", out)
			}
		}
		rss, err := strconv.Atoi(strings.TrimSuffix(procStatus(t, guest.launcher())["VmRSS"], " kB"))
		if err != nil || rss > 2*maxLauncherRSS {
			t.Errorf("its launcher has %d KiB RSS (%v), want at most %d", rss, err, 2*maxLauncherRSS)
		}
		// QEMU's own words of what a driver did wrong.
		if !broken {
			guest.log().shows(`(?i)virtio|virtqueue|guest moved`)
		}
	case v1.Failed:
		if now.Status.Reason != "QEMUExited" || !strings.Contains(ready.Message, "QEMU") {
			t.Errorf("the VMI says %s: %s", now.Status.Reason, ready.Message)
		}
	default:
		t.Errorf("the VMI is %s: %s", now.Status.Phase, ready.Message)
	}
	deletesSoon(t, guest)
}

// TestNetworkGarbage: a guest that floods its network with DHCP's questions, and
// with ARP and IP in its neighbour's name, reaches neither virt-handler nor the
// neighbour nor the pod network, which sees nothing of it in another's name.
func TestNetworkGarbage(t *testing.T) {
	t.Parallel()
	seconds := 10
	if long() {
		seconds = 60
	}
	for name, binding := range map[string]func(*v1.VirtualMachineInstanceSpec){"masquerade": func(*v1.VirtualMachineInstanceSpec) {}, "bridge": bridged} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := namespace(t)
			program := makeGarbage(t, ns)
			guest, neighbour := create(t, ns, tiny("hostile", binding)), create(t, ns, tiny("neighbour", bridged))
			guest.await(v1.Running)
			address := neighbour.await(v1.Running).Status.Interfaces[0].IP
			neighbour.log().shows(`tiny: eth0 `)
			shell := guest.takes(program)
			if name == "bridge" && guest.event("NetworkUnfiltered") != "" {
				t.Skip("THIS MACHINE'S KERNEL HAS NO nftables FOR BRIDGES, and nothing holds a bridged guest to its address")
			}
			w := watchOver(t, guest, neighbour)
			own := guest.get().Status.Interfaces[0].IP
			link, err := onNode(`ip -o route get "$1" | sed -E 's/.* dev ([^ ]+).*/\1/'`, own)
			if err != nil {
				t.Fatal(err)
			}
			heard := startTranscript(t, "what the pod network hears", "cluster", "enter", "--name", os.Getenv(clusterVariable), "--",
				program.path, "listen", strconv.Itoa(seconds+5), strings.TrimSpace(link), own)
			shell.send(fmt.Sprintf("/garbage network %d eth0 %s\n", seconds, address))
			for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
				w.answers()
			}
			shell.shows(`garbage: sent \d{3,} frames`)
			t.Log(last(shell.all(), 200))
			heard.shows(`(?m)^\{.*\}$`)
			counts := map[string]int{}
			if err := json.Unmarshal([]byte(strings.TrimSpace(heard.all())), &counts); err != nil {
				t.Fatal(err)
			}
			t.Logf("on the pod's link: %v", counts)
			delete(counts, "all")
			if len(counts) > 0 {
				t.Errorf("the pod network has heard what is not the guest's: %v", slices.Sorted(maps.Keys(counts)))
			}
			w.unharmed(false)
			if rss, err := strconv.Atoi(strings.TrimSuffix(procStatus(t, guest.launcher())["VmRSS"], " kB")); err != nil || rss > 2*maxLauncherRSS {
				t.Errorf("its launcher has %d KiB RSS (%v), want at most %d", rss, err, 2*maxLauncherRSS)
			}
			// The neighbour's lease is its own, and the guest itself may be served still.
			for _, v := range []vmi{neighbour, guest} {
				lease := `tiny: eth0 `
				before := strings.Count(kubectl(t, "-n", ns, "logs", v.pod().Name), lease)
				if _, status := v.shell().run("killall -USR1 udhcpc"); status != 0 {
					t.Errorf("guest %s has no DHCP client", v.name)
				}
				v.log().shows("(?s)" + strings.Repeat(lease+".*", before+1))
			}
			deletesSoon(t, guest)
		})
	}
}
