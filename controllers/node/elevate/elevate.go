// Package elevate gives launchers' processes what the kernel gives nobody in a restricted pod: memory that may be
// locked, and the real-time scheduler. virt-handler has the capabilities for it.
package elevate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
)

// Launcher is the process of a launcher.
type Launcher struct {
	// PID is the process that dialed, by the kernel's word: in the PID namespace of this process.
	PID int
	// Pods are the UIDs of the pods, one of which must have the process.
	Pods []types.UID
	// Pod is the launcher's pod. The launcher's slot has proven it.
	Pod types.NamespacedName
}

// Of returns the process of the launcher of one of a VMI's pods.
func Of(vmi *v1.VirtualMachineInstance, launcher *sessions.Session) Launcher {
	return Launcher{PID: launcher.PID, Pod: launcher.Pod, Pods: slices.Collect(maps.Keys(vmi.Status.ActivePods))}
}

// ErrRefused marks what is impossible, also later.
var ErrRefused = errors.New("refused")

// Kernel asks the kernel, and the kubelet.
type Kernel struct {
	// CPUs are those that the kubelet gave a pod's container with a slot to itself.
	CPUs func(ctx context.Context, pod types.NamespacedName) ([]int64, error)
	// Proc is /proc, except in tests.
	Proc string
}

// process is a process that keeps its number as long as it is open.
type process struct {
	pid, fd int
	folder  string
}

// open opens a process of one of the pods.
func (k *Kernel) open(pid int, pods []types.UID) (*process, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("%w: virt-handler does not see the launcher's process: its DaemonSet needs hostPID: true, as the overlay config/realtime has it", ErrRefused)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	p := &process{pid: pid, fd: fd, folder: filepath.Join(k.proc(), strconv.Itoa(pid))}
	if err := errors.Join(p.in(pods), p.alive()); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (k *Kernel) proc() string {
	if k.Proc == "" {
		return "/proc"
	}
	return k.Proc
}

func (p *process) close() { unix.Close(p.fd) }

// alive fails if the process has ended: its number may be that of another process then.
func (p *process) alive() error {
	if err := unix.PidfdSendSignal(p.fd, 0, nil, 0); err != nil {
		return fmt.Errorf("process %d has ended: %w", p.pid, err)
	}
	return nil
}

// in fails unless the process is in the cgroup of one of the pods. The kubelet names it pod<UID>, with underscores
// under systemd. The kernel says in which cgroup a process is, and nobody in a restricted pod can change that.
func (p *process) in(pods []types.UID) error {
	text, err := os.ReadFile(filepath.Join(p.folder, "cgroup"))
	if err != nil {
		return fmt.Errorf("read the launcher's cgroup: %w", err)
	}
	for part := range strings.FieldsFuncSeq(string(text), func(c rune) bool { return c == '/' || c == '\n' }) {
		name := strings.TrimSuffix(part, ".slice")
		if slices.ContainsFunc(pods, func(uid types.UID) bool {
			return uid != "" && (name == "pod"+string(uid) || strings.HasSuffix(name, "-pod"+strings.ReplaceAll(string(uid), "-", "_")))
		}) {
			return nil
		}
	}
	return fmt.Errorf("%w: process %d is in no pod of the VMI", ErrRefused, p.pid)
}

// LockMemory lets a launcher's process, and the QEMU that it starts later, lock as many bytes of memory
// (RLIMIT_MEMLOCK). It never lowers the limit.
func (k *Kernel) LockMemory(l Launcher, bytes uint64) error {
	p, err := k.open(l.PID, l.Pods)
	if err != nil {
		return err
	}
	defer p.close()
	var limit unix.Rlimit
	err = unix.Prlimit(l.PID, unix.RLIMIT_MEMLOCK, nil, &limit)
	if err == nil {
		limit.Cur, limit.Max = max(limit.Cur, bytes), max(limit.Max, bytes)
		err = unix.Prlimit(l.PID, unix.RLIMIT_MEMLOCK, &limit, nil)
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: raise RLIMIT_MEMLOCK: %w: virt-handler needs the capability SYS_RESOURCE, which the node's container runtime does not have", ErrRefused, err)
	}
	if err != nil {
		return fmt.Errorf("raise RLIMIT_MEMLOCK: %w", err)
	}
	return p.alive()
}
