package launcher

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/pinning"
	"github.com/kubeqemu/kubeqemu/launcher/podlog"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/launcher/stats"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// startRequested takes a start request. From then on the start needs no virt-handler.
func (l *launcher) startRequested(ctx context.Context, m *link.Command) {
	if l.life.Phase != life.Waiting {
		l.hear(ctx, life.StartAsked{}, m) // package life answers why not
		return
	}
	var request control.StartRequest
	err := control.Decode(m.Data, &request)
	if err == nil {
		err = checkHost(request.Host)
	}
	var files map[string]*os.File
	if err == nil {
		files, err = startFiles(m.Files, &request)
	}
	if err != nil {
		m.Answer(nil, err)
		return
	}
	l.start, l.files, m.Files = &request, files, nil
	l.hear(ctx, life.StartAsked{Order: life.Order{Paused: request.Paused, Incoming: request.Incoming,
		NoACPI: request.Machine.NoACPI, EndsOnReboot: request.Machine.EndOnReboot,
		Keep: request.KeepLauncher, Grace: request.GraceSeconds}}, m)
}

// rejected notes that virt-handler found no way to start the VM.
func (l *launcher) rejected(ctx context.Context, m *link.Command) {
	var why control.Termination
	if err := control.Decode(m.Data, &why); err != nil {
		m.Answer(nil, err)
		return
	}
	l.hear(ctx, life.Rejected{Text: why.Message}, m)
}

// prepare lets the parts make and open what the start needs, beside the loop.
func (l *launcher) prepare(ctx context.Context) {
	request := l.start
	preparing, abort := context.WithCancel(ctx)
	l.abort = abort
	files, list := map[string]*os.File{}, l.list()
	l.later(ctx, func() error {
		err := list.Prepare(preparing, request, files)
		if err != nil {
			disks.CloseAll(files)
			clear(files)
		}
		return err
	}, func(err error) {
		maps.Copy(l.files, files) // their names differ
		l.hear(ctx, life.Prepared{Err: err}, nil)
	})
}

// startFiles returns the files of a start request by name. It fails unless they are exactly
// those that the request needs.
func startFiles(brought []control.File, request *control.StartRequest) (map[string]*os.File, error) {
	var needed []string
	for _, i := range request.Machine.Inherits() {
		if i.Bringer() == qemuargs.ByHandler {
			needed = append(needed, i.String())
		}
	}
	for _, d := range request.DHCP {
		needed = append(needed, control.DHCPFile(d.NIC))
	}
	for _, d := range request.IPv6 {
		needed = append(needed, control.RouterFile(d.NIC), control.DHCP6File(d.NIC))
	}
	return exactly(needed, brought, "start")
}

// exactly returns a command's files by name. It fails unless they are those that are needed.
func exactly(needed []string, brought []control.File, command string) (map[string]*os.File, error) {
	files := map[string]*os.File{}
	for _, f := range brought {
		if !slices.Contains(needed, f.Name) {
			return nil, fmt.Errorf("%s came with the file %q, for which the machine has no use", command, f.Name)
		}
		files[f.Name] = f.File
	}
	for _, name := range needed {
		if files[name] == nil {
			return nil, fmt.Errorf("%s came without the file %q, which the machine needs", command, name)
		}
	}
	return files, nil
}

// exec starts QEMU. Beside the loop it then does the QMP handshake and lets the guest run. After an error the caller
// abandons the start.
func (l *launcher) exec(ctx context.Context) error {
	l.stderr = podlog.Messages(l.Stderr, "QEMU", l.Log)
	l.changeMachine(func(m *qemuargs.Machine) { m.Clock = m.Clock.At(time.Now()) })
	var err error
	if l.cpus, err = l.dedicate(); err != nil {
		return err
	}
	if err = l.list().Start(l.start, l.files); err != nil {
		return err
	}
	q, err := l.startQEMU()
	if err != nil {
		return err
	}
	l.sets = l.start.Machine.Sets()
	taps := stats.Taps(l.start.Machine.NICs, l.files)
	// QEMU has its own copies now. Taps and disks that stay open here would outlive QEMU.
	disks.CloseAll(l.files)
	l.qemu, l.exited, l.files = q, q.Exited(), nil
	if err := l.list().Attach(l.start, q); err != nil {
		return err
	}
	// Before QEMU answers anything it opens the disks, and slow storage delays that.
	l.qmp = qmp.New(q.QMP, qmp.Options{Logger: l.Log, Timeout: handshakePatience(&l.start.Machine)})
	l.source = &stats.Source{Machine: &l.start.Machine, Taps: taps, PID: q.PID(), Client: l.qmp}
	if pid := l.tpm.PID(); pid != 0 {
		l.source.Helpers = []int{pid}
	}
	if l.events, err = l.qmp.Events(ctx); err != nil {
		return fmt.Errorf("subscribe to QEMU's events: %w", err)
	}
	l.shakeHands(ctx)
	return nil
}

// abandon undoes a start that has failed, as far as Close does not.
func (l *launcher) abandon() {
	if l.qemu != nil {
		l.qemu.End()
	}
	l.exited, l.events = nil, nil
	l.tpm.Abandon(l.start, l.files)
}

// shakeHands does the QMP handshake beside the loop. Then the guest runs, unless it is to
// start paused.
func (l *launcher) shakeHands(ctx context.Context) {
	starting, abort := context.WithCancel(ctx)
	l.abort()
	l.abort = abort
	client, stopped, incoming, cpu := l.qmp, l.start.Paused || l.start.Incoming, l.start.Incoming, l.start.Machine.CPU
	plan, pid, nics := l.cpus, l.qemu.PID(), l.start.Machine.NICs
	patience := handshakePatience(&l.start.Machine)
	l.ask(ctx, patience, func(context.Context) error {
		return handshake(starting, client, plan, pid, stopped, patience, func(ctx context.Context) error {
			if err := setLinks(ctx, client, nics); err != nil {
				return err
			}
			settled, err := settle(ctx, client, cpu, incoming)
			if err != nil {
				return err
			}
			return l.change(ctx, func(m *qemuargs.Machine) { m.CPU = settled })
		})
	}, func(err error) {
		if err != nil {
			l.hear(ctx, life.HandshakeFailed{Err: err}, nil)
			return
		}
		l.hear(ctx, life.Handshaken{At: time.Now()}, nil)
	})
}

// handshakePatience returns how long the handshake may take. QEMU takes all of a guest's huge pages, or of memory
// that it takes at its start, before it answers. The kernel clears each: 3.8 s for 1 GiB of huge pages were seen on
// one CPU.
func handshakePatience(m *qemuargs.Machine) time.Duration {
	if m.HugePageBytes == 0 && !m.PreallocMemory {
		return handshakeTimeout
	}
	const most = 64 << 10 // 64 TiB, which keeps the product inside an int64
	return handshakeTimeout + time.Duration(min(m.MemoryBytes>>30, most))*hugePagesPerGiB
}

// handshake connects to QEMU's monitor, prepares the guest, gives the guest's CPUs their places, and lets the guest
// run, unless its CPUs are to stay stopped, or lack a feature.
func handshake(ctx context.Context, client *qmp.Client, plan *pinning.Plan, pid int, stopped bool,
	patience time.Duration, prepare func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := client.Connect(); err != nil {
		return fmt.Errorf("connect to QEMU: %w", err)
	}
	if err := prepare(ctx); err != nil {
		return err
	}
	if plan != nil {
		if err := pin(ctx, client, plan, pid); err != nil {
			return err
		}
	}
	if stopped {
		return nil
	}
	if err := client.Cont(ctx); err != nil {
		return fmt.Errorf("run the guest: %w", err)
	}
	return nil
}

// program returns QEMU's path. The image has one QEMU for each architecture that its guests can have.
func (l *launcher) program() string {
	if l.QEMU == layout.QEMU && l.start.Machine.Arch == qemuargs.ARM64 {
		return layout.QEMUForARM64
	}
	return l.QEMU
}
