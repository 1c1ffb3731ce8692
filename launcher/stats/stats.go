// Package stats reads what a VM has used: from QEMU, from /proc, and from the counters of its
// taps. It reads only when somebody asks, so an idle VM is left alone.
package stats

import (
	"context"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Source reads the statistics of one VM, while its QEMU lives and its machine is the same. One goroutine reads at a
// time.
type Source struct {
	Machine *qemuargs.Machine
	// Taps are the names of the taps behind Machine.NICs, by the names of the NICs. A NIC without a tap has none.
	Taps   map[string]string
	PID    int // QEMU's
	Client *qmp.Client

	// Helpers are processes of the launcher's.
	Helpers []int

	ownAt   time.Time // when ownLast was read
	ownLast *control.OwnMemory

	threads []int // of virtual CPUs; nil until QEMU was asked
}

// Read reads what the VM has used, and leaves out what cannot be read. When QEMU hangs,
// somebody looks, so the kernel's numbers are still returned.
func (s *Source) Read(ctx context.Context) control.Stats {
	var out control.Stats
	asked := s.Machine.Balloon != nil && s.Client.AskBalloon(ctx, qemuargs.BalloonID) == nil
	out.Disks = s.disks(ctx)
	out.VCPUs = s.vcpus(ctx)
	if text, err := readProc("%d/stat", s.PID); err == nil {
		if cpu, resident, err := parseStat(text); err == nil {
			out.CPU, out.Resident = &cpu, resident
		}
	}
	out.Own = s.own()
	out.NICs = s.nics()
	if asked {
		if actual, err := s.Client.QueryBalloon(ctx); err == nil {
			out.Balloon = &actual
		}
		// This is the guest's answer to AskBalloon, or to an earlier AskBalloon if the guest
		// is slow.
		if g, err := s.Client.BalloonStats(ctx, qemuargs.BalloonID); err == nil && g.Updated > 0 {
			out.Guest = &control.GuestMemory{Available: g.Total, Unused: g.Free, Usable: g.Available, Cached: g.Caches,
				SwapIn: g.SwapIn, SwapOut: g.SwapOut, MajorFaults: g.MajorFaults, MinorFaults: g.MinorFaults}
		}
	}
	return out
}

func (s *Source) disks(ctx context.Context) []control.DiskStats {
	names := map[string]string{} // by device id
	for _, d := range s.Machine.Disks {
		names[d.ID()] = d.Name
	}
	var out []control.DiskStats
	err := s.Client.QueryBlockStats(ctx, func(b qmp.BlockStats) {
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

// vcpus asks QEMU once for the threads: they live as long as the machine is the same.
func (s *Source) vcpus(ctx context.Context) []control.VCPUStats {
	if s.threads == nil {
		cpus, err := s.Client.QueryCPUsFast(ctx)
		if want := s.Machine.CPU.Count() + len(s.Machine.CPU.Plugged); err != nil || len(cpus) != want {
			return nil
		}
		for _, c := range cpus {
			s.threads = append(s.threads, c.ThreadID)
		}
	}
	out := make([]control.VCPUStats, len(s.threads))
	for i, thread := range s.threads {
		text, err := readProc("%d/task/%d/schedstat", s.PID, thread)
		if err != nil {
			return nil
		}
		if out[i], err = parseSchedstat(text); err != nil {
			return nil
		}
		if text, err := readProc("%d/task/%d/sched", s.PID, thread); err == nil {
			out[i].Wait = parseWait(text)
		}
	}
	return out
}

// nics reads the taps' counters in the pod's network namespace, which is the
// launcher's own. What a tap sends is what the guest receives.
func (s *Source) nics() []control.NICStats {
	text, err := readProc("self/net/dev")
	if err != nil {
		return nil
	}
	links, err := parseLinks(text)
	if err != nil {
		return nil
	}
	var out []control.NICStats
	for _, nic := range s.Machine.NICs {
		if tap, ok := links[s.Taps[nic.Name]]; ok {
			out = append(out, control.NICStats{Name: nic.Name, Receive: tap.Transmit, Transmit: tap.Receive})
		}
	}
	return out
}

// Taps asks the kernel for the names of the taps behind NICs. files are the queues of the taps, by their inherited
// names. All queues of a tap have the same name.
func Taps(nics []qemuargs.NIC, files map[string]*os.File) map[string]string {
	names := map[string]string{}
	for _, nic := range nics {
		if queue := files[qemuargs.Inherited{Kind: qemuargs.InheritedTap, Name: nic.Name}.String()]; queue != nil {
			names[nic.Name] = tapName(queue)
		}
	}
	return names
}

// tapName returns the name of a queue's tap, or "" if the file is no tap.
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
