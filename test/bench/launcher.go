package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/utils/ptr"

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
	machine *qemuargs.Machine
}

type stateAt struct {
	control.StateReport
	at  time.Time
	err error
}

// launch starts virt-launcher and takes it as far as it gets before it is told
// to start: hello, inspect, and the Machine made from the answer.
func launch(r *run, folder string, bootSector []byte) *launched {
	l := &launched{folder: folder, states: make(chan stateAt, 16)}
	listener := must(net.ListenUnix("unix", &net.UnixAddr{Name: l.path("slot"), Net: "unix"}))
	defer listener.Close()
	check(os.MkdirAll(l.path("overlays"), 0o755))
	writeContainerDisk(l.path("images"), bootSector)
	l.cmd = exec.Command(r.output("bin", "virt-launcher"), "run", "--slot", l.path("slot"),
		"--qemu", r.qemu, "--qemu-version", r.output("cache", "launcher-root", layout.QEMUVersion),
		"--console", l.path("console"), "--agent", l.path("agent"), "--images", l.path("images"),
		"--overlays", l.path("overlays"), "--termination-log", l.path("termination"))
	l.cmd.Env = append(os.Environ(), "GOMAXPROCS=2") // as in a pod
	stdout, stderr := must(os.Create(l.path("stdout"))), must(os.Create(l.path("stderr")))
	defer stdout.Close()
	defer stderr.Close()
	l.cmd.Stdout, l.cmd.Stderr = stdout, stderr
	check(l.cmd.Start(), "start virt-launcher")
	r.after(l.end)
	l.conn = must(launchertest.Take(listener, func(report control.StateReport, err error) {
		l.states <- stateAt{report, time.Now(), err}
	}))
	l.machine = l.resolve(r, nil)
	return l
}

func (l *launched) path(name string) string { return filepath.Join(l.folder, name) }

// call has virt-launcher do something.
func (l *launched) call(r *run, command string, request, reply any) {
	ctx, cancel := context.WithTimeout(r, patience)
	defer cancel()
	check(l.conn.Call(ctx, command, request, reply), "have virt-launcher do "+command)
}

// resolve does what virt-handler does between hello and start. Without cards the guest has
// no network.
func (l *launched) resolve(r *run, cards map[string]resolve.NIC) *qemuargs.Machine {
	var facts control.InspectReply
	l.call(r, control.CommandInspect,
		control.InspectRequest{ContainerDisks: []control.ContainerDisk{{Volume: diskVolume}}}, &facts)
	host := resolve.Host{Accelerator: r.accelerator, QEMUVersion: l.conn.Hello.QEMUVersion,
		OverlayDirect: facts.OverlayDirect, ContainerDisks: map[string]qemuargs.ImageFacts{}, NICs: cards}
	for _, d := range facts.ContainerDisks {
		host.ContainerDisks[diskVolume] = d
	}
	vmi := guestVMI("default", "bench", "none")
	vmi.UID = "0a1b2c3d-0000-4000-8000-000000000001"
	if cards == nil {
		// A tap would need a network namespace with a bridge in it, for each competitor.
		vmi.Spec.Networks, vmi.Spec.Domain.Devices.Interfaces = nil, nil
		vmi.Spec.Domain.Devices.AutoattachPodInterface = ptr.To(false)
	}
	v1.Default(vmi)
	m, errs := resolve.Machine(vmi, host)
	check(errs.ToAggregate(), "resolve the machine")
	m.Disks[0].Overlay.Path = l.path("overlays/root.qcow2")
	return m
}

// start tells virt-launcher to start. It returns how long it takes until virt-launcher reports that it prepares, and
// until it reports that the guest's CPUs run.
func (l *launched) start(r *run) (preparing, running time.Duration) {
	begin := time.Now()
	l.call(r, control.CommandStart, control.StartRequest{Machine: *l.machine}, nil)
	preparing = l.comesTo(r, control.StatePreparing).at.Sub(begin)
	return preparing, l.comesTo(r, control.StateRunning).at.Sub(begin)
}

// comesTo waits for a state, whatever states come before.
func (l *launched) comesTo(r *run, want control.State) stateAt {
	return l.reports(r, "state "+string(want), func(s control.StateReport) bool { return s.State == want })
}

// reports waits for a report.
func (l *launched) reports(r *run, what string, is func(control.StateReport) bool) stateAt {
	ctx, cancel := context.WithTimeout(r, patience)
	defer cancel()
	for {
		select {
		case s := <-l.states:
			check(s.err, "read virt-launcher's state")
			if is(s.StateReport) {
				return s
			}
			if s.State == control.StateExited {
				fail("wait for %s: the VM has ended; virt-launcher says:\n%s", what, tail(l.path("stderr")))
			}
		case <-ctx.Done():
			check(ctx.Err(), "wait for "+what)
		}
	}
}

// tail returns the end of a file.
func tail(file string) []byte {
	text, _ := os.ReadFile(file)
	return bytes.TrimSpace(text[max(0, len(text)-2000):])
}

// idle waits until the guest has booted and halted.
func (l *launched) idle(r *run) {
	r.await("the guest has booted", 50*time.Millisecond, patience, func() bool {
		return bytes.ContainsRune(must(os.ReadFile(l.path("stdout"))), banner)
	})
}

// end ends the VM, and waits until QEMU is gone.
func (l *launched) end() error {
	if l.conn != nil {
		defer l.conn.Close()
	}
	timeout := time.AfterFunc(patience, func() { l.cmd.Process.Kill() })
	defer timeout.Stop()
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end virt-launcher: %w", err)
	}
	_ = l.cmd.Wait() // its error says only that the grace period was over at once
	return nil
}
