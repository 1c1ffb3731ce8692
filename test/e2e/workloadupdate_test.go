package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// newerLauncher is another name of the launcher's image.
const newerLauncher = "localhost/kubeqemu-e2e/virt-launcher:newer"

// renameLauncher gives virt-launcher's image another name on every node, and has virt-controller make pods of that name. use has it make
// pods of another name. The test's end takes that back.
func renameLauncher(t *testing.T, image string) (use func(image string) error) {
	t.Helper()
	ctr, err := exec.LookPath("ctr")
	if err != nil {
		t.Fatal(err)
	}
	nodes := []string{"1"}
	if os.Getenv(nodesVariable) == "2" {
		nodes = append(nodes, "2")
	}
	images := func(node string, command ...string) {
		args := []string{"enter", "--name", os.Getenv(clusterVariable), "--node", node, "--", ctr, "-n", "k8s.io", "images"}
		if _, err := output("", "cluster", append(args, command...)...); err != nil {
			t.Error(err)
		}
	}
	for _, node := range nodes {
		images(node, "tag", "--force", image, newerLauncher)
		t.Cleanup(func() { images(node, "remove", newerLauncher) }) // a later build's image is another
	}
	use = func(image string) error {
		_, err := output("", "kubectl", "-n", "kubevirt", "set", "env", "deployment/virt-controller", "LAUNCHER_IMAGE="+image)
		if err == nil {
			_, err = output("", "kubectl", "-n", "kubevirt", "rollout", "status", "--timeout=600s", "deployment/virt-controller")
		}
		return err
	}
	t.Cleanup(func() {
		if err := use(image); err != nil {
			t.Error(err)
		}
	})
	if err := use(newerLauncher); err != nil {
		t.Fatal(err)
	}
	return use
}

// updateMethods has the KubeVirt object name methods of workload updates until the test ends.
func updateMethods(t *testing.T, methods string) {
	t.Helper()
	strategy := func(methods string) error {
		_, err := output("", "kubectl", "-n", "kubevirt", "patch", "kubevirt", "kubevirt", "--type=merge", "--patch", `{"spec":{"workloadUpdateStrategy":{"workloadUpdateMethods":`+methods+`}}}`)
		return err
	}
	t.Cleanup(func() {
		if err := strategy("null"); err != nil {
			t.Error(err)
		}
	})
	if err := strategy(methods); err != nil {
		t.Fatal(err)
	}
}

// leaves waits until the guest has left a pod by a migration.
func (m vm) leaves(pod string) *v1.VirtualMachineInstanceMigrationState {
	m.t.Helper()
	var s *v1.VirtualMachineInstanceMigrationState
	err := poll(func() error {
		s = m.get().Status.MigrationState
		if s == nil || !s.Completed || s.SourcePod != pod {
			return fmt.Errorf("the guest has not left %s yet: %+v", pod, s)
		}
		if s.Failed {
			return errors.New(s.FailureReason)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// outdated waits until the VMI's label says that its launcher has another image than new ones, or no longer says so.
func (m vm) outdated(want bool) {
	m.t.Helper()
	err := poll(func() error {
		if _, is := m.get().Labels[v1.OutdatedLauncherLabel]; is != want {
			return fmt.Errorf("the VMI has the label %s: %v", v1.OutdatedLauncherLabel, is)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// TestWorkloadUpdate: a guest keeps its launcher when virt-controller has another image, until the KubeVirt object says that guests move. Then the guest
// moves once.
func TestWorkloadUpdate(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	m := createVM(t, ns, "kept", v1.RunStrategyAlways)
	uid := m.runs("")
	m.log().shows("tiny: eth0")
	old := m.pod()
	image := old.Spec.Containers[0].Image
	if got := m.get().Status.LauncherContainerImageVersion; got != image {
		t.Errorf("the status says that the launcher has image %q, and its pod has %q", got, image)
	}
	renameLauncher(t, image)
	m.outdated(true)
	// virt-controller looks every half minute for guests to move.
	_ = pollFor(45*time.Second, func() error {
		if s := m.get().Status.MigrationState; s != nil {
			t.Fatalf("the guest moves, and nobody has said so: %+v", s)
		}
		return errors.New("it stays")
	})
	updateMethods(t, `["LiveMigrate"]`)
	m.leaves(old.Name)
	m.outdated(false)
	if pod := m.pod(); pod.Name == old.Name || pod.Spec.Containers[0].Image != newerLauncher || pod.Spec.NodeName == old.Spec.NodeName {
		t.Errorf("the guest is in pod %s of image %s on %s", pod.Name, pod.Spec.Containers[0].Image, pod.Spec.NodeName)
	}
	moves := get[v1.VirtualMachineInstanceMigrationList](t, "-n", ns, "vmim").Items
	if len(moves) != 1 || moves[0].Annotations[v1.WorkloadUpdateMigrationAnnotation] != old.Name || moves[0].EffectivePriority() != v1.PrioritySystemMaintenance {
		t.Errorf("the migrations are %+v", moves)
	}
	if m.uid() != uid {
		t.Error("the guest was restarted")
	}
}

// guestTime is how long the guest's CPU has run in each QEMU of a machine, by process. QEMU names the threads of its CPUs.
func guestTime(uuid string) map[string]time.Duration {
	out := map[string]time.Duration{}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		text, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(text), "/usr/bin/qemu-system") || !strings.Contains(string(text), uuid) {
			continue
		}
		process := filepath.Base(filepath.Dir(file))
		threads, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "task/*/comm"))
		for _, comm := range threads {
			name, _ := os.ReadFile(comm)
			ran, err := os.ReadFile(filepath.Join(filepath.Dir(comm), "schedstat"))
			var ns int64
			if _, scanErr := fmt.Sscan(string(ran), &ns); err == nil && scanErr == nil && strings.HasPrefix(string(name), "CPU ") {
				out[process] += time.Duration(ns)
			}
		}
	}
	return out
}

// watchGuest looks at the QEMUs of a machine all the time. end returns in how many looks there were two, and by how much the guest ran in the first one
// after it had run in the second one.
func watchGuest(t *testing.T, uuid string) (end func() (both int, late time.Duration)) {
	// waits is more than the CPU of a QEMU uses that waits for a guest.
	const waits = 100 * time.Millisecond
	stop, done := make(chan struct{}), make(chan struct{})
	var first string
	var both int
	var since, late time.Duration // since is the first one's time when the second one ran
	go func() {
		defer close(done)
		tick := time.NewTicker(30 * time.Millisecond)
		defer tick.Stop()
		for {
			times := guestTime(uuid)
			if first == "" && len(times) == 1 {
				for first = range times {
				}
			}
			for process, ran := range times {
				if process == first || times[first] == 0 {
					continue
				}
				both++
				if ran > waits && since == 0 {
					since = times[first]
				}
				if since > 0 {
					late = max(late, times[first]-since)
				}
			}
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	ended := sync.OnceFunc(func() {
		close(stop)
		<-done
	})
	t.Cleanup(ended)
	return func() (int, time.Duration) {
		ended()
		return both, late
	}
}

// TestWorkloadUpdateOneNode: on a cluster of one node, guests move to launchers of another image on that node. The guest counts on, its disk has each number,
// it runs in one QEMU at a time, and it is reached as before. A user's migration brings no guest to its own node.
func TestWorkloadUpdateOneNode(t *testing.T) {
	if nodes := get[corev1.NodeList](t, "nodes"); len(nodes.Items) != 1 {
		t.Fatalf("the cluster has %d nodes: the test needs one", len(nodes.Items))
	}
	node := theNode(t).Name
	ns := namespace(t)
	apply(t, ns, clientManifest)
	m := createVM(t, ns, "open", v1.RunStrategyAlways, emptyDisk("data", "32Mi"), cloudInit("#tiny\n"))
	uid := m.runs("")
	m.log().shows("tiny: eth0")
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/client", "--timeout=600s")
	shell := m.shell()
	must := func(command string) string {
		t.Helper()
		out, status := shell.run(command)
		if status != 0 {
			t.Fatalf("%s: %q (%d)", command, out, status)
		}
		return strings.TrimSpace(out)
	}
	must("mkdir -p /tmp")
	must(counting)
	uuid := m.get().Spec.Domain.Firmware.UUID
	guests := guestsOn(t, uuid)
	image := m.pod().Spec.Containers[0].Image
	updateMethods(t, `["LiveMigrate"]`)
	var use func(string) error
	for _, next := range []string{newerLauncher, image} {
		before, count, booted := m.pod(), int(seconds(t, must("cat /tmp/count"))), seconds(t, must("cut -d' ' -f1 /proc/uptime"))
		end := watchGuest(t, uuid)
		if use == nil {
			use = renameLauncher(t, image)
		} else if err := use(next); err != nil {
			t.Fatal(err)
		}
		s := m.leaves(before.Name)
		shell = m.shell()
		told := int(seconds(t, must("cat /tmp/count")))
		both, late := end()
		downtime, _ := cost(s)
		t.Logf("image %s: QEMU's downtime is %d ms, %d looks saw two QEMUs, the guest counted from %d to %d", next, downtime, both, count, told)
		if both == 0 || late > 50*time.Millisecond {
			t.Errorf("%d looks saw two QEMUs; the guest ran in the first one for %s after it had run in the second one", both, late)
		}
		now, pod := m.get(), m.pod()
		if now.UID != uid || now.Status.Phase != v1.Running || now.Status.NodeName != node || s.SourceNode != node || s.TargetNode != node || pod.Name != s.TargetPod ||
			pod.Spec.Containers[0].Image != next || now.Status.LauncherContainerImageVersion != next {
			t.Errorf("VMI %s is %s in pod %s of image %s on %s; %+v", now.UID, now.Status.Phase, pod.Name, pod.Spec.Containers[0].Image, now.Status.NodeName, s)
		}
		if up := seconds(t, must("cut -d' ' -f1 /proc/uptime")); up < booted || told <= count {
			t.Errorf("the guest was up for %.1f s, and now for %.1f s; it counted to %d, and now is at %d", booted, up, count, told)
		}
		if got := must(fmt.Sprintf("echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vdb bs=512 skip=%d count=%d 2>/dev/null | tr -d '\\000' | md5sum", firstSector+1, told)); got != numbers(told) {
			t.Errorf("of %d numbers that the guest wrote, some are lost", told)
		}
		m.is(v1.VirtualMachineStatusRunning)
		m.reached(before, node)
		err := poll(func() error {
			if now, n := m.get(), guests(); n != 1 || len(now.Status.ActivePods) != 1 || now.Status.ActivePods[pod.UID] != node {
				return fmt.Errorf("%d QEMUs have the guest, and the active pods are %v", n, now.Status.ActivePods)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	moves := get[v1.VirtualMachineInstanceMigrationList](t, "-n", ns, "vmim").Items
	if len(moves) != 2 || !moves[0].StaysOnNode() || !moves[1].StaysOnNode() {
		t.Errorf("the migrations are %+v", moves)
	}
	m.awaitEvents("SuccessfulMigration")

	pod := m.pod()
	users := m.migrate("users", nil)
	if s := users.ends(v1.MigrationFailed); s == nil || !strings.Contains(s.FailureReason, "there is no other node") {
		t.Errorf("a user's migration ended with %+v, want it to say that there is no other node", s)
	}
	kubectl(t, "-n", ns, "delete", "vmim", users.name, "--timeout=600s")
	if now := m.pod(); now.Name != pod.Name || m.uid() != uid {
		t.Errorf("after a user's migration the guest is in pod %s", now.Name)
	}

	t.Log("== a guest that cannot migrate is evicted, and its VM starts it again in a new launcher")
	stays := createVM(t, ns, "stays", v1.RunStrategyAlways, bootsKernel, bridged)
	first := stays.runs("")
	updateMethods(t, `["LiveMigrate","Evict"]`)
	if err := use(newerLauncher); err != nil {
		t.Fatal(err)
	}
	stays.runs(first)
	if now := stays.pod().Spec.Containers[0].Image; now != newerLauncher {
		t.Errorf("after the eviction the guest's launcher is of image %s", now)
	}
	stays.awaitEvents("SuccessfulEvict")
}
