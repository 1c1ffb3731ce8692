package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/timer"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/guestagent"
)

// Request is a line on the agent's socket in the pod, on which the kubelet's probes ask.
// Without a program, the agent only has to answer.
type Request struct {
	Program        string   `json:"program,omitempty"`
	Args           []string `json:"args,omitempty"`
	TimeoutSeconds int64    `json:"timeoutSeconds"`
	// Readiness: the question is whether the guest is of use. A guest that has not been
	// started is of no use. Without Readiness the question is whether the guest has failed.
	Readiness bool `json:"readiness,omitempty"`
}

// Answer is the line that answers a Request.
type Answer struct {
	guestagent.Result
	// Skipped says why the guest was not asked, if it cannot answer for a reason
	// that is no failure of its own: it has not been started, is paused, or its
	// file systems are frozen.
	Skipped string `json:"skipped,omitempty"`
	// Error says why there is no result.
	Error string `json:"error,omitempty"`
}

const (
	// answerTimeout bounds the writing of an answer.
	answerTimeout = time.Second
	maxRequest    = 64 << 10
	// maxProbes is how many questions from the pod are answered at a time.
	maxProbes = 8
	// maxProbeTime is how long one question may take.
	maxProbeTime = 10 * time.Minute
	// acceptDelay is the pause after a failure to accept a connection. Perhaps too many files
	// are open, and soon fewer are.
	acceptDelay = time.Second
)

// Probes answers questions to the guest's agent from within the pod, also while there is no
// guest yet: the kubelet's liveness probe does not wait for a guest.
type Probes struct {
	agent    atomic.Pointer[Agent] // nil until QEMU has been started
	listener net.Listener
	places   chan struct{}
	cancel   context.CancelFunc
	wait     sync.WaitGroup
	log      *slog.Logger
}

// ListenForProbes answers on a socket at path, until Close.
func ListenForProbes(path string, log *slog.Logger) (*Probes, error) {
	os.Remove(path)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for probes: %w", err)
	}
	return serveProbes(listener, log), nil
}

func serveProbes(listener net.Listener, log *slog.Logger) *Probes {
	s := &Probes{listener: listener, places: make(chan struct{}, maxProbes), log: log}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	s.wait.Go(func() { s.accept(ctx) })
	return s
}

// Follow makes probes ask a from now on.
func (s *Probes) Follow(a *Agent) { s.agent.Store(a) }

// Close ends the socket and the answers under way.
func (s *Probes) Close() {
	s.cancel()
	s.listener.Close()
	s.wait.Wait()
}

func (s *Probes) accept(ctx context.Context) {
	for {
		select {
		case s.places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := s.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			s.log.Warn("accept probe", "error", err)
			<-s.places
			timer.Wait(acceptDelay, ctx.Done())
			continue
		}
		s.wait.Go(func() {
			defer func() { <-s.places }()
			defer conn.Close()
			s.serve(ctx, conn)
		})
	}
}

func (s *Probes) serve(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, maxProbeTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var request Request
	line, err := bufio.NewReader(io.LimitReader(conn, maxRequest)).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &request)
	}
	if err != nil {
		return
	}
	ctx, stop := context.WithTimeout(ctx, time.Duration(min(max(request.TimeoutSeconds, 1), int64(maxProbeTime/time.Second)))*time.Second)
	defer stop()
	// The probe may go away; then nobody wants the answer.
	go func() {
		conn.Read(make([]byte, 1))
		stop()
	}()
	data, err := json.Marshal(s.answer(ctx, request))
	if err != nil {
		s.log.Error("encode answer to probe", "error", err)
		return
	}
	_ = conn.SetWriteDeadline(time.Now().Add(answerTimeout))
	conn.Write(append(data, '\n'))
}

func (s *Probes) answer(ctx context.Context, r Request) Answer {
	if a := s.agent.Load(); a != nil {
		return a.probe(ctx, r)
	}
	const why = "the guest has not been started"
	if r.Readiness {
		return Answer{Error: why}
	}
	return Answer{Skipped: why}
}

// probe asks the agent, unless the guest has an excuse for its silence.
func (a *Agent) probe(ctx context.Context, r Request) Answer {
	if why := a.excuse(r.Program != ""); why != "" {
		return Answer{Skipped: why}
	}
	var answer Answer
	var err error
	switch {
	case !a.Report().Connected:
		err = ErrNotConnected
	case r.Program == "":
		err = a.client.Alive(ctx)
	default:
		answer.Result, err = a.client.Exec(ctx, r.Program, r.Args)
	}
	if err == nil {
		return answer
	}
	// The guest may have been paused or frozen meanwhile.
	if why := a.excuse(r.Program != ""); why != "" {
		return Answer{Skipped: why}
	}
	if r.Program == "" {
		a.missedPing(r.Readiness)
	}
	return Answer{Error: err.Error()}
}

// pingInterval is the least time between two reports of pings without an answer. The kubelet
// may probe every second, for as long as the pod lives.
const pingInterval = time.Minute

// missedPing reports that the agent left a probe's ping unanswered. A guest that boots is not
// ready yet, and that is no failure.
func (a *Agent) missedPing(readiness bool) {
	now := time.Now()
	a.update(func(r *control.AgentReport) {
		if (a.met || !readiness) && now.Sub(r.PingFailed).Abs() >= pingInterval {
			r.PingFailed = now.Round(0)
		}
	})
}

// HoldPings sets whether the pings of probes are answered without asking the agent.
func (a *Agent) HoldPings(hold bool) {
	a.update(func(r *control.AgentReport) { r.PingsHeld = hold })
}

// excuse returns why the guest cannot answer, through no fault of its own; empty if it has no
// excuse. While the guest's file systems are frozen, its agent runs no program.
func (a *Agent) excuse(runsProgram bool) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !a.running:
		return "the guest's CPUs are stopped"
	case a.halting:
		return "the guest's file systems are being frozen"
	case runsProgram && a.report.Frozen:
		return "the guest's file systems are frozen"
	case !runsProgram && a.report.PingsHeld:
		return "the VMI's annotation holds guestAgentPing probes"
	}
	return ""
}
