package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// slowMoves are the limits by which a tiny guest, of some 90 MB, takes 15 s to move, and longer if the machine does much else.
const slowMoves = "bandwidthPerMigration: 6Mi"

// policy makes or changes the MigrationPolicy of a namespace.
func policy(t *testing.T, namespace, limits string) {
	t.Helper()
	apply(t, "", fmt.Sprintf("apiVersion: migrations.kubevirt.io/v1alpha1\nkind: MigrationPolicy\nmetadata: {name: %[1]s}\nspec: {selectors: {namespaceSelector: {kubernetes.io/metadata.name: %[1]s}}, %[2]s}\n", namespace, limits))
}

// sharedClaim makes a claim of a folder that all nodes have, and returns the folder: the nodes' /tmp is the machine's.
func sharedClaim(t *testing.T, namespace, name string) string {
	t.Helper()
	folder := t.TempDir()
	// Only the test's own folders, and never /tmp.
	for _, own := range []string{folder, filepath.Dir(folder)} {
		if err := os.Chmod(own, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := claims{t, namespace}
	c.sharedVolume(name, "Filesystem", "64Mi", folder, corev1.ReadWriteMany)
	c.sharedClaim(name, "Filesystem", "64Mi", corev1.ReadWriteMany)
	return folder
}

// canary has the guest count, and keep the number on the disk that both nodes have. Before the guest writes the next number it
// looks whether the last one is there: if another QEMU ran the same guest, there would be another. It counts slowly, since each program that starts changes memory.
const canary = `(i=0; while :; do printf '%016d' $i | dd of=/dev/vdc bs=512 conv=sync,fsync,notrunc 2>/dev/null; echo $i >/tmp/next; mv /tmp/next /tmp/count; usleep 200000
echo 3 >/proc/sys/vm/drop_caches; was=$(dd if=/dev/vdc bs=16 count=1 2>/dev/null); [ "$was" = "$(printf '%016d' $i)" ] || echo "$was is there, and not $i" >>/tmp/two; i=$((i+1)); done) & echo started`

// process returns the PID of a pod's process, on whatever node: the nodes' kernel is the machine's. Of two processes of the program it is the
// older one.
func process(t *testing.T, pod *corev1.Pod, program string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	first := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		group, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		name, _, _ := bytes.Cut(line, []byte{0})
		if bytes.Contains(group, []byte("pod"+string(pod.UID))) && strings.HasPrefix(path.Base(string(name)), program) && (first == 0 || pid < first) {
			first = pid
		}
	}
	if first == 0 {
		t.Fatalf("pod %s has no process %s", pod.Name, program)
	}
	return first
}

func killIn(t *testing.T, pod *corev1.Pod, program string) {
	t.Helper()
	if err := syscall.Kill(process(t, pod, program), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// handlerOn is the virt-handler of a node.
func handlerOn(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	pods := get[corev1.PodList](t, "-n", "kubevirt", "pods", "-l", "kubevirt.io=virt-handler").Items
	for i := range pods {
		if pods[i].Spec.NodeName == node && pods[i].DeletionTimestamp == nil {
			return &pods[i]
		}
	}
	t.Fatalf("node %s has no virt-handler", node)
	return nil
}

// moving is a guest in the middle of a slow migration.
type moving struct {
	vm
	migration migration
	state     *v1.VirtualMachineInstanceMigrationState
}

func (m moving) pod(name string) *corev1.Pod {
	m.t.Helper()
	return get[corev1.Pod](m.t, "-n", m.namespace, "pod", name)
}

// moves begins a migration, and waits until memory or disks are being copied.
func (m vm) moves(name string) moving {
	m.t.Helper()
	out := moving{vm: m, migration: m.migrate(name, nil)}
	err := poll(func() error {
		out.state = m.get().Status.MigrationState
		if s := out.state; s == nil || s.MigrationName != name || s.SourceState == nil || s.SourceState.Progress == nil || s.SourceState.Progress.TransferredBytes < 1<<20 {
			return fmt.Errorf("nothing is copied yet: %+v", s)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	if out.state.Completed {
		m.t.Fatalf("the migration is over too soon: %+v", out.state)
	}
	return out
}

// migrationFaults are what goes wrong while a guest is copied, and how the migration then ends; "" stands for either end.
var migrationFaults = []struct {
	name string
	do   func(moving)
	want v1.VirtualMachineInstanceMigrationPhase
}{
	{"target-qemu-killed", func(m moving) { killIn(m.t, m.pod(m.state.TargetPod), "qemu-system-") }, v1.MigrationFailed},
	{"target-launcher-killed", func(m moving) { killIn(m.t, m.pod(m.state.TargetPod), "virt-launcher") }, v1.MigrationFailed},
	{"target-pod-deleted", func(m moving) { kubectl(m.t, "-n", m.namespace, "delete", "pod", m.state.TargetPod, "--wait=false") }, v1.MigrationFailed},
	{"target-handler-killed", func(m moving) { killIn(m.t, handlerOn(m.t, m.state.TargetNode), "virt-handler") }, v1.MigrationFailed},
	{"source-handler-killed", func(m moving) { killIn(m.t, handlerOn(m.t, m.state.SourceNode), "virt-handler") }, v1.MigrationFailed},
	// On a machine that does much else, the guest may take longer than it may.
	{"controller-killed", func(m moving) { awaitController(m.t, controller{}).kill(m.t) }, ""},
	// After 30 s the source may decide for itself.
	{"api-server-away", func(m moving) { m.without("kube-apiserver", func() { time.Sleep(25 * time.Second) }) }, ""},
	{"link-cut", func(m moving) { m.cut(10 * time.Second) }, ""},
	{"deleted", func(m moving) { kubectl(m.t, "-n", m.namespace, "delete", "vmim", m.migration.name, "--timeout=600s") }, ""},
}

// cut takes the second node off the network for a while.
func (m moving) cut(while time.Duration) {
	m.t.Helper()
	second := newSecondNode(m.t)
	m.t.Cleanup(func() { output("", "cluster", "plug", "--name", os.Getenv(clusterVariable), "--node", "2") })
	second.cluster("unplug")
	time.Sleep(while)
	second.cluster("plug")
}

// without stops a part of the control plane, and starts it after something else was done.
func (m moving) without(program string, meanwhile func()) {
	m.t.Helper()
	m.t.Cleanup(func() { output("", "cluster", "start", "--name", os.Getenv(clusterVariable), program) })
	for _, command := range []string{"stop", "start"} {
		if _, err := output("", "cluster", command, "--name", os.Getenv(clusterVariable), program); err != nil {
			m.t.Error(err)
		}
		if command == "stop" {
			meanwhile()
		}
	}
	err := poll(func() error { _, err := output("", "kubectl", "get", "--raw", "/readyz"); return err })
	if err != nil {
		m.t.Fatal(err)
	}
}

// TestMigrationFaults: whatever goes wrong while a guest is copied, the guest runs once, and goes on. The next migration begins at once.
func TestMigrationFaults(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	sharedClaim(t, ns, "shared")
	policy(t, ns, slowMoves)
	t.Cleanup(func() { output("", "kubectl", "delete", "migrationpolicy", ns) })
	m := createVM(t, ns, "moves", v1.RunStrategyAlways, emptyDisk("data", "32Mi"), onClaim("shared"))
	uid := m.runs("")
	m.log().shows("tiny: eth0")
	shell := m.shell()
	m.in(shell, "mkdir -p /tmp; "+canary)
	if out, status := shell.run("while [ ! -e /tmp/count ]; do usleep 100000; done"); status != 0 {
		t.Fatalf("the guest does not count: %s", out)
	}
	guests := guestsOn(t, m.get().Spec.Domain.Firmware.UUID)
	for _, f := range migrationFaults {
		count := int(seconds(t, m.in(shell, "cat /tmp/count")))
		now := m.moves(f.name)
		if s := now.state; s.MigrationPolicyName != ns {
			t.Errorf("%s: the migration has the policy %q", f.name, s.MigrationPolicyName)
		}
		f.do(now)
		m.endsOnce(now, f.want, guests)
		if m.uid() != uid {
			t.Fatalf("%s: the guest has ended", f.name)
		}
		shell = m.shell()
		if told := int(seconds(t, m.in(shell, "cat /tmp/count"))); told <= count {
			t.Errorf("%s: the guest counted to %d, and now is at %d", f.name, count, told)
		}
		if two := m.in(shell, "cat /tmp/two 2>/dev/null; true"); two != "" {
			t.Fatalf("%s: another QEMU has written to the guest's disk: %s", f.name, two)
		}
	}
	policy(t, ns, slowMoves+", completionTimeoutPerGiB: 3")
	// The target may end first, and then says why.
	s := m.migrate("too-slow", nil).ends(v1.MigrationFailed)
	t.Logf("a migration that takes too long fails because %q", s.FailureReason)
	policy(t, ns, "bandwidthPerMigration: 0")
	m.migrate("quick", nil).ends(v1.MigrationSucceeded)
	policy(t, ns, slowMoves)
	now := m.moves("source-killed")
	killIn(t, now.pod(now.state.SourcePod), "qemu-system-")
	m.runs(uid)
	m.endsOnce(now, "", guests) // the migration goes with the guest's VMI
}

// endsOnce waits for the end of a migration, until one pod is left, and checks that one QEMU is.
func (m vm) endsOnce(now moving, want v1.VirtualMachineInstanceMigrationPhase, guests func() int) {
	m.t.Helper()
	since := time.Now()
	err := poll(func() error {
		end, err := getObject[v1.VirtualMachineInstanceMigration]("-n", m.namespace, "vmim", now.migration.name)
		if apierrors.IsNotFound(err) && want == "" {
			return nil
		}
		if err == nil && !end.IsFinal() {
			err = fmt.Errorf("migration %s is %s", now.migration.name, end.Status.Phase)
		}
		if err == nil && want != "" && end.Status.Phase != want {
			m.t.Errorf("migration %s is %s, want %s: %+v", now.migration.name, end.Status.Phase, want, end.Status.MigrationState)
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	s := m.get().Status.MigrationState
	if s != nil {
		m.t.Logf("%s: over after %.0f s; %q", now.migration.name, time.Since(since).Seconds(), s.FailureReason)
	}
	err = poll(func() error {
		pods := get[corev1.PodList](m.t, "-n", m.namespace, "pods", "-l", "kubevirt.io=virt-launcher").Items
		left := 0
		for _, p := range pods {
			if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
				left++
			}
		}
		if n := guests(); n != 1 || left != 1 || m.get().Status.Phase != v1.Running {
			return fmt.Errorf("%s: %d QEMUs have the guest, and %d pods are left", now.migration.name, n, left)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
}
