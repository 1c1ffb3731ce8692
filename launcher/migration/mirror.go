package migration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// Mirror is a disk of which the target has a file of its own.
type Mirror struct {
	// Disk is the disk's name.
	Disk string
	// Node is the block node that the disk's device uses, in both QEMUs.
	Node string
	// Channel is QEMU's end of a connection to the target's export of the node.
	Channel *os.File
}

// mirrors are the mirror jobs that were begun.
type mirrors struct {
	qemu    *qmp.Client
	started []started
}

// started is a mirror and how far its start has come.
type started struct {
	number int
	begun  bool // else there is only a node, and no job
}

// node returns the name of the target's node in the source's QEMU, and job that of the job. Names of
// disks' nodes begin with "disk-", so neither is in use.
func (s started) node() string { return fmt.Sprintf("mirror-%d", s.number) }

func (s started) job() string { return s.node() }

// mirror begins to copy the disks, and waits until all are copied. From then on each write goes to
// both files.
func (s *Source) mirror(ctx context.Context, w *watcher, begun time.Time) (*mirrors, error) {
	m := &mirrors{qemu: s.QEMU}
	for i, disk := range s.Mirrors {
		if err := m.start(ctx, i, disk, s.Limits.Bandwidth); err != nil {
			return m, fmt.Errorf("copy disk %s to the target: %w", disk.Disk, err)
		}
	}
	stall := stall{limit: s.Limits.Stall, now: time.Now}
	return m, w.until(ctx, func() (bool, error) {
		jobs, err := m.jobs(ctx)
		if err != nil {
			return false, err
		}
		left, total := int64(0), int64(0)
		ready := true
		for i, j := range jobs {
			if j.Status == qmp.JobConcluded {
				return false, fmt.Errorf("copy disk %s to the target: %s", s.Mirrors[i].Disk, j.Error)
			}
			left, total = left+j.Total-j.Progress, total+j.Total
			ready = ready && j.Status == qmp.JobReady
		}
		if ready {
			return true, nil
		}
		w.tell(s.Progress, Progress{Transferred: total - left, Remaining: left, Total: total, Elapsed: time.Since(begun)})
		return false, stall.look(left)
	})
}

func (m *mirrors) start(ctx context.Context, number int, disk Mirror, speed int64) error {
	s := started{number: number}
	if err := greeted(ctx, disk.Channel); err != nil {
		return fmt.Errorf("reach the target's disk: %w", err)
	}
	if err := command(ctx, "reach the target's disk", func(ctx context.Context) error {
		if err := m.qemu.GetFD(ctx, s.node(), disk.Channel); err != nil {
			return err
		}
		if err := m.qemu.BlockdevAddNBD(ctx, s.node(), s.node(), disk.Node); err != nil {
			return errors.Join(err, m.qemu.CloseFD(ctx, s.node()))
		}
		return nil
	}); err != nil {
		return err
	}
	m.started = append(m.started, s)
	err := command(ctx, "begin mirror", func(ctx context.Context) error {
		return m.qemu.BlockdevMirror(ctx, s.job(), disk.Node, s.node(), speed)
	})
	m.started[len(m.started)-1].begun = err == nil
	return err
}

const (
	// greetingTimeout is how long the target's export may take to say something.
	greetingTimeout = 30 * time.Second
	greetingLook    = 100 * time.Millisecond
)

// greeted waits until the target's export has said something, or has ended. QEMU would wait for the export in its main
// loop (block/nbd.c, nbd_open), and the guest would soon stand still with that loop: a target that says nothing must
// not reach QEMU.
func greeted(ctx context.Context, channel *os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, greetingTimeout, fmt.Errorf("%w: the target's disk said nothing for %s", ErrTimeout, greetingTimeout))
	defer cancel()
	look := []unix.PollFd{{Fd: int32(channel.Fd()), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		n, err := unix.Poll(look, int(greetingLook.Milliseconds()))
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return context.Cause(ctx)
}

// jobs returns the mirrors' jobs, in the order of the mirrors. Without mirrors, QEMU is asked nothing: the guest may
// stand still meanwhile.
func (m *mirrors) jobs(ctx context.Context) (jobs []qmp.Job, err error) {
	if len(m.started) == 0 {
		return nil, nil
	}
	var all []qmp.Job
	err = command(ctx, "ask how far the disks are", func(ctx context.Context) (err error) {
		all, err = m.qemu.QueryJobs(ctx)
		return err
	})
	for _, s := range m.started {
		i := slices.IndexFunc(all, func(j qmp.Job) bool { return j.ID == s.job() })
		switch {
		case err != nil:
			return nil, err
		case i < 0 && s.begun:
			return nil, fmt.Errorf("QEMU has lost the job %s", s.job())
		case s.begun:
			jobs = append(jobs, all[i])
		}
	}
	return jobs, nil
}

// complete ends the mirrors of a guest that is stopped. The two files of each disk are equal then,
// and the source's QEMU goes on with its own.
func (m *mirrors) complete(ctx context.Context, w *watcher) error { return m.end(ctx, w, false) }

// drop ends the mirrors of a migration that has failed.
func (m *mirrors) drop(ctx context.Context, w *watcher) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	return m.end(ctx, w, true)
}

// end ends all mirrors. Each mirror that has ended is forgotten.
func (m *mirrors) end(ctx context.Context, w *watcher, force bool) error {
	jobs, err := m.jobs(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, j := range jobs {
		if j.Status != qmp.JobConcluded {
			errs = append(errs, command(ctx, "end mirror", func(ctx context.Context) error { return m.qemu.BlockJobCancel(ctx, j.ID, force) }))
		}
	}
	errs = append(errs, w.until(ctx, func() (bool, error) {
		jobs, err = m.jobs(ctx)
		return !slices.ContainsFunc(jobs, func(j qmp.Job) bool { return j.Status != qmp.JobConcluded }), err
	}))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, j := range jobs {
		if j.Error != "" && !force {
			errs = append(errs, fmt.Errorf("copy the last of a disk: %s", j.Error))
		}
	}
	for _, s := range m.started {
		errs = append(errs, command(ctx, "remove mirror", func(ctx context.Context) error {
			if s.begun {
				if err := m.qemu.JobDismiss(ctx, s.job()); err != nil {
					return err
				}
			}
			return m.qemu.BlockdevDelete(ctx, s.node())
		}))
	}
	m.started = nil
	return errors.Join(errs...)
}
