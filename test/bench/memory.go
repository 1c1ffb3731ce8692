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

// companions is how many VMs are measured at once. All VMs of a node share pages of programs
// and libraries, which would count as a single VM's own.
const companions = 3

// memoryRows: virt-launcher beside an idle guest, and all that is not guest
// RAM around a QEMU that is stopped at -S.
func memoryRows(ctx context.Context, b *bench) ([]row, error) {
	launcher := row{ID: "launcher", What: "virt-launcher beside an idle guest, RSS", Unit: mebibytes, Ours: series{Name: "RSS"}, Limit: 8,
		Parts: []series{{Name: "PSS"}, {Name: "private (USS)"}, {Name: "private and written"}, {Name: "RSS while it waits for a Machine"}}}
	stopped := row{ID: "around-stopped", What: "not guest RAM, VM stopped at -S, private", Unit: mebibytes, Ours: series{Name: "QEMU and virt-launcher"}, Limit: 16,
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
	var vms []*companion
	defer func() {
		for _, vm := range vms {
			vm.end()
		}
	}()
	for i := range companions {
		vm := &companion{}
		vms = append(vms, vm)
		if err := vm.start(ctx, b, filepath.Join(folder, fmt.Sprint(i))); err != nil {
			return rows, err
		}
	}
	for _, vm := range vms {
		if err := vm.measure(ctx, &rows[0], &rows[1]); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// companion is a launcher with its running VM, and the same machine's QEMU
// stopped at -S.
type companion struct {
	launched *launched
	waiting  memory // of the launcher, before it was told to start
	stopped  *bareQEMU
}

func (c *companion) start(ctx context.Context, b *bench, folder string) error {
	err := os.Mkdir(folder, 0o755)
	if err == nil {
		c.launched, err = launch(ctx, b, folder)
	}
	if err == nil {
		c.waiting, err = settled(ctx, c.launched.cmd.Process.Pid)
	}
	if err == nil {
		_, err = c.launched.start(ctx)
	}
	if err == nil {
		err = c.launched.idle(ctx)
	}
	if err != nil {
		return err
	}
	m := *c.launched.machine
	m.Disks = append(m.Disks[:0:0], m.Disks...)
	overlay := *m.Disks[0].Overlay
	overlay.Path += ".stopped"
	m.Disks[0].Overlay = &overlay
	if _, err = makeOverlay(&m); err == nil {
		c.stopped, err = execBare(ctx, b.qemu, &m)
	}
	return err
}

func (c *companion) measure(ctx context.Context, launcher, stopped *row) error {
	l, err := settled(ctx, c.launched.cmd.Process.Pid)
	if err != nil {
		return err
	}
	q, err := lookedAt(c.stopped.cmd.Process.Pid, guestMemory)
	if err != nil {
		return err
	}
	add(&launcher.Ours, mib(l.RSS))
	for i, bytes := range []int64{l.PSS, l.private(), l.PrivateDirty, c.waiting.RSS} {
		add(&launcher.Parts[i], mib(bytes))
	}
	add(&stopped.Ours, mib(q.private()+l.private()))
	for i, bytes := range []int64{q.private(), q.RSS, q.RSS + l.RSS, q.PageTables + l.PageTables} {
		add(&stopped.Parts[i], mib(bytes))
	}
	return nil
}

func (c *companion) end() {
	if c.launched != nil {
		c.launched.end()
	}
	if c.stopped != nil {
		c.stopped.end()
	}
}

func add(s *series, sample float64) { s.Samples = append(s.Samples, sample) }

// settled waits until a process' memory has not changed for a while: Go gives
// back what it has freed in the background.
func settled(ctx context.Context, pid int) (memory, error) {
	const still = 2 * time.Second
	now, err := lookedAt(pid, 0)
	for begin, since := time.Now(), time.Now(); err == nil && time.Since(since) < still && time.Since(begin) < 10*still; {
		if err = pause(ctx, 200*time.Millisecond); err != nil {
			break
		}
		var next memory
		if next, err = lookedAt(pid, 0); next.RSS != now.RSS {
			now, since = next, time.Now()
		}
	}
	return now, errors.Join(err, ctx.Err())
}
