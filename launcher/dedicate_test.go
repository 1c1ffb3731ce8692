package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/pinning"
)

// onItsOwn gives the guest dedicated CPUs.
func (v *vm) onItsOwn(isolate bool) {
	v.Helper()
	v.request.DedicatedCPUs = &control.DedicatedCPUs{IsolateEmulator: isolate}
	v.request.Needs = v.request.NeededFeatures()
}

// own are as many of the machine's CPUs, the last of them.
func own(t *testing.T, n int) func() ([]pinning.CPU, error) {
	t.Helper()
	all, err := pinning.Own()
	if err != nil || len(all) < n {
		t.Fatalf("THIS MACHINE HAS %d CPUs, and the test needs %d: %v", len(all), n, err)
	}
	return func() ([]pinning.CPU, error) { return all[len(all)-n:], nil }
}

// allowed is where the threads of a process may run, as the kernel says it: by the first words of their names.
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

// TestDedicatedCPUs: before the guest runs, its CPU has a CPU of the machine and QEMU's other threads have another; and again where
// the guest moves to.
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
