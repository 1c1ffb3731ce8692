package elevate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

const uid = "0a1b2c3d-0000-4000-8000-000000000001"

const (
	inV1 = "4:cpu,cpuacct:/kubepods/pod" + uid + "/c1\n1:name=systemd:/\n"
	inV2 = "0::/kubepods.slice/kubepods-pod0a1b2c3d_0000_4000_8000_000000000001.slice/cri-c1.scope\n"
)

// threadsVariable has this program play a QEMU with threads of these names.
const threadsVariable = "ELEVATE_TEST_THREADS"

func TestMain(m *testing.M) {
	if names := os.Getenv(threadsVariable); names != "" {
		play(strings.Split(names, ","))
	}
	os.Exit(m.Run())
}

func play(names []string) {
	named := make(chan bool)
	for _, name := range names {
		go func() {
			runtime.LockOSThread()
			os.WriteFile(fmt.Sprintf("/proc/self/task/%d/comm", unix.Gettid()), []byte(name), 0)
			named <- true
			select {}
		}()
		<-named
	}
	fmt.Println("named")
	time.Sleep(time.Minute)
	os.Exit(1)
}

// qemu starts a child on CPU 0, and a /proc that shows it and this process in cgroups.
func qemu(t *testing.T, launcher, child string, threads ...string) (pid int, proc string) {
	t.Helper()
	c := exec.Command("taskset", "-c", "0", os.Args[0])
	c.Env = append(os.Environ(), threadsVariable+"="+strings.Join(threads, ","))
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	proc, pid = t.TempDir(), c.Process.Pid
	for p, cgroup := range map[int]string{os.Getpid(): launcher, pid: child} {
		folder, real := filepath.Join(proc, fmt.Sprint(p)), fmt.Sprintf("/proc/%d/", p)
		if err := errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(filepath.Join(folder, "cgroup"), []byte(cgroup), 0o600),
			os.Symlink(real+"stat", filepath.Join(folder, "stat")), os.Symlink(real+"task", filepath.Join(folder, "task"))); err != nil {
			t.Fatal(err)
		}
	}
	return pid, proc
}

// fast returns the names of a process' threads that have the real-time scheduler.
func fast(t *testing.T, pid int) (names []string) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		var thread int
		fmt.Sscan(filepath.Base(task), &thread)
		attr, err := unix.SchedGetAttr(thread, 0)
		if err != nil {
			t.Fatal(err)
		}
		if attr.Policy == fifo {
			if attr.Priority != 1 || attr.Flags&resetOnFork == 0 {
				t.Errorf("a thread has the priority %d, and the flags %x", attr.Priority, attr.Flags)
			}
			name, _ := os.ReadFile(task + "/comm")
			names = append(names, strings.TrimSpace(string(name)))
		}
	}
	return names
}

// TestOnlyTheGuestsThreadsBecomeRealtime: only the threads of the guest's CPUs that are asked for get the scheduler,
// only in the VMI's pod, and only on CPUs that are its container's own.
func TestOnlyTheGuestsThreadsBecomeRealtime(t *testing.T) {
	guest := []string{"CPU 0/TCG", "CPU 1/KVM", "CPU 1/KVM", "IO worker"}
	const other = "0::/kubepods/pod0a1b2c3d-0000-4000-8000-000000000002/c1\n"
	away := errors.New("away")
	for name, tt := range map[string]struct {
		launcher, child string
		threads         []string
		own             []int64
		kubelet         error
		vcpus           []int
		want            []string
		refused, fails  bool
	}{
		"all":                  {inV1, inV1, guest, []int64{0, 7}, nil, []int{0, 1}, []string{"CPU 0/TCG", "CPU 1/KVM"}, false, false},
		"one":                  {inV2, inV2, guest, []int64{0, 7}, nil, []int{1}, []string{"CPU 1/KVM"}, false, false},
		"of another pod":       {other, inV1, guest, []int64{0, 7}, nil, []int{0}, nil, true, true},
		"of a longer name":     {"0::/pod" + uid + "0\n", inV1, guest, []int64{0, 7}, nil, []int{0}, nil, true, true},
		"of no pod":            {"0::/\n", inV1, guest, []int64{0, 7}, nil, []int{0}, nil, true, true},
		"QEMU elsewhere":       {inV1, other, guest, []int64{0, 7}, nil, []int{0}, nil, false, true},
		"no QEMU":              {inV1, inV1, []string{"IO worker"}, []int64{0, 7}, nil, []int{0}, nil, false, true},
		"no such CPU":          {inV1, inV1, guest, []int64{0, 7}, nil, []int{2}, nil, false, true},
		"CPUs that are shared": {inV1, inV1, guest, nil, nil, []int{0}, nil, true, true},
		"CPUs of others":       {inV1, inV1, guest, []int64{6, 7}, nil, []int{0}, nil, true, true},
		"too few CPUs":         {inV1, inV1, guest, []int64{0}, nil, []int{0}, nil, true, true},
		"kubelet away":         {inV1, inV1, guest, nil, away, []int{0}, nil, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			pid, proc := qemu(t, tt.launcher, tt.child, tt.threads...)
			asked := 0
			k := &Kernel{Proc: proc, CPUs: func(_ context.Context, pod types.NamespacedName) ([]int64, error) {
				if asked++; pod.Name != "launcher" {
					t.Errorf("asked for the pod %q", pod)
				}
				return tt.own, tt.kubelet
			}}
			l := Launcher{PID: os.Getpid(), Pods: []types.UID{"", uid}, Pod: types.NamespacedName{Name: "launcher"}}
			err := k.Realtime(t.Context(), l, tt.vcpus, 2)
			if (err != nil) != tt.fails || errors.Is(err, ErrRefused) != tt.refused {
				t.Errorf("the error is %v", err)
			}
			if got := fast(t, pid); fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("the threads %q have the real-time scheduler, want %q", got, tt.want)
			}
			if err == nil {
				if err := k.Realtime(t.Context(), l, tt.vcpus, 2); err != nil || asked != 1 {
					t.Errorf("again: %v, and the kubelet was asked %d times", err, asked)
				}
			}
		})
	}
}

// TestLimitOfLockedMemoryIsOnlyRaised: the limit of the process is raised and never lowered, where this process may
// do that. Where it may not, the error says so.
func TestLimitOfLockedMemoryIsOnlyRaised(t *testing.T) {
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sleep.Process.Kill(); sleep.Wait() })
	pid, proc := sleep.Process.Pid, t.TempDir()
	folder := filepath.Join(proc, fmt.Sprint(pid))
	limit := unix.Rlimit{Cur: 1 << 16, Max: 1 << 17}
	if err := errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(filepath.Join(folder, "cgroup"), []byte(inV1), 0o600), unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, &limit, nil)); err != nil {
		t.Fatal(err)
	}
	header, caps := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capget(&header, &caps[0]); err != nil {
		t.Fatal(err)
	}
	may := caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
	k := &Kernel{Proc: proc}
	for _, tt := range []struct {
		bytes uint64
		able  bool
		want  unix.Rlimit
	}{
		{1 << 10, true, limit},
		{1 << 17, true, unix.Rlimit{Cur: 1 << 17, Max: 1 << 17}},
		{1 << 42, may, unix.Rlimit{Cur: 1 << 42, Max: 1 << 42}},
	} {
		err := k.LockMemory(Launcher{PID: pid, Pods: []types.UID{uid}}, tt.bytes)
		if !tt.able {
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "SYS_RESOURCE") {
				t.Errorf("%d bytes without the capability: %v", tt.bytes, err)
			}
			continue
		}
		var got unix.Rlimit
		if err := errors.Join(err, unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, nil, &got)); err != nil || got != tt.want {
			t.Errorf("%d bytes: the limit is %v, want %v: %v", tt.bytes, got, tt.want, err)
		}
	}
	if err := k.LockMemory(Launcher{PID: pid, Pods: []types.UID{"x"}}, 1); !errors.Is(err, ErrRefused) {
		t.Errorf("a process of another pod: %v", err)
	}
	if err := k.LockMemory(Launcher{}, 1); !errors.Is(err, ErrRefused) {
		t.Errorf("a process that is not seen: %v", err)
	}
	if err := k.LockMemory(Launcher{PID: 1 << 30}, 1); err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("a process that has ended: %v", err)
	}
}

func TestOffersOfThisMachineAreReadable(t *testing.T) {
	if _, err := Offers(); err != nil {
		t.Error(err)
	}
	if _, err := Unthrottled(); err != nil {
		t.Error(err)
	}
}
