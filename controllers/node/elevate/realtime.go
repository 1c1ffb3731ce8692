package elevate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The kernel's numbers (include/uapi/linux/sched.h). With resetOnFork, threads that a real-time thread makes are
// ordinary ones.
const (
	ordinary    = 0
	fifo        = 1
	resetOnFork = 1
	// priority is the lowest, as in KubeVirt.
	priority = 1
)

// vcpu is the name that QEMU gives the thread of a guest's CPU (debug-threads=on).
var vcpu = regexp.MustCompile(`^CPU ([0-9]{1,3})/(KVM|TCG)\n?$`)

// Realtime gives the threads of a guest's CPUs the real-time scheduler (SCHED_FIFO). vcpus are the numbers of these
// CPUs, and hostCPUs is how many CPUs the launcher's container must have to itself: a real-time thread keeps
// everything else off its CPU. A launcher may be a tenant's, and name its threads as it likes: as many threads as
// vcpus has numbers get the scheduler, and the pod's cgroup keeps them on the pod's CPUs. It does nothing for threads
// that have the scheduler already.
func (k *Kernel) Realtime(ctx context.Context, l Launcher, vcpus []int, hostCPUs int) error {
	launcher, err := k.open(l.PID, l.Pods)
	if err != nil {
		return err
	}
	defer launcher.close()
	qemu, err := k.child(launcher, l)
	if err != nil {
		return err
	}
	defer qemu.close()
	threads, err := qemu.vcpus(vcpus)
	if err != nil {
		return err
	}
	var late []int
	for _, thread := range threads {
		if policy, err := policyOf(thread); err != nil {
			return err
		} else if policy != fifo {
			late = append(late, thread)
		}
	}
	if len(late) == 0 {
		return nil
	}
	own, err := k.CPUs(ctx, l.Pod)
	if err != nil {
		return err
	}
	if len(own) != hostCPUs {
		return fmt.Errorf("%w: the kubelet gave the container %d CPUs to itself, and the guest needs %d", ErrRefused, len(own), hostCPUs)
	}
	for _, thread := range late {
		if err := qemu.speed(thread, own); err != nil {
			return err
		}
	}
	return nil
}

// child returns the launcher's QEMU: the child that has a guest's CPUs.
func (k *Kernel) child(launcher *process, l Launcher) (*process, error) {
	stats, err := filepath.Glob(filepath.Join(k.proc(), "[0-9]*", "stat"))
	if err != nil {
		return nil, err
	}
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil || parentOf(string(text)) != launcher.pid {
			continue // or it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		p, err := k.open(pid, l.Pods)
		if err != nil {
			continue
		}
		if all, err := p.threads(); err == nil && len(all) > 0 {
			return p, nil
		}
		p.close()
	}
	return nil, errors.New("no child of the launcher has the guest's CPUs")
}

// parentOf reads a process' parent in its stat (proc_pid_stat(5)), where its name is in parentheses.
func parentOf(stat string) int {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// threads returns the first thread of each of the guest's CPUs, by number.
func (p *process) threads() (map[int]int, error) {
	entries, err := os.ReadDir(filepath.Join(p.folder, "task"))
	if err != nil {
		return nil, fmt.Errorf("list threads: %w", err)
	}
	out := map[int]int{}
	for _, e := range entries {
		thread, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if n, ok := p.number(thread); ok {
			if _, twice := out[n]; !twice {
				out[n] = thread
			}
		}
	}
	return out, nil
}

// number returns the number of the guest's CPU whose thread it is.
func (p *process) number(thread int) (int, bool) {
	name, err := os.ReadFile(filepath.Join(p.folder, "task", strconv.Itoa(thread), "comm"))
	m := vcpu.FindSubmatch(name)
	if err != nil || m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(string(m[1]))
	return n, err == nil
}

// vcpus returns the threads of the guest's CPUs of these numbers.
func (p *process) vcpus(numbers []int) ([]int, error) {
	all, err := p.threads()
	if err != nil {
		return nil, err
	}
	var out []int
	for _, n := range numbers {
		thread, ok := all[n]
		if !ok {
			return nil, fmt.Errorf("QEMU has no thread of the guest's CPU %d", n)
		}
		out = append(out, thread)
	}
	return out, nil
}

func policyOf(thread int) (uint32, error) {
	attr, err := unix.SchedGetAttr(thread, 0)
	if err != nil {
		return 0, fmt.Errorf("ask for the scheduler of thread %d: %w", thread, err)
	}
	return attr.Policy, nil
}

// speed gives a thread the real-time scheduler if it may run on the container's own CPUs only.
func (p *process) speed(thread int, own []int64) error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(thread, &set); err != nil {
		return fmt.Errorf("ask for the CPUs of thread %d: %w", thread, err)
	}
	for id := range len(set) * 64 {
		if set.IsSet(id) && !slices.Contains(own, int64(id)) {
			return fmt.Errorf("%w: thread %d may run on CPU %d, which is not its container's own", ErrRefused, thread, id)
		}
	}
	if err := unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: fifo, Flags: resetOnFork, Priority: priority}, 0); err != nil {
		return fmt.Errorf("the kernel refuses thread %d the real-time scheduler: %w", thread, err)
	}
	// The thread may have ended before, and its number may be another's now.
	_, still := p.number(thread)
	if err := p.alive(); err != nil || !still {
		_ = unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: ordinary}, 0)
		return errors.Join(fmt.Errorf("thread %d has ended", thread), err)
	}
	return nil
}

// hostPIDs is the kernel's name of the PID namespace that a node boots with (PROC_PID_INIT_INO in
// include/linux/proc_ns.h).
const hostPIDs = "pid:[4026531836]"

// Offers reports whether guests of the node can have the real-time scheduler: virt-handler sees their processes, and
// the kernel lets real-time threads run without end.
func Offers() (bool, error) {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return false, fmt.Errorf("read virt-handler's PID namespace: %w", err)
	}
	if own != hostPIDs {
		return false, nil
	}
	return Unthrottled()
}

// throttle is how much of each period real-time threads may run, in microseconds; -1: all of it.
const throttle = "/proc/sys/kernel/sched_rt_runtime_us"

// Unthrottled reports whether the node lets real-time threads run without end. KubeVirt has the same rule for its
// label: with a limit a guest stands still for a twentieth of each second, and the kernel may refuse containers such
// threads (CONFIG_RT_GROUP_SCHED).
func Unthrottled() (bool, error) {
	text, err := os.ReadFile(throttle)
	if err != nil {
		return false, fmt.Errorf("read the limit of real-time threads: %w", err)
	}
	return strings.TrimSpace(string(text)) == "-1", nil
}
