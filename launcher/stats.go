package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// statsTimeout bounds QEMU's part of the answer. What the kernel knows is told
// anyway: it is when QEMU hangs that somebody looks.
const statsTimeout = time.Second

// statsSource is where statistics are read. It holds still while QEMU lives.
type statsSource struct {
	machine *qemuargs.Machine
	taps    []string // of machine.NICs; empty for what is no tap
	pid     int
	client  *qmp.Client
	threads []int // of virtual CPUs; nil until QEMU was asked
}

// stats answers with what the VM has used. Nothing is read unless somebody
// asks: an idle VM is left alone.
func (l *launcher) stats(ctx context.Context, m *link.Command) {
	switch state := l.life.Shown(); state {
	case control.StateRunning, control.StatePaused, control.StateShuttingDown:
	default:
		m.Answer(nil, fmt.Errorf("there are no statistics: the VM is %s", state))
		return
	}
	if !l.busy.begin(m.Execute, 1) {
		m.Answer(nil, errors.New("still reading statistics"))
		return
	}
	source := &l.source
	source.machine, source.pid, source.client = &l.start.Machine, l.qemu.PID(), l.qmp
	var reply control.Stats
	l.later(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, statsTimeout)
		defer cancel()
		reply = source.read(ctx)
		return nil
	}, func(error) {
		l.busy.end(m.Execute)
		m.Answer(reply, nil)
	})
}

// read leaves out what cannot be read.
func (s *statsSource) read(ctx context.Context) control.Stats {
	var out control.Stats
	asked := s.machine.Balloon != nil && s.client.AskBalloon(ctx, qemuargs.BalloonID) == nil
	out.Disks = s.disks(ctx)
	out.VCPUs = s.vcpus(ctx)
	if text, err := readProc("%d/stat", s.pid); err == nil {
		if cpu, resident, err := parseStat(text); err == nil {
			out.CPU, out.Resident = &cpu, resident
		}
	}
	out.NICs = s.nics()
	if asked {
		if actual, err := s.client.QueryBalloon(ctx); err == nil {
			out.Balloon = &actual
		}
		// What a guest says that was just asked; or what it said when it was asked
		// before, if it takes its time.
		if g, err := s.client.BalloonStats(ctx, qemuargs.BalloonID); err == nil && g.Updated > 0 {
			out.Guest = &control.GuestMemory{Available: g.Total, Unused: g.Free, Usable: g.Available, Cached: g.Caches,
				SwapIn: g.SwapIn, SwapOut: g.SwapOut, MajorFaults: g.MajorFaults, MinorFaults: g.MinorFaults}
		}
	}
	return out
}

func (s *statsSource) disks(ctx context.Context) []control.DiskStats {
	names := map[string]string{} // by device id
	for _, d := range s.machine.Disks {
		names[d.ID()] = d.Name
	}
	var out []control.DiskStats
	err := s.client.QueryBlockStats(ctx, func(b qmp.BlockStats) {
		// /machine/peripheral/<id>, and the virtio half below it.
		id, _, _ := strings.Cut(strings.TrimPrefix(b.QDev, "/machine/peripheral/"), "/")
		name, ok := names[id]
		if !ok {
			return
		}
		delete(names, id)
		out = append(out, control.DiskStats{Name: name,
			Read:  control.IOStats{Operations: b.Stats.ReadOperations, Bytes: b.Stats.ReadBytes, Time: b.Stats.ReadTime},
			Write: control.IOStats{Operations: b.Stats.WriteOperations, Bytes: b.Stats.WriteBytes, Time: b.Stats.WriteTime},
			Flush: control.IOStats{Operations: b.Stats.FlushOperations, Time: b.Stats.FlushTime}})
	})
	if err != nil {
		return nil
	}
	return out
}

// vcpus asks QEMU once for the threads: they live as long as it does.
func (s *statsSource) vcpus(ctx context.Context) []control.VCPUStats {
	if s.threads == nil {
		cpus, err := s.client.QueryCPUsFast(ctx)
		if want := s.machine.CPU.Count(); err != nil || len(cpus) != want {
			return nil
		}
		for _, c := range cpus {
			s.threads = append(s.threads, c.ThreadID)
		}
	}
	out := make([]control.VCPUStats, len(s.threads))
	for i, thread := range s.threads {
		text, err := readProc("%d/task/%d/schedstat", s.pid, thread)
		if err != nil {
			return nil
		}
		if out[i], err = parseSchedstat(text); err != nil {
			return nil
		}
		if text, err := readProc("%d/task/%d/sched", s.pid, thread); err == nil {
			out[i].Wait = parseWait(text)
		}
	}
	return out
}

// nics reads the taps' counters in the pod's network namespace, which is the
// launcher's own. What a tap sends is what the guest receives.
func (s *statsSource) nics() []control.NICStats {
	text, err := readProc("self/net/dev")
	if err != nil {
		return nil
	}
	links, err := parseLinks(text)
	if err != nil {
		return nil
	}
	var out []control.NICStats
	for i, nic := range s.machine.NICs {
		if tap, ok := links[s.taps[i]]; ok {
			out = append(out, control.NICStats{Name: nic.Name, Receive: tap.Transmit, Transmit: tap.Receive})
		}
	}
	return out
}

// tapNames asks the kernel for the names of the taps behind the cards. All queues
// of one say the same.
func tapNames(machine *qemuargs.Machine, files map[string]*os.File) []string {
	names := make([]string, len(machine.NICs))
	for i, nic := range machine.NICs {
		if queue := files[qemuargs.Inherited{Kind: qemuargs.InheritedTap, Name: nic.Name}.String()]; queue != nil {
			names[i] = tapName(queue)
		}
	}
	return names
}

// tapName is empty for what is no tap.
func tapName(queue *os.File) string {
	raw, err := queue.SyscallConn()
	if err != nil {
		return ""
	}
	name := ""
	raw.Control(func(fd uintptr) {
		if request, err := unix.NewIfreq(""); err == nil && unix.IoctlIfreq(int(fd), unix.TUNGETIFF, request) == nil {
			name = request.Name()
		}
	})
	return name
}
