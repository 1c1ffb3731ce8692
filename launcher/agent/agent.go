// Package agent follows the QEMU guest agent of a VM: whether the agent is there, what it
// knows, and which credentials it brings into the guest. It answers the kubelet's probes too.
package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	monitor "github.com/digitalocean/go-qemu/qmp"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/guestagent"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// ErrNotConnected: there is no guest agent that could be asked.
var ErrNotConnected = errors.New("the guest agent is not connected")

// Agent follows QEMU's guest agent: whether it is there, and what it knows. A nil Agent stands
// for a machine without the agent's port: PortChanged, SetRunning, End, Poll and Report may be
// called on it, and do nothing.
type Agent struct {
	client *guestagent.Client
	macs   []string // of the machine's NICs
	tell   func(control.AgentReport)
	log    *slog.Logger

	credentials Credentials

	mu      sync.Mutex
	open    bool // a program in the guest has the port open
	opening int  // how often a program opened it
	running bool // the guest's CPUs run
	due     bool // virt-handler wants to know what is new
	ended   bool // QEMU has ended; nothing is reported of a guest that is gone
	halting bool // the agent is freezing the file systems, and answers nothing else
	met     bool // the agent has been connected before
	report  control.AgentReport
	changed chan struct{} // signals that change was called

	freezing sync.Mutex  // held during a freeze or a thaw
	thawAt   time.Time   // when the guest is to be thawed; zero: only on request
	thawer   *time.Timer // runs until thawAt

	cancel context.CancelFunc
	wait   sync.WaitGroup
}

// New follows the agent behind port, which New takes over. tell gets each report that
// differs from the last.
func New(port net.Conn, m *qemuargs.Machine, c Credentials, tell func(control.AgentReport), log *slog.Logger) *Agent {
	a := &Agent{client: guestagent.New(port), credentials: c, tell: tell, log: log, changed: make(chan struct{}, 1),
		thawer: stoppedTimer()}
	for _, nic := range m.NICs {
		a.macs = append(a.macs, nic.MAC)
	}
	if len(c.Wanted) > 0 {
		a.update(func(r *control.AgentReport) {
			r.Credentials = &control.CredentialsReport{Message: control.AgentOffline}
		})
	}
	var ctx context.Context
	ctx, a.cancel = context.WithCancel(context.Background())
	a.wait.Go(func() { a.run(ctx) })
	a.wait.Go(func() { a.thawInTime(ctx) })
	return a
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// Close ends the port and the goroutines.
func (a *Agent) Close() {
	a.cancel()
	a.client.Close()
	a.wait.Wait()
}

// PortChanged takes a VSERPORT_CHANGE event (qapi/char.json). QEMU sends one event a
// second at most, of the latest state.
func (a *Agent) PortChanged(e monitor.Event) {
	if id, _ := e.Data["id"].(string); a == nil || id != qemuargs.AgentPortID {
		return
	}
	open, _ := e.Data["open"].(bool)
	a.change(func() {
		a.open = open
		if open {
			a.opening++
		}
	})
}

// SetRunning notes whether the guest's CPUs run.
func (a *Agent) SetRunning(running bool) {
	if a != nil {
		a.change(func() { a.running = running })
	}
}

// End notes that there is no guest any more.
func (a *Agent) End() {
	if a != nil {
		a.change(func() { a.open, a.ended = false, true })
		a.update(func(*control.AgentReport) {})
	}
}

// Poll lets the agent be asked for news soon.
func (a *Agent) Poll() {
	if a != nil {
		a.change(func() { a.due = true })
	}
}

func (a *Agent) change(set func()) {
	a.mu.Lock()
	set()
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// Report returns what is known of the agent and its guest.
func (a *Agent) Report() control.AgentReport {
	if a == nil {
		return control.AgentReport{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.report
}

// answerable reports whether a program in the guest has the port open, and the guest runs.
func (a *Agent) answerable() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open && a.running
}

// update changes the report, and tells the report if it is new.
func (a *Agent) update(set func(*control.AgentReport)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := encoded(a.report)
	set(&a.report)
	if a.ended { // an answer that was on its way is too late
		a.report = control.AgentReport{}
	}
	if !bytes.Equal(before, encoded(a.report)) {
		a.tell(a.report) // under mu, so that no report overtakes another
	}
}

func encoded(r control.AgentReport) []byte {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // plain data
	}
	return data
}

// run asks the agent whenever something is due.
func (a *Agent) run(ctx context.Context) {
	w := watch{Agent: a}
	timer := stoppedTimer()
	defer timer.Stop()
	for ctx.Err() == nil {
		if next := w.step(ctx); next > 0 {
			timer.Reset(next)
		} else {
			timer.Stop()
		}
		select {
		case <-a.changed:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}
