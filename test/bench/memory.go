package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// companions is how many VMs are measured at once: pages of programs and
// libraries are shared by all VMs of a node, and would be counted as a single
// VM's own.
const companions = 3

// memoryRows: virt-launcher beside an idle guest, and all that is not guest
// RAM around a QEMU that is stopped at -S.
func memoryRows(ctx context.Context, b *bench) ([]row, error) {
	launcher := row{ID: "launcher", What: "virt-launcher beside an idle guest, RSS", Unit: mebibytes, Ours: series{Name: "RSS"}, Limit: 8,
		Parts: []series{{Name: "PSS"}, {Name: "private (USS)"}, {Name: "private and written"}, {Name: "RSS while it waits for a Machine"}}}
	stopped := row{ID: "around-stopped", What: "not guest RAM, VM stopped at -S, private", Unit: mebibytes, Ours: series{Name: "QEMU and virt-launcher"}, Limit: 30,
		Parts: []series{{Name: "QEMU, private"}, {Name: "QEMU, RSS"}, {Name: "RSS of both: a VM alone on its node"}, {Name: "page tables of both, besides"}},
		Notes: []string{fmt.Sprintf("%d VMs side by side, so that pages of programs and libraries count as shared.", companions)}}
	rows := []row{launcher, stopped}
	// QEMU ends with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	folder, err := os.MkdirTemp("", "kubeqemu-bench-")
	if err != nil {
		return rows, err
	}
	defer os.RemoveAll(folder)
	var ends []func() error
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	var launchers, qemus []int
	for i := range companions {
		l, err := launch(ctx, b, filepath.Join(folder, mustMkdir(folder, fmt.Sprint("running", i))))
		if err != nil {
			return rows, err
		}
		ends = append(ends, l.end)
		pid := l.cmd.Process.Pid
		waiting, err := settled(ctx, pid)
		if err == nil {
			_, _, err = l.start(ctx)
		}
		if err == nil {
			err = l.idle(ctx)
		}
		if err != nil {
			return rows, err
		}
		add(&rows[0].Parts[3], mib(waiting.RSS))
		launchers = append(launchers, pid)
		q, err := stoppedBeside(ctx, b, l)
		if err != nil {
			return rows, err
		}
		ends = append(ends, q.end)
		qemus = append(qemus, q.cmd.Process.Pid)
	}
	for i := range companions {
		l, err := settled(ctx, launchers[i])
		if err != nil {
			return rows, err
		}
		q, err := memoryOf(qemus[i], guestMemory)
		if err != nil {
			return rows, err
		}
		add(&rows[0].Ours, mib(l.RSS))
		add(&rows[0].Parts[0], mib(l.PSS))
		add(&rows[0].Parts[1], mib(l.private()))
		add(&rows[0].Parts[2], mib(l.PrivateDirty))
		add(&rows[1].Ours, mib(q.private()+l.private()))
		add(&rows[1].Parts[0], mib(q.private()))
		add(&rows[1].Parts[1], mib(q.RSS))
		add(&rows[1].Parts[2], mib(q.RSS+l.RSS))
		add(&rows[1].Parts[3], mib(q.PageTables+l.PageTables))
	}
	return rows, nil
}

func mustMkdir(folder, name string) string {
	os.Mkdir(filepath.Join(folder, name), 0o755) // what uses it says so
	return name
}

func add(s *series, sample float64) { s.Samples = append(s.Samples, sample) }

// stoppedBeside execs the same machine as a launcher's, over an overlay of its
// own, and leaves it at -S.
func stoppedBeside(ctx context.Context, b *bench, l *launched) (*bareQEMU, error) {
	m := *l.machine
	m.Disks = append(m.Disks[:0:0], m.Disks...)
	overlay := *m.Disks[0].Overlay
	overlay.Path += ".stopped"
	m.Disks[0].Overlay = &overlay
	if _, err := makeOverlay(ctx, &m); err != nil {
		return nil, err
	}
	return execBare(ctx, b.qemu, &m)
}

// settled waits until a process' memory has not changed for a while: Go gives
// back what it has freed in the background.
func settled(ctx context.Context, pid int) (memory, error) {
	const still = 2 * time.Second
	now, err := memoryOf(pid, 0)
	for begin, since := time.Now(), time.Now(); err == nil && time.Since(since) < still && time.Since(begin) < 10*still; {
		if err = pause(ctx, 200*time.Millisecond); err != nil {
			break
		}
		var next memory
		if next, err = memoryOf(pid, 0); next.RSS != now.RSS {
			now, since = next, time.Now()
		}
	}
	return now, errors.Join(err, ctx.Err())
}
