package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// patience bounds every wait for one thing.
const patience = testkit.Patience

// launched is virt-launcher as a process, as it is shipped, with the bench in
// virt-handler's place.
type launched struct {
	folder  string
	cmd     *exec.Cmd
	conn    *launchertest.Launcher
	states  chan stateAt
	stdout  *os.File
	machine *qemuargs.Machine
}

type stateAt struct {
	control.StateReport
	at  time.Time
	err error
}

// launch starts virt-launcher and takes it as far as it gets before it is told
// to start: hello, inspect, and the Machine made from the answer.
func launch(ctx context.Context, b *bench, folder string) (*launched, error) {
	l := &launched{folder: folder, states: make(chan stateAt, 16)}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(folder, "slot"), Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	if err = errors.Join(os.MkdirAll(l.path("overlays"), 0o755), containerDisk(l.path("images"))); err == nil {
		l.stdout, err = os.Create(l.path("stdout"))
	}
	if err != nil {
		return nil, err
	}
	l.cmd = exec.Command(b.output("bin", "virt-launcher"), "run", "--slot", l.path("slot"), "--qemu", b.qemu, "--qemu-version", b.output("cache", "launcher-root", layout.QEMUVersion),
		"--console", l.path("console"), "--agent", l.path("agent"), "--images", l.path("images"), "--overlays", l.path("overlays"), "--termination-log", l.path("termination"))
	l.cmd.Env = append(os.Environ(), "GOMAXPROCS=2") // as in a pod
	stderr, err := os.Create(l.path("stderr"))
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	l.cmd.Stdout, l.cmd.Stderr = l.stdout, stderr
	if err := l.cmd.Start(); err != nil {
		l.stdout.Close()
		return nil, fmt.Errorf("start virt-launcher: %w", err)
	}
	l.conn, err = launchertest.Take(listener, func(report control.StateReport, err error) { l.states <- stateAt{report, time.Now(), err} })
	if err == nil {
		l.machine, err = l.resolve(ctx, b.accelerator, nil)
	}
	if err != nil {
		return nil, errors.Join(err, l.end())
	}
	return l, nil
}

func (l *launched) path(name string) string { return filepath.Join(l.folder, name) }

// resolve does what virt-handler does between hello and start. Without cards the guest has
// no network.
func (l *launched) resolve(ctx context.Context, accelerator qemuargs.Accelerator, cards map[string]resolve.NIC) (*qemuargs.Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var facts control.InspectReply
	if err := l.conn.Call(ctx, control.CommandInspect, control.InspectRequest{ContainerDisks: []control.ContainerDisk{{Volume: diskVolume}}}, &facts); err != nil {
		return nil, fmt.Errorf("inspect disks: %w", err)
	}
	host := resolve.Host{Accelerator: accelerator, QEMUVersion: l.conn.Hello.QEMUVersion, OverlayDirect: facts.OverlayDirect, ContainerDisks: map[string]qemuargs.ImageFacts{}}
	for _, d := range facts.ContainerDisks {
		host.ContainerDisks[diskVolume] = d
	}
	vmi := guestVMI("default", "bench", "none")
	vmi.UID = "0a1b2c3d-0000-4000-8000-000000000001"
	host.NICs = cards
	if cards == nil {
		// A tap would need a network namespace with a bridge in it, for each competitor.
		off := false
		vmi.Spec.Networks, vmi.Spec.Domain.Devices.Interfaces, vmi.Spec.Domain.Devices.AutoattachPodInterface = nil, nil, &off
	}
	v1.Default(vmi)
	m, errs := resolve.Machine(vmi, host)
	if len(errs) > 0 {
		return nil, fmt.Errorf("resolve the machine: %w", errs.ToAggregate())
	}
	m.Disks[0].Overlay.Path = l.path("overlays/root.qcow2")
	return m, nil
}

// started is what a start took: from the message to virt-launcher's report that it prepares,
// and to its report that the guest's CPUs run.
type started struct{ preparing, running time.Duration }

// start tells virt-launcher to start, and returns when it says that the guest's CPUs run.
func (l *launched) start(ctx context.Context) (took started, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begin := time.Now()
	if err := l.conn.Call(ctx, control.CommandStart, control.StartRequest{Machine: *l.machine}, nil); err != nil {
		return took, fmt.Errorf("tell virt-launcher to start: %w", err)
	}
	for {
		select {
		case s := <-l.states:
			switch {
			case s.err != nil:
				return took, fmt.Errorf("read virt-launcher's state: %w", s.err)
			case s.State == control.StatePreparing:
				took.preparing = s.at.Sub(begin)
			case s.State == control.StateRunning:
				took.running = s.at.Sub(begin)
				return took, nil
			case s.State == control.StateExited:
				said, _ := os.ReadFile(l.path("stderr"))
				return took, fmt.Errorf("the VM ended before it ran; virt-launcher says:\n%s", bytes.TrimSpace(said[max(0, len(said)-2000):]))
			}
		case <-ctx.Done():
			return took, fmt.Errorf("wait until the guest runs: %w", ctx.Err())
		}
	}
}

// idle waits until the guest has booted and halted.
func (l *launched) idle(ctx context.Context) error {
	return poll(ctx, patience, func() (bool, error) {
		data, err := os.ReadFile(l.path("stdout"))
		return bytes.ContainsRune(data, banner), err
	})
}

// end ends the VM, and waits until QEMU is gone.
func (l *launched) end() error {
	defer l.stdout.Close()
	if l.conn != nil {
		defer l.conn.Close()
	}
	kill := time.AfterFunc(patience, func() { l.cmd.Process.Kill() })
	defer kill.Stop()
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end virt-launcher: %w", err)
	}
	l.cmd.Wait() // its error says only that the grace period was over at once
	return nil
}

// poll asks every 50 ms until the answer is yes.
func poll(ctx context.Context, timeout time.Duration, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := ask(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pause waits, unless the run is interrupted.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
