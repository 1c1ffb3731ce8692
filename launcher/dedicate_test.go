package launcher

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/pinning"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// onItsOwn gives the guest dedicated CPUs.
func (v *vm) onItsOwn(isolate bool) {
	v.Helper()
	v.request.DedicatedCPUs = &control.DedicatedCPUs{IsolateEmulator: isolate}
}

// own returns a function that returns the last n of the machine's CPUs. The test fails on a machine that has fewer.
func own(t *testing.T, n int) func() ([]pinning.CPU, error) {
	t.Helper()
	all, err := pinning.Own()
	if err != nil || len(all) < n {
		t.Fatalf("THIS MACHINE HAS %d CPUs, and the test needs %d: %v", len(all), n, err)
	}
	return func() ([]pinning.CPU, error) { return all[len(all)-n:], nil }
}

// allowed returns where the threads of a process may run, as the kernel says it, by the first words of their names.
func (v *vm) allowed(pid int) map[string][]string {
	v.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	v.must(err)
	out := map[string][]string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		name, cpus := "", ""
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			switch key {
			case "Name":
				name = strings.TrimSpace(value)
			case "Cpus_allowed_list":
				cpus = strings.TrimSpace(value)
			}
		}
		kind, _, _ := strings.Cut(name, " ") // "CPU 0/TCG"
		out[kind] = append(out[kind], cpus)
	}
	return out
}

// pinned checks where QEMU's threads may run. The guest has one CPU.
func (v *vm) pinned(pid int, guest, others string) {
	v.Helper()
	all := v.allowed(pid)
	if got := all["CPU"]; len(got) != 1 || got[0] != guest {
		v.Errorf("the guest's CPU may run on CPUs %v, want %s", got, guest)
	}
	delete(all, "CPU")
	if len(all) == 0 {
		v.Error("QEMU has no other threads: nothing is tested")
	}
	for name, cpus := range all {
		for _, got := range cpus {
			if got != others {
				v.Errorf("the thread %s may run on CPUs %s, want %s", name, got, others)
			}
		}
	}
}

// TestDedicatedCPUs: before the guest runs, its CPU has a CPU of the machine and QEMU's other threads have another.
// So it is again where the guest moves to.
func TestDedicatedCPUs(t *testing.T) {
	t.Parallel()
	cpus := own(t, 2)
	both, _ := cpus()
	guest, others := pinning.List([]int{both[0].ID}), pinning.List([]int{both[1].ID})
	m := &move{source: launch(t, func(c *Config) { c.HostCPUs = cpus })}
	m.source.onItsOwn(true)
	report := m.source.boot()
	m.source.pinned(report.QEMUPID, guest, others)
	m.target = launch(t, func(c *Config) { c.HostCPUs = own(t, 1) })
	m.target.request.Machine = m.source.request.Machine
	m.target.onItsOwn(false)
	m.receive()
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.until(control.StateMoved)
	m.target.pinned(m.target.state().QEMUPID, others, others)
	m.released()
}

// TestDedicatedCPUsPaused: a guest that is to start paused has its CPU from the start on.
func TestDedicatedCPUsPaused(t *testing.T) {
	t.Parallel()
	cpus := own(t, 1)
	one, _ := cpus()
	v := launch(t, func(c *Config) { c.HostCPUs = cpus })
	v.request.Paused = true
	v.onItsOwn(false)
	v.must(v.call(control.CommandStart, v.request, nil))
	paused := v.until(control.StatePaused)
	v.pinned(paused.QEMUPID, pinning.List([]int{one[0].ID}), pinning.List([]int{one[0].ID}))
}

// TestDedicatedCPUsMissing: no QEMU starts for a guest whose pod has not the CPUs that the guest needs.
func TestDedicatedCPUsMissing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		isolate bool
		cpus    []pinning.CPU
		says    string
	}{
		"too few":   {true, []pinning.CPU{{}}, "needs 2 CPUs of the node to itself, and the pod has only 1"},
		"not owned": {false, []pinning.CPU{{}, {ID: 1}}, "which are not its own"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := launch(t, func(c *Config) { c.HostCPUs = func() ([]pinning.CPU, error) { return tt.cpus, nil } })
			v.onItsOwn(tt.isolate)
			v.must(v.call(control.CommandStart, v.request, nil))
			v.expectEnd(control.ReasonStartFailed, tt.says)
		})
	}
}

// TestLaunchersThreadsGoToTheirOwnCPU: before QEMU starts, the threads of the launcher's process go to the CPU that
// is isolated for them. Another process stands for the launcher's here, because this one is the test's.
func TestLaunchersThreadsGoToTheirOwnCPU(t *testing.T) {
	t.Parallel()
	sleep := exec.Command("sleep", "600")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sleep.Process.Kill(); sleep.Wait() })
	cpus := own(t, 2)
	both, _ := cpus()
	v := launch(t, func(c *Config) { c.HostCPUs, c.PID = cpus, sleep.Process.Pid })
	if before := v.allowed(sleep.Process.Pid)["sleep"]; len(before) != 1 || before[0] == pinning.List([]int{both[1].ID}) {
		t.Fatalf("the process may run on %v from the start on: nothing is tested", before)
	}
	v.onItsOwn(true)
	v.boot()
	if got, want := v.allowed(sleep.Process.Pid)["sleep"],
		pinning.List([]int{both[1].ID}); len(got) != 1 || got[0] != want {
		t.Errorf("the launcher's threads may run on %v, want %s", got, want)
	}
}

// TestNUMA: the guest has its nodes. QEMU has taken all of their pages, each node's on the CPUs of that node. So it
// is again where the guest moves to: with the same nodes, although all CPUs are of one node there.
func TestNUMA(t *testing.T) {
	cpus := own(t, 2)
	both, _ := cpus()
	apart := []pinning.CPU{{ID: both[0].ID}, {ID: both[1].ID, Node: 1}}
	m := &move{source: launch(t, func(c *Config) { c.HostCPUs = func() ([]pinning.CPU, error) { return apart, nil } })}
	machine := &m.source.request.Machine
	machine.CPU.Sockets, machine.CPU.Cores, machine.CPU.Threads = 2, 1, 1
	half := machine.MemoryBytes / 2
	machine.NUMA = []qemuargs.NUMANode{{ID: "0", CPUs: 1, MemoryBytes: half, TakenOn: []int{900}},
		{ID: "1", FirstCPU: 1, CPUs: 1, MemoryBytes: machine.MemoryBytes - half}}
	m.source.onItsOwn(false)
	m.source.onHugePages(2)
	report := m.source.boot()
	if got := m.source.hugeMemory(report.QEMUPID); got != machine.MemoryBytes {
		t.Errorf("%d bytes of QEMU are huge pages, want the guest's %d", got, machine.MemoryBytes)
	}
	for i, n := range report.Machine.NUMA {
		if want := []int{both[i].ID}; !slices.Equal(n.TakenOn, want) {
			t.Errorf("node %d takes its pages on CPUs %v, want %v", i, n.TakenOn, want)
		}
	}
	m.target = launch(t, func(c *Config) { c.HostCPUs = cpus })
	m.target.request.Machine = *report.Machine
	m.target.request.Machine.NUMA[0].TakenOn = []int{901} // of the other host
	m.target.onItsOwn(false)
	m.receive()
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.until(control.StateMoved)
	nodes := m.target.state().Machine.NUMA
	if len(nodes) != 2 || nodes[0].TakenOn != nil || nodes[1].TakenOn != nil {
		t.Errorf("at the target the nodes are %v", nodes)
	}
	m.released()
}
