package launcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/migration"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// This file is the target's side of a migration. migrate.go is the source's, and what both have.

// receives returns why the guest of another QEMU cannot be received now, or nil.
func (l *launcher) receives(command string) error {
	if l.life.Phase != life.Receiving {
		return fmt.Errorf("%s: the VM is %s", command, l.life.Shown())
	}
	return l.canMove(command)
}

// exportDisk answers with a connection to a disk of a guest that is to be received.
func (l *launcher) exportDisk(m *link.Command) (work, error) {
	if namesVariables(m) {
		return l.exportVariables(m)
	}
	disk, err := l.namedDisk(m)
	if err != nil {
		return nil, err
	}
	target := l.moving.receiver(l)
	if disk.Carried() {
		return func(context.Context) (answer, error) {
			file, err := target.Take(disk.Name, disk.Image.Path, disk.Image.Packed)
			return answer{file: file}, err
		}, nil
	}
	return func(ctx context.Context) (answer, error) {
		file, err := target.Export(ctx, disk.NodeName())
		return answer{file: file}, err
	}, nil
}

// exportVariables does for the UEFI variables what exportDisk does for a disk.
func (l *launcher) exportVariables(m *link.Command) (work, error) {
	path, size, err := l.keptVariables(m)
	if err != nil {
		return nil, err
	}
	target := l.moving.receiver(l)
	return func(context.Context) (answer, error) {
		file, err := target.Take(control.VariablesDisk, path, size)
		return answer{file: file}, err
	}, nil
}

// permitPostCopy makes QEMU ready for a guest whose memory comes last.
func (l *launcher) permitPostCopy(*link.Command) (work, error) {
	target := l.moving.receiver(l)
	return result(func(ctx context.Context) (control.PostCopyReply, error) {
		err := target.PermitPostCopy(ctx)
		var refused *qmp.Error
		if errors.As(err, &refused) {
			return control.PostCopyReply{Refused: control.Cut(refused.Error(), control.MaxJobError)}, nil
		}
		return control.PostCopyReply{}, err
	}), nil
}

func (m *moving) receiver(l *launcher) *migration.Target {
	if m.target == nil {
		m.changed = make(chan struct{}, 1)
		m.target = &migration.Target{QEMU: l.qmp, Changed: m.changed}
	}
	return m.target
}

// receive lets QEMU receive a guest from the channel.
func (l *launcher) receive(ctx context.Context, m *link.Command) {
	state := l.moving.channels.State
	if state == nil {
		m.Answer(nil, errors.New("receive: no channel was opened"))
		return
	}
	target, machine := l.moving.receiver(l), &l.start.Machine
	target.Whole = func() error {
		disks.Whole(machine, l.Log)
		err := l.tpm.Sync()
		if err != nil {
			l.Log.Warn("the TPM's state that has arrived may not outlive the node", "error", err)
		}
		return err
	}
	l.moving.channels.State, l.moving.receiving = nil, true
	l.startJob(ctx, m, control.JobReceive, control.JobTargetGuest, 0, func(ctx context.Context) (int64, error) {
		defer state.Close() // also if nobody waits for the result any more: the source would wait for the target
		return 0, target.Receive(ctx, state, func() { l.tell(ctx, life.AllButMemory{}) })
	}, func(err error) {
		l.moving.receiving = false
		if l.life.Memory == life.Coming && err != nil && !errors.Is(err, migration.ErrNoReturn) {
			return // QEMU has ended, and the loop hears of that
		}
		l.hear(ctx, life.ReceptionEnded{Err: err}, nil)
	})
}

func (l *launcher) runAsked(ctx context.Context, m *link.Command) {
	var request control.RunRequest
	if err := control.Decode(m.Data, &request); err != nil {
		m.Answer(nil, err)
		return
	}
	l.hear(ctx, life.RunAsked{Paused: request.Paused, At: time.Now()}, m)
}

// runReceived lets a received guest run, and answers when QEMU has done so. QEMU takes the locks of the disks then,
// which the source has given up. A QEMU that does not answer in time may wait for storage, and let the guest run
// later. virt-handler waits for operateTimeout, and the launcher until QEMU has answered or ended.
func (l *launcher) runReceived(ctx context.Context, m *link.Command) {
	client := l.qmp
	patience, stop := context.WithTimeout(ctx, operateTimeout)
	answer := func(refused string, err error) { // once
		if m == nil {
			return
		}
		if err != nil {
			err = fmt.Errorf("let the received guest run: %w", err)
		}
		m.Answer(control.RunReply{Refused: refused}, err)
		m = nil
	}
	l.later(ctx, func() error {
		<-patience.Done()
		return qmp.ErrTimeout
	}, func(err error) { answer("", err) })
	l.later(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, forever)
		defer cancel()
		return client.Cont(ctx)
	}, func(err error) {
		defer stop()
		var refused *qmp.Error
		switch {
		case err == nil:
			l.settleLinks(ctx)
			l.hear(ctx, life.RunAnswered{}, nil)
			answer("", nil)
		case errors.As(err, &refused):
			l.hear(ctx, life.RunFailed{Err: err, Unheard: m == nil}, nil)
			if l.life.Phase == life.Received { // its memory still comes, and it may be asked to run again
				answer("", err)
				return
			}
			answer(control.Cut(refused.Error(), control.MaxJobError), nil)
		default:
			answer("", err)
		}
	})
}
