package pinning

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPlanOfCPUs(t *testing.T) {
	// Two sockets, which are nodes too, of two cores with two threads each. The kernel numbers the second threads last.
	all := []CPU{{0, 0, 0, 0}, {1, 0, 0, 1}, {2, 1, 1, 0}, {3, 1, 1, 1}, {4, 0, 0, 0}, {5, 0, 0, 1}, {6, 1, 1, 0}, {7, 1, 1, 1}}
	of := func(ids ...int) (cpus []CPU) {
		for _, id := range ids {
			cpus = append(cpus, all[id])
		}
		return cpus
	}
	tests := []struct {
		name          string
		vcpus         int
		isolate       bool
		cpus          []CPU
		guest, others []int
		problem       string
	}{
		{"one", 1, false, of(3), []int{3}, []int{3}, ""},
		{"one and another", 1, true, of(3, 7), []int{3}, []int{7}, ""},
		{"threads of a core come together", 4, false, of(0, 1, 4, 5), []int{0, 4, 1, 5}, []int{0, 4, 1, 5}, ""},
		{"nodes come together", 4, false, of(0, 2, 4, 6), []int{0, 4, 2, 6}, []int{0, 4, 2, 6}, ""},
		{"any order", 4, false, of(6, 4, 2, 0), []int{0, 4, 2, 6}, []int{0, 4, 2, 6}, ""},
		{"all, isolated", 7, true, all, []int{0, 4, 1, 5, 2, 6, 3}, []int{7}, ""},
		{"too few", 3, false, of(0, 1), nil, nil, "needs 3 CPUs of the node to itself, and the pod has only 2 (CPUs 0-1)"},
		{"too few to isolate", 2, true, of(0, 1), nil, nil, "needs 3 CPUs"},
		{"the node's", 2, false, all, nil, nil, "the pod has 8, which are not its own (CPUs 0-7)"},
		{"none", 1, false, nil, nil, nil, "only 0"},
	}
	for _, tt := range tests {
		given := slices.Clone(tt.cpus)
		p, err := New(tt.vcpus, tt.isolate, tt.cpus)
		switch {
		case tt.problem != "":
			if err == nil || !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("%s: %v, %v, want an error with %q", tt.name, p, err, tt.problem)
			}
		case err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case !slices.Equal(p.VCPUs, tt.guest) || !slices.Equal(p.Others, tt.others):
			t.Errorf("%s: %v, want %v and %v", tt.name, p, tt.guest, tt.others)
		}
		if !slices.Equal(given, tt.cpus) {
			t.Errorf("%s: New changed the CPUs that it was given", tt.name)
		}
	}
}

func TestListOfCPUsIsWrittenAsRanges(t *testing.T) {
	for want, ids := range map[string][]int{"": nil, "7": {7}, "0-2": {2, 0, 1}, "0,2-3,8": {8, 3, 2, 0}} {
		if got := List(ids); got != want {
			t.Errorf("%v is written %q, want %q", ids, got, want)
		}
	}
}

// TestPlacedProcessStaysOnItsCPU: the kernel keeps another process, and what it starts, on one CPU. A thread that is none is no error.
func TestPlacedProcessStaysOnItsCPU(t *testing.T) {
	own, err := Own()
	if err != nil || len(own) == 0 {
		t.Fatalf("%v, %v", own, err)
	}
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { sleep.Process.Kill(); sleep.Wait() }()
	last := own[len(own)-1].ID
	if err := PlaceAll(sleep.Process.Pid, []int{last}, map[int]bool{}); err != nil {
		t.Fatal(err)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(sleep.Process.Pid, &set); err != nil || set.Count() != 1 || !set.IsSet(last) {
		t.Errorf("the process may run on %d CPUs, %v: %v", set.Count(), set.IsSet(last), err)
	}
	if err := Place(1<<30, []int{last}); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a thread that has ended: %v", err)
	}
	if err := Place(sleep.Process.Pid, []int{1000}); err == nil {
		t.Error("a CPU that the machine does not have is no error")
	}
}

// TestProcessStartsOnOtherCPUs: a process that is started on other CPUs than its starter's runs there, and the starter's thread is where it was.
func TestProcessStartsOnOtherCPUs(t *testing.T) {
	own, err := Own()
	if err != nil || len(own) < 2 {
		t.Fatalf("THIS MACHINE HAS %d CPUs, and the test needs two: %v", len(own), err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	first, last := own[0].ID, own[len(own)-1].ID
	err = On([]int{first}, func() error {
		sleep := exec.Command("sleep", "60")
		err := On([]int{first, last}, sleep.Start)
		if err != nil {
			return err
		}
		defer func() { sleep.Process.Kill(); sleep.Wait() }()
		var theirs, ours unix.CPUSet
		if err := errors.Join(unix.SchedGetaffinity(sleep.Process.Pid, &theirs), unix.SchedGetaffinity(0, &ours)); err != nil {
			return err
		}
		if theirs.Count() != 2 || ours.Count() != 1 || !ours.IsSet(first) {
			t.Errorf("the process may run on %d CPUs, and the thread that started it on %d", theirs.Count(), ours.Count())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMemoryIsTakenNearItsCPUs: each of the guest's nodes takes its pages on the CPUs of its own, if there are several nodes.
func TestMemoryIsTakenNearItsCPUs(t *testing.T) {
	two := Plan{VCPUs: []int{0, 2, 1}, Nodes: []int{0, 0, 1}}
	one := Plan{VCPUs: []int{0, 2, 1}, Nodes: []int{1, 1, 1}}
	for _, tt := range []struct {
		plan     Plan
		first, n int
		want     string
	}{{two, 0, 2, "[0 2]"}, {two, 2, 1, "[1]"}, {two, 2, 5, "[1]"}, {two, 3, 2, "[]"}, {two, 9, 2, "[]"}, {one, 0, 3, "[]"}, {one, 0, 2, "[]"}} {
		if got := fmt.Sprint(tt.plan.Near(tt.first, tt.n)); got != tt.want {
			t.Errorf("near %d and %d more of %v: %s, want %s", tt.first, tt.n, tt.plan, got, tt.want)
		}
	}
}
