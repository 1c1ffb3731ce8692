package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"time"

	monitor "github.com/digitalocean/go-qemu/qmp"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// qmpPatience is how long QEMU has to answer before it is said to be silent.
// Its main loop may wait that long for storage under load.
const qmpPatience = 10 * time.Second

// forever is longer than any VM lives.
const forever = time.Duration(math.MaxInt64)

// probe asks QEMU whether it is there, unless it still owes the last answer.
// virt-handler's question brings this about, so that an idle VM is woken once
// for both. The question stays open however long QEMU takes: the answer tells
// at once that it is back, without asking again.
func (l *launcher) probe(ctx context.Context) {
	if l.probing || l.qmp == nil || l.state.StartedAt == nil {
		return
	}
	l.probing = true
	l.patience.Reset(qmpPatience)
	client := l.qmp
	l.later(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, forever)
		defer cancel()
		_, err := client.QueryStatus(ctx)
		return err
	}, func(err error) {
		l.probing = false
		l.patience.Stop()
		if !errors.Is(err, qmp.ErrClosed) {
			l.setSilent(false)
		}
	})
}

func (l *launcher) setSilent(silent bool) {
	if l.state.QEMUSilent == silent {
		return
	}
	l.state.QEMUSilent = silent
	if silent {
		l.Log.Warn("QEMU does not answer", "since", qmpPatience)
	} else {
		l.Log.Info("QEMU answers again")
	}
	l.slot.report(l.state)
}

// ioError is the data of a BLOCK_IO_ERROR event (qapi/block-core.json).
type ioError struct {
	disk, operation, text string
	noSpace               bool
}

func parseIOError(e monitor.Event, m *qemuargs.Machine) *ioError {
	text := func(key string) string {
		s, _ := e.Data[key].(string)
		return s
	}
	if text("action") != "stop" {
		return nil
	}
	out := &ioError{disk: diskOfNode(m, text("node-name")), operation: text("operation"), text: text("reason")}
	out.noSpace, _ = e.Data["nospace"].(bool)
	return out
}

// diskOfNode is the name of the disk that opens a block node, or the node's name.
func diskOfNode(m *qemuargs.Machine, node string) string {
	for _, d := range m.Disks {
		var device struct {
			Drive string `json:"drive"`
		}
		data, err := json.Marshal(d.Device())
		if err == nil && json.Unmarshal(data, &device) == nil && device.Drive == node {
			return d.Name
		}
	}
	return node
}

// paused notes that the guest's CPUs were stopped, and why. QEMU tells of an
// I/O error before it stops for it (blk_error_action in block/block-backend.c);
// any other cause is in its run state.
func (l *launcher) paused(ctx context.Context) {
	if l.ioError != nil {
		l.pausedForIO()
		return
	}
	l.retry.stop()
	l.state.Pause = &control.Pause{Status: control.PausedByUser}
	switch l.state.State {
	case control.StateRunning:
		l.setState(control.StatePaused)
	case control.StatePaused: // for an I/O error, and on trial
		l.slot.report(l.state)
	}
	client, since := l.qmp, l.state.Pause
	var status qmp.Status
	l.later(ctx, func() (err error) {
		status, err = client.QueryStatus(ctx)
		return err
	}, func(err error) {
		// Another pause, or none, may have come meanwhile.
		if err == nil && !status.Running && l.state.Pause == since && status.Status != since.Status {
			l.state.Pause = &control.Pause{Status: status.Status}
			l.slot.report(l.state)
		}
	})
}

// pausedForIO notes for which error the guest was stopped, and tries again later.
func (l *launcher) pausedForIO() {
	pause := control.Pause{Status: control.PausedIOError, Disk: l.ioError.disk, Operation: l.ioError.operation,
		Error: l.ioError.text, NoSpace: l.ioError.noSpace}
	again := l.state.Pause != nil && *l.state.Pause == pause
	l.state.Pause = &pause
	switch {
	case l.state.State == control.StateRunning:
		l.setState(control.StatePaused)
	case !again:
		l.slot.report(l.state)
	}
	l.retry.schedule()
}

func (l *launcher) resumed() {
	if l.retry.trying {
		l.retry.settled.Reset(settleTime)
		return
	}
	l.retry.stop()
	l.ioError, l.state.Pause = nil, nil
	if l.state.State == control.StatePaused {
		l.setState(control.StateRunning)
	}
}
