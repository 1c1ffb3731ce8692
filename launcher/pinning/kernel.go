package pinning

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxCPUs is what a unix.CPUSet has room for.
const maxCPUs = 1024

// Own returns the CPUs that this process may run on: those of its container.
func Own() ([]CPU, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("ask for the pod's CPUs: %w", err)
	}
	var cpus []CPU
	for id := range maxCPUs {
		if set.IsSet(id) {
			cpus = append(cpus, describe(id))
		}
	}
	return cpus, nil
}

// describe looks up where a CPU is. What the kernel does not tell is 0: it only decides about the order.
func describe(id int) CPU {
	folder := fmt.Sprintf("/sys/devices/system/cpu/cpu%d", id)
	c := CPU{ID: id, Socket: number(folder + "/topology/physical_package_id"), Core: number(folder + "/topology/core_id")}
	nodes, _ := filepath.Glob(folder + "/node[0-9]*")
	for _, n := range nodes {
		c.Node, _ = strconv.Atoi(strings.TrimPrefix(filepath.Base(n), "node"))
	}
	return c
}

func number(path string) int {
	text, _ := os.ReadFile(path)
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// Place lets a thread run on some CPUs only. Thread 0 is the caller's. The error of a thread that has ended is
// unix.ESRCH.
func Place(thread int, ids []int) error {
	var set unix.CPUSet
	for _, id := range ids {
		set.Set(id)
	}
	if err := unix.SchedSetaffinity(thread, &set); err != nil {
		return fmt.Errorf("let thread %d run on CPUs %s: %w", thread, List(ids), err)
	}
	return nil
}

// On runs work on some CPUs. A process that work starts may run on them too, and its own threads begin there. The CPUs
// may be others than those of the threads of this process, as long as the container has them.
func On(ids []int, work func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("ask for the thread's CPUs: %w", err)
	}
	if err := Place(0, ids); err != nil {
		return err
	}
	err := work()
	if back := unix.SchedSetaffinity(0, &before); back != nil {
		runtime.LockOSThread() // the thread ends with the goroutine: no other goroutine runs on its CPUs
		err = errors.Join(err, fmt.Errorf("give the thread its CPUs back: %w", back))
	}
	return err
}

// PlaceAll lets all threads of a process run on some CPUs, but the threads that are in not. A thread runs where the
// thread that made it ran. So it looks until it has seen no new thread.
func PlaceAll(pid int, ids []int, not map[int]bool) error {
	placed := map[int]bool{}
	fresh := true
	for range maxRounds {
		if !fresh {
			return nil
		}
		fresh = false
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		for _, e := range entries {
			thread, err := strconv.Atoi(e.Name())
			if err != nil || not[thread] || placed[thread] {
				continue
			}
			if err := Place(thread, ids); err != nil && !errors.Is(err, unix.ESRCH) { // it may have ended
				return err
			}
			placed[thread], fresh = true, true
		}
	}
	return fmt.Errorf("place the threads of process %d: it makes new threads without end", pid)
}

// maxRounds is how often PlaceAll looks. A QEMU that starts needs two or three rounds.
const maxRounds = 1000
