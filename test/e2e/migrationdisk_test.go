package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// The guest of TestMigrationLargeDisk writes its disk from the beginning to the end, and again, in blocks of 4 MiB. A block has the same random pages as every
// other, in an order that begins elsewhere in each block and in each pass: no page is as it was in the pass before. A file has the last block that was
// written.
const (
	largeDisk = 512 // blocks
	rewriting = `mkdir -p /tmp; dd if=/dev/urandom of=/tmp/pages bs=1M count=4 2>/dev/null; block() { o=$((($1*37+$2*5)%1024)); { dd if=/tmp/pages bs=4096 skip=$o; dd if=/tmp/pages bs=4096 count=$o; } 2>/dev/null; }
(p=0; while [ ! -e /tmp/stop ]; do p=$((p+1)); k=0; while [ $k -lt 512 ] && [ ! -e /tmp/stop ]; do block $p $k >/tmp/block; dd if=/tmp/block of=/dev/vdb bs=4M seek=$k conv=notrunc 2>/dev/null; echo $p $k >/tmp/last; k=$((k+1)); done; done; sync; echo over >/tmp/over) & echo started`
	// rereading compares the disk with what was written last.
	rereading = `echo 3 >/proc/sys/vm/drop_caches; read p last </tmp/last; k=0; while [ $k -lt 512 ]; do n=$p; [ $k -le $last ] || n=$((p-1))
[ "$(dd if=/dev/vdb bs=4M skip=$k count=1 2>/dev/null | md5sum)" = "$(block $n $k | md5sum)" ] || echo block $k is not of pass $n; k=$((k+1)); done`
)

// peak is the most memory that a process had at a time, in bytes.
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmHWM:" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatalf("process %d has no VmHWM", pid)
	return 0
}

// withinBooked checks that QEMU and virt-launcher of a pod had no more memory than the pod has booked.
func withinBooked(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	booked := pod.Spec.Containers[0].Resources.Requests.Memory().Value()
	had := peak(t, process(t, pod, "qemu-system-")) + peak(t, process(t, pod, "virt-launcher"))
	t.Logf("pod %s on %s: %d MiB at most, %d MiB are booked", pod.Name, pod.Spec.NodeName, had>>20, booked>>20)
	if had > booked {
		t.Errorf("pod %s had %d bytes of memory, and has booked %d", pod.Name, had, booked)
	}
}

// TestMigrationLargeDisk: a disk of 2 GiB that the guest writes as fast as it can arrives whole, and costs both launchers no more memory
// than they have booked.
func TestMigrationLargeDisk(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	m := createVM(t, ns, "large", v1.RunStrategyAlways, emptyDisk("data", fmt.Sprintf("%dMi", 4*largeDisk)), offline)
	uid := m.runs("")
	shell := m.shell()
	m.in(shell, rewriting)
	// The first pass fills the disk.
	err := poll(func() error {
		last := m.in(shell, "cat /tmp/last 2>/dev/null; true") // which is empty while it is written
		var pass, block int
		if _, err := fmt.Sscan(last, &pass, &block); err != nil || pass < 2 {
			return fmt.Errorf("the disk is not full yet: %q", last)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Else a fast machine has copied the disk before anybody looks.
	policy(t, ns, "bandwidthPerMigration: 64Mi")
	t.Cleanup(func() { output("", "kubectl", "delete", "migrationpolicy", ns) })
	source, begun := m.pod(), time.Now()
	move := m.migrate("move", nil)
	var target *corev1.Pod
	err = poll(func() error {
		s := m.get().Status.MigrationState
		if s == nil || s.SourceState == nil || s.SourceState.Progress == nil || s.SourceState.Progress.TransferredBytes < 1<<30 {
			return fmt.Errorf("not half of the disk is copied: %+v", s)
		}
		target = get[corev1.Pod](t, "-n", ns, "pod", s.TargetPod)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	withinBooked(t, source)
	s := move.ends(v1.MigrationSucceeded)
	downtime, sent := cost(s)
	t.Logf("%d MiB were sent in %.0f s; QEMU's downtime is %d ms", sent>>20, time.Since(begun).Seconds(), downtime)
	withinBooked(t, target)
	shell = m.shell()
	before := m.in(shell, "cat /tmp/last")
	err = poll(func() error {
		if now := m.in(shell, "cat /tmp/last"); now == before {
			return fmt.Errorf("the guest does not go on to write after %s", now)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	m.in(shell, "touch /tmp/stop; while [ ! -e /tmp/over ]; do usleep 100000; done")
	if out, code := shell.runFor(20*time.Minute, rereading); code != 0 || strings.TrimSpace(out) != "" {
		t.Errorf("the disk is not as the guest wrote it (%d): %s", code, out)
	}
	if m.uid() != uid {
		t.Error("the guest was restarted")
	}
}

// TestGuestWithTerabytesOfEmptyDisksMoves: the longest that a migration may take does not grow beyond what a launcher accepts, and of an empty disk what the
// guest wrote is copied alone.
func TestGuestWithTerabytesOfEmptyDisksMoves(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	m := createVM(t, ns, "terabytes", v1.RunStrategyAlways, bootsKernel, offline, emptyDisk("data", "20Ti"), emptyDisk("more", "20Ti"))
	uid := m.runs("")
	m.in(m.shell(), "echo moved | dd of=/dev/vdb bs=512 seek=40000000000 conv=sync,fsync 2>/dev/null")
	s := m.migrate("move", nil).ends(v1.MigrationSucceeded)
	t.Logf("%d MiB were sent", s.SourceState.Progress.TransferredBytes>>20)
	if got := m.in(m.shell(), "dd if=/dev/vdb bs=512 skip=40000000000 count=1 2>/dev/null | head -n 1"); got != "moved" || m.uid() != uid {
		t.Errorf("after the move the disk has %q", got)
	}
}
