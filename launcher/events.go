package launcher

import (
	"context"
	"encoding/json"
	"time"

	monitor "github.com/digitalocean/go-qemu/qmp"

	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// heard gives an event of QEMU to package life, or to the guest's agent.
func (l *launcher) heard(ctx context.Context, e monitor.Event) {
	l.moving.look()
	l.awaited.note(e)
	switch e.Event {
	case "VSERPORT_CHANGE":
		l.agent.PortChanged(e)
	case "BLOCK_IO_ERROR":
		if failed, stops := parseIOError(e, &l.start.Machine); stops {
			l.hear(ctx, life.IOFailed{Error: failed}, nil)
		}
	case "SHUTDOWN":
		s := qmp.ParseShutdown(e)
		l.hear(ctx, life.PoweredDown{Guest: s.Guest, Reason: s.Reason}, nil)
	case "GUEST_PANICKED":
		action, _ := e.Data["action"].(string)
		l.hear(ctx, life.Panic{Kept: action == "pause"}, nil)
	case "STOP":
		l.hear(ctx, life.Stopped{}, nil)
	case "RESUME":
		l.hear(ctx, life.Resumed{At: time.Now()}, nil)
	}
}

// told hears an event of QEMU's, or that there will be no more.
func (l *launcher) told(ctx context.Context, e monitor.Event, ok bool) {
	if ok {
		l.received++
		l.heard(ctx, e)
		return
	}
	l.events = nil
	if err := l.qmp.Err(); err != nil { // nil: the launcher's context has ended
		l.hear(ctx, life.MonitorLost{Err: err}, nil)
	}
}

// catchUp hears the events that QEMU has sent up to now. Among them are those that came before QEMU's answer to a
// command. The loop must not hear the answer first: of a guest that a user has paused it would think that it runs.
func (l *launcher) catchUp(ctx context.Context) {
	if l.events == nil {
		return
	}
	sent, _ := l.qmp.EventCounts()
	for l.events != nil {
		if _, dropped := l.qmp.EventCounts(); l.received+dropped >= sent {
			return
		}
		e, ok := <-l.events
		l.told(ctx, e, ok)
	}
}

// drainEvents takes the events that QEMU sent before it exited. SHUTDOWN is among them, and
// gives the cause.
func (l *launcher) drainEvents(ctx context.Context) {
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	for l.events != nil {
		select {
		case e, ok := <-l.events:
			if !ok {
				return
			}
			l.heard(ctx, e)
		case <-timeout.C:
			return
		}
	}
}

// parseIOError reads a BLOCK_IO_ERROR event (qapi/block-core.json). stops is false if QEMU
// does not stop the guest for this error.
func parseIOError(e monitor.Event, m *qemuargs.Machine) (failed life.IOError, stops bool) {
	text := func(key string) string {
		s, _ := e.Data[key].(string)
		return s
	}
	if text("action") != "stop" {
		return failed, false
	}
	failed = life.IOError{Disk: diskOfNode(m, text("node-name")), Operation: text("operation"), Text: text("reason")}
	failed.NoSpace, _ = e.Data["nospace"].(bool)
	return failed, true
}

// diskOfNode returns the name of the disk whose device uses a block node. For an unknown node it returns the node's
// name.
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
