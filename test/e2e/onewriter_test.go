package e2e

import (
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// appendRecords has a guest append records to its second disk, a line in a sector
// each, which name the boot of the guest: two guests that write at the same time
// would mix theirs.
const appendRecords = `me=$(cut -c1-8 /proc/sys/kernel/random/boot_id); n=$(dd if=/dev/vdb bs=1M count=8 2>/dev/null | tr -d '\000' | wc -l); ` +
	`while :; do n=$((n+1)); echo "$me $n" | dd of=/dev/vdb bs=512 seek=$n conv=sync,fsync 2>/dev/null && echo "syn""ced:$n"; done`

// watchWriters says, several times a second, which QEMUs have the disk locked for
// themselves: $1 is the disk, $2 stat's words for what identifies it. A QEMU that
// finds it locked has it open for a moment, and then ends. $3 is a file that ends
// the watch.
const watchWriters = `
until [ -e "$3" ] || want=$(stat -L -c "$2" "$1" 2>/dev/null); do sleep 0.2; done
until [ -e "$3" ]; do
	writers=
	for pid in $(grep -ls qemu-system /proc/[0-9]*/comm | cut -d/ -f3); do
		for info in $(grep -ls OFDLCK /proc/$pid/fdinfo/*); do
			if [ "$(stat -L -c "$2" /proc/$pid/fd/${info##*/} 2>/dev/null)" = "$want" ]; then
				writers="$writers $pid"
				break
			fi
		done
	done
	echo "writers:$writers." || exit
	sleep 0.1
done`

// oneWriter is a VM with a disk that only one may write to.
type oneWriter struct {
	vm
	disk    string // the file or device, on the node
	writers *transcript
}

// again waits until the VM runs in another VMI than before, and has its guest
// append to the disk.
func (w oneWriter) again(before types.UID) types.UID {
	w.t.Helper()
	uid := w.runs(before)
	shell := w.shell()
	shell.send(appendRecords + "\n")
	shell.shows(`(?s)synced:\d+\r?\n.*synced:\d+\r?\n.*synced:\d+\r?\n`)
	return uid
}

// forceDeletePod takes the pod's object away, while its containers run.
func (w oneWriter) forceDeletePod() {
	w.t.Helper()
	kubectl(w.t, "-n", w.namespace, "delete", "pod", w.pod().Name, "--force", "--grace-period=0", "--wait=false")
}

var sample = regexp.MustCompile(`writers:([ 0-9]*)\.\n`)

// check looks at all samples, and at what the guests have written.
func (w oneWriter) check() {
	w.t.Helper()
	samples := sample.FindAllStringSubmatch(w.writers.all(), -1)
	var order []string
	for _, s := range samples {
		pids := strings.Fields(s[1])
		if len(pids) > 1 {
			w.t.Errorf("the QEMUs %v write to one disk at the same time", pids)
		}
		if len(pids) == 1 && (len(order) == 0 || order[len(order)-1] != pids[0]) {
			order = append(order, pids[0])
		}
	}
	if sorted := slices.Compact(slices.Sorted(slices.Values(order))); len(sorted) != len(order) {
		w.t.Errorf("QEMUs have written in turn: %v", order)
	}
	w.t.Logf("%d samples; QEMUs that have written, in order: %v", len(samples), order)
	out, err := onNode(`dd if="$1" bs=512 skip=1 count=16383 2>/dev/null | tr -d '\000'`, w.disk)
	if err != nil {
		w.t.Fatal(err)
	}
	var boots []string
	n := 0
	for line := range strings.Lines(out) {
		n++
		boot, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		if number != fmt.Sprint(n) {
			w.t.Fatalf("record %d is %q", n, line)
		}
		if len(boots) == 0 || boots[len(boots)-1] != boot {
			boots = append(boots, boot)
		}
	}
	if once := slices.Compact(slices.Sorted(slices.Values(boots))); len(once) != len(boots) {
		w.t.Errorf("guests have written in turn: %v", boots)
	}
	if len(boots) != len(order) {
		w.t.Errorf("%d records by the guests %v, but by the QEMUs %v", n, boots, order)
	}
}

// TestNoTwoQEMUsWriteToOneDisk: whatever is forced, no two QEMUs have one disk for writing.
func TestNoTwoQEMUsWriteToOneDisk(t *testing.T) {
	const graceSeconds = 25
	for _, mode := range []string{"Filesystem", "Block"} {
		t.Run(mode, func(t *testing.T) {
			c := claims{t, namespace(t)}
			folder := c.nodeFolder("data")
			disk, identity := folder+"/disk.img", "%d:%i"
			if mode == "Filesystem" {
				c.folder("data", "100Mi", "true")
			} else {
				if _, err := onNode(`mkdir -p "$1"`, folder); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { onNode(`rm -rf --one-file-system "$1"`, folder) })
				disk, identity = c.loopDevice(folder+"/device", "100M"), "%t:%T"
				c.volume("data", "Block", "100Mi", disk)
				c.claim("data", "Block", "100Mi")
			}
			w := oneWriter{
				vm:   createVM(t, c.namespace, "writer", v1.RunStrategyAlways, onClaim("data"), cloudInit(ignoreACPI), grace(graceSeconds)),
				disk: disk,
				writers: startTranscript(t, "watch of writers", "cluster", "enter", "--name", os.Getenv(clusterVariable), "--",
					"sh", "-c", watchWriters, "sh", disk, identity, folder+"/enough"),
			}
			t.Cleanup(func() { onNode(`touch "$1"`, folder+"/enough") })
			uid := w.again("")
			w.isLocked(mode)

			t.Log("== its pod is deleted by force")
			old := w.qemu()
			w.forceDeletePod()
			uid = w.again(uid)
			w.ended(old)

			t.Log("== it is restarted, and its pod deleted by force while the deaf guest shuts down")
			w.asks(stopIt(uid), startIt)
			w.awaitReadySays("asked by the ACPI power button")
			w.forceDeletePod()
			uid = w.again(uid)

			kubelet, err := findProcess(func(p nodeProcess) bool { return path.Base(p.Args[0]) == "kubelet" })
			if err != nil {
				t.Fatal(err)
			}
			for _, outage := range []struct {
				name        string
				begin, over func()
			}{
				{"stopped", func() { signal(t, "STOP", kubelet) }, func() { signal(t, "CONT", kubelet) }},
				{"dead", func() { power{t}.cluster("stop", "kubelet") }, func() { power{t}.cluster("start", "kubelet") }},
			} {
				t.Logf("== its pod is deleted by force while the kubelet is %s", outage.name)
				old := w.qemu()
				outage.begin()
				over := sync.OnceFunc(outage.over)
				t.Cleanup(over)
				w.forceDeletePod()
				w.endsSoon(old) // virt-handler ends it
				over()
				uid = w.again(uid)
			}
			w.vm.patch(`{"spec":{"runStrategy":"Halted"}}`)
			w.vm.ends("")
			w.check()
		})
	}
}

// ended fails the test if the QEMU still runs.
func (w oneWriter) ended(old nodeProcess) {
	w.t.Helper()
	if now, err := findProcess(func(p nodeProcess) bool { return p.PID == old.PID && p.Start == old.Start }); err == nil {
		w.t.Errorf("QEMU %d still runs", now.PID)
	}
}

// endsSoon waits until the QEMU has ended.
func (w oneWriter) endsSoon(old nodeProcess) {
	w.t.Helper()
	err := poll(func() error {
		if _, err := findProcess(func(p nodeProcess) bool { return p.PID == old.PID && p.Start == old.Start }); err == nil {
			return fmt.Errorf("QEMU %d still runs", old.PID)
		}
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
}

// isLocked tries to have the disk of the VM, which runs, a second time.
func (w oneWriter) isLocked(mode string) {
	w.t.Helper()
	if mode == "Block" {
		// The machine's devices are the node's.
		fd, err := unix.Open(w.disk, unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EBUSY) {
			w.t.Errorf("opening the VM's device for exclusive use: %v, want EBUSY", err)
		}
		if err == nil {
			unix.Close(fd)
		}
		return
	}
	// QEMU's tools may look at a raw image that another QEMU writes to, but not write.
	out, err := onNode(`qemu-io -f raw -c "write 0 512" "$1" 2>&1`, w.disk)
	if err == nil || !strings.Contains(out+err.Error(), `Failed to get "write" lock`) {
		w.t.Errorf("writing to the VM's disk: %v: %s", err, out)
	}
}
