package main

import "time"

// companions is how many VMs are measured at once. All VMs of a node share pages of programs
// and libraries, which would count as a single VM's own.
const companions = 3

// measureMemory measures virt-launcher beside an idle guest, and all that is not guest
// RAM around a QEMU that is stopped at -S.
func measureMemory(r *run) {
	r.lockThread()
	var vms []*companion
	for range companions {
		vms = append(vms, startCompanion(r))
	}
	for _, vm := range vms {
		vm.measure(r)
	}
}

// companion is a launcher with its running VM, and the same machine's QEMU
// stopped at -S.
type companion struct {
	launcher int    // PID
	waiting  memory // of the launcher, before it was told to start
	stopped  *bareQEMU
}

func startCompanion(r *run) *companion {
	l := launch(r, r.folder(""), idleBootSector())
	c := &companion{launcher: l.cmd.Process.Pid}
	c.waiting = settled(r, c.launcher)
	l.start(r)
	l.idle(r)
	c.stopped = execBare(r, withOverlay(l.machine, l.machine.Disks[0].Overlay.Path+".stopped", 0), nil)
	return c
}

func (c *companion) measure(r *run) {
	l, q := settled(r, c.launcher), memoryOf(c.stopped.pid, guestMemory)
	r.add("launcher", mib(l.RSS))
	r.addParts("launcher", mibs(l.PSS, l.private(), l.PrivateDirty, c.waiting.RSS)...)
	r.add("around-stopped", mib(q.private()+l.private()))
	r.addParts("around-stopped", mibs(q.private(), q.RSS, q.RSS+l.RSS, q.PageTables+l.PageTables)...)
}

// settled waits until a process' memory has not changed for a while: Go gives
// back what it has freed in the background.
func settled(r *run, pid int) memory {
	const still = 2 * time.Second
	now, since := memoryOf(pid, 0), time.Now()
	for begin := since; time.Since(since) < still && time.Since(begin) < 10*still; {
		r.pause(200 * time.Millisecond)
		if next := memoryOf(pid, 0); next.RSS != now.RSS {
			now, since = next, time.Now()
		}
	}
	return now
}
