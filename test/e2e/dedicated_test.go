package e2e

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// ownCPUsVariable makes the kubelets give pods CPUs of their own.
const ownCPUsVariable = "KUBEQEMU_E2E_OWN_CPUS"

// hugePages are what the machine lends the node of a guest with NUMA nodes, of 2 MiB each.
const hugePages = 80

// thread is a thread of a process of the node.
type thread struct {
	name string
	// cpus are the CPUs that it may run on.
	cpus map[int]bool
	// realtime: it has the scheduler SCHED_FIFO.
	realtime bool
}

// threadsOf are all threads of a process of the node.
func threadsOf(t *testing.T, p nodeProcess) (out []thread) {
	t.Helper()
	text, err := onNode(`for task in /proc/"$1"/task/*; do
	echo "$(sed 's/.*) //' "$task/stat" | cut -d' ' -f39) $(sed -n 's/^Cpus_allowed_list:\t//p' "$task/status") $(cat "$task/comm")"
done`, strconv.Itoa(p.PID))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if len(fields) == 3 { // else the thread has ended
			out = append(out, thread{name: fields[2], cpus: cpuSet(t, fields[1]), realtime: fields[0] == "1"})
		}
	}
	if len(out) == 0 {
		t.Fatalf("process %d has no threads", p.PID)
	}
	return out
}

// cpuSet reads CPUs as the kernel writes them: 0-3,8.
func cpuSet(t *testing.T, list string) map[int]bool {
	t.Helper()
	set := map[int]bool{}
	for part := range strings.SplitSeq(list, ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil {
			t.Fatalf("%q is no list of CPUs", list)
		}
		for id := from; id <= to; id++ {
			set[id] = true
		}
	}
	return set
}

// vcpu is the thread of the guest's only CPU.
func vcpu(t *testing.T, p nodeProcess) thread {
	t.Helper()
	for _, th := range threadsOf(t, p) {
		if strings.HasPrefix(th.name, "CPU 0/") {
			return th
		}
	}
	t.Fatalf("QEMU has no thread of the guest's CPU: %v", threadsOf(t, p))
	return thread{}
}

// widen lets a process' container run on other CPUs too, and returns the CPUs that it had. It is the node's cgroup v1, or v2.
func widen(p nodeProcess, cpus string) (before string, err error) {
	return onNode(`path=$(sed -n 's/^[0-9]*:cpuset://p' /proc/"$1"/cgroup)
file=/sys/fs/cgroup/cpuset$path/cpuset.cpus
if [ -z "$path" ]; then file=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/"$1"/cgroup)/cpuset.cpus; fi
cat "$file" && echo "$2" > "$file"`, strconv.Itoa(p.PID), cpus)
}

// nodeLabels waits until the node has labels.
func nodeLabels(t *testing.T, names ...string) {
	t.Helper()
	err := poll(func() error {
		labels := theNode(t).Labels
		for _, name := range names {
			if labels[name] != "true" {
				return fmt.Errorf("the node has the labels %v", labels)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDedicatedCPUs: a guest with dedicated CPUs runs on a CPU that no other process of the node's pods may use. The launcher keeps the
// guest's CPU and all other threads there, also where the container could run on other CPUs. A guest that needs more CPUs than the node can give
// away waits.
func TestDedicatedCPUs(t *testing.T) {
	if os.Getenv(ownCPUsVariable) != "1" {
		t.Fatalf("the test needs a kubelet that gives pods CPUs of their own: %s=1 (make e2e-own-cpus)", ownCPUsVariable)
	}
	nodeLabels(t, v1.CPUManagerLabel, v1.OldCPUManagerLabel)
	ns := namespace(t)
	shares := create(t, ns, tiny("shares"))
	v := create(t, ns, tiny("dedicated", func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.CPU = &v1.CPU{Cores: 1, DedicatedCPUPlacement: true}
	}))
	v.await(v1.Running)
	v.log().expect("tiny: up")
	shares.await(v1.Running)
	if pod := v.pod(); pod.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("the pod's quality of service is %s", pod.Status.QOSClass)
	}
	own := vcpu(t, v.qemu()).cpus
	if len(own) != 1 {
		t.Fatalf("the guest's CPU may run on the CPUs %v", own)
	}
	// The kubelet takes the CPU from pods that were there before, every ten seconds.
	err := poll(func() error {
		for _, th := range threadsOf(t, shares.qemu()) {
			for id := range own {
				if th.cpus[id] {
					return fmt.Errorf("the thread %q of the other guest may run on the CPUs %v, among them the one that is not its own", th.name, th.cpus)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	placedByLauncher(t, v, own)
	allocatable := theNode(t).Status.Allocatable
	more := create(t, ns, tiny("isolated", func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.CPU = &v1.CPU{Cores: uint32(allocatable.Cpu().Value() + 1), DedicatedCPUPlacement: true, IsolateEmulatorThread: true}
	}))
	more.awaitCondition(v1.ConditionPodScheduled, "Unschedulable", "cpu")
}

// placedByLauncher has the kernel let the container run on all CPUs. Threads that nobody has placed may run on all of them then. Those that were placed stay
// (since Linux 6.2): the launcher has placed them, and not the kubelet.
func placedByLauncher(t *testing.T, v vmi, own map[int]bool) {
	t.Helper()
	qemu, launcher := v.qemu(), v.launcher()
	all, err := onNode(`cat /sys/devices/system/cpu/online`)
	if err != nil {
		t.Fatal(err)
	}
	before, err := widen(qemu, strings.TrimSpace(all))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := widen(qemu, strings.TrimSpace(before)); err != nil {
			t.Error(err)
		}
	}()
	for _, p := range []nodeProcess{qemu, launcher} {
		for _, th := range threadsOf(t, p) {
			if !maps.Equal(th.cpus, own) {
				t.Errorf("the thread %q of process %d may run on the CPUs %v, and the launcher's plan has %v", th.name, p.PID, th.cpus, own)
			}
		}
	}
	if wide, err := widen(qemu, strings.TrimSpace(all)); err != nil || maps.Equal(cpuSet(t, strings.TrimSpace(wide)), own) {
		t.Errorf("the container may run on the CPUs %q only, and nothing is tested: %v", wide, err)
	}
}

// TestRealtimeGuestWithHugePages: a guest with NUMA nodes of huge pages sees a node with all of its CPUs and memory. The thread of its CPU has the real-time scheduler
// on a node that permits that, and no other thread of its pod has.
func TestRealtimeGuestWithHugePages(t *testing.T) {
	// One for the node's other processes, one for QEMU's other threads, and one for the guest's CPU: a real-time thread would starve
	// threads of QEMU's that have the same CPU.
	if n := runtime.NumCPU(); n < 3 {
		t.Skipf("NOT TESTED: real-time guests. This machine has %d CPUs, and the test needs 3", n)
	}
	const throttle = "/proc/sys/kernel/sched_rt_runtime_us" // of the whole machine
	before, err := os.ReadFile(throttle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(throttle, before, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(throttle, []byte("-1"), 0); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "-n", v1.KubeVirtNamespace, "patch", "daemonset", "virt-handler", "-p", `{"spec":{"template":{"spec":{"hostPID":true}}}}`) // as config/realtime
	kubectl(t, "-n", v1.KubeVirtNamespace, "rollout", "status", "daemonset/virt-handler", "--timeout=10m")
	nodeLabels(t, v1.CPUManagerLabel, v1.RealtimeLabel)
	v := create(t, namespace(t), tiny("realtime", func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.CPU = &v1.CPU{Cores: 1, DedicatedCPUPlacement: true, IsolateEmulatorThread: true, Realtime: &v1.Realtime{}, NUMA: &v1.NUMA{GuestMappingPassthrough: &v1.NUMAGuestMappingPassthrough{}}}
		s.Domain.Memory.Hugepages = &v1.Hugepages{PageSize: "2Mi"}
	}))
	v.await(v1.Running)
	v.log().expect("tiny: up")
	v.awaitCondition(v1.ConditionRealtime, v1.ReasonScheduled+": ")
	if c := v.condition(v1.ConditionRealtime); c.Status != metav1.ConditionTrue {
		t.Errorf("the condition Realtime is %+v", c)
	}
	v.awaitCondition(v1.ConditionNUMAMemoryUnbound, v1.ReasonFirstTouch, "not bound")
	for _, p := range []nodeProcess{v.qemu(), v.launcher()} {
		for _, th := range threadsOf(t, p) {
			if want := strings.HasPrefix(th.name, "CPU 0/"); th.realtime != want {
				t.Errorf("the thread %q has the real-time scheduler: %v", th.name, th.realtime)
			}
		}
	}
	const nodes = "/sys/devices/system/node/"
	shell := v.shell()
	for file, want := range map[string]string{"online": "0", "node0/cpulist": "0"} {
		if out, status := shell.run("cat " + nodes + file); status != 0 || !strings.Contains(out, want) {
			t.Errorf("the guest's %s is %q, want %s", file, out, want)
		}
	}
	if out, status := shell.run("grep -c 'SRAT' /sys/firmware/acpi/tables/SRAT"); status != 0 {
		t.Errorf("the guest's firmware tells it of no nodes: %q", out)
	}
}
