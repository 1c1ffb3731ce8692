package launcher

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

	"github.com/kubeqemu/kubeqemu/launcher/guestagent"
)

// AgentRequest is a line on the agent's socket in the pod, which kubelet's
// probes ask on. Without a program, the agent is to show that it answers.
type AgentRequest struct {
	Program        string   `json:"program,omitempty"`
	Args           []string `json:"args,omitempty"`
	TimeoutSeconds int64    `json:"timeoutSeconds"`
	// Readiness: it is asked whether the guest is of use, not whether it is to
	// blame. Before it has been started it is neither.
	Readiness bool `json:"readiness,omitempty"`
}

// AgentAnswer is the line that answers it.
type AgentAnswer struct {
	guestagent.Result
	// Skipped says why the guest was not asked, if it cannot answer for a reason
	// that is no failure of its own: it has not been started, is paused, or its
	// file systems are frozen.
	Skipped string `json:"skipped,omitempty"`
	// Error says why there is no result.
	Error string `json:"error,omitempty"`
}

const (
	maxAgentRequest = 64 << 10
	// maxProbes is how many questions from the pod are answered at a time.
	maxProbes = 8
	// maxProbeTime is how long one of them may take.
	maxProbeTime = 10 * time.Minute
	// acceptPause follows on a failure to take a connection: too many files are
	// open, perhaps, and the next moment some are not.
	acceptPause = time.Second
)

// agentSocket answers questions to the guest's agent from within the pod, also
// while there is no guest yet: the kubelet's liveness probe does not wait for it.
type agentSocket struct {
	agent    atomic.Pointer[agent] // nil until QEMU has been started
	listener net.Listener
	places   chan struct{}
	cancel   context.CancelFunc
	wait     sync.WaitGroup
	log      *slog.Logger
}

func listenForProbes(path string, log *slog.Logger) (*agentSocket, error) {
	os.Remove(path)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for probes: %w", err)
	}
	return serveProbes(listener, log), nil
}

func serveProbes(listener net.Listener, log *slog.Logger) *agentSocket {
	s := &agentSocket{listener: listener, places: make(chan struct{}, maxProbes), log: log}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	s.wait.Go(func() { s.accept(ctx) })
	return s
}

// Close ends the socket and what is being answered.
func (s *agentSocket) Close() {
	s.cancel()
	s.listener.Close()
	s.wait.Wait()
}

func (s *agentSocket) accept(ctx context.Context) {
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
			pause(ctx, acceptPause)
			continue
		}
		s.wait.Go(func() {
			defer func() { <-s.places }()
			defer conn.Close()
			s.serve(ctx, conn)
		})
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (s *agentSocket) serve(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, maxProbeTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var request AgentRequest
	line, err := bufio.NewReader(io.LimitReader(conn, maxAgentRequest)).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &request)
	}
	if err != nil {
		return
	}
	ctx, stop := context.WithTimeout(ctx, time.Duration(min(max(request.TimeoutSeconds, 1), int64(maxProbeTime/time.Second)))*time.Second)
	defer stop()
	// Who asked may go; then nobody wants the answer.
	go func() {
		conn.Read(make([]byte, 1))
		stop()
	}()
	data, err := json.Marshal(s.answer(ctx, request))
	if err != nil {
		s.log.Error("encode answer to probe", "error", err)
		return
	}
	_ = conn.SetWriteDeadline(time.Now().Add(drainTimeout))
	conn.Write(append(data, '\n'))
}

func (s *agentSocket) answer(ctx context.Context, r AgentRequest) AgentAnswer {
	if a := s.agent.Load(); a != nil {
		return a.probe(ctx, r)
	}
	const why = "the guest has not been started"
	if r.Readiness {
		return AgentAnswer{Error: why}
	}
	return AgentAnswer{Skipped: why}
}

// probe asks the agent, unless the guest is not to be blamed for its silence.
func (a *agent) probe(ctx context.Context, r AgentRequest) AgentAnswer {
	if why := a.excuse(r.Program != ""); why != "" {
		return AgentAnswer{Skipped: why}
	}
	var answer AgentAnswer
	var err error
	switch {
	case !a.Report().Connected:
		err = errNoAgent
	case r.Program == "":
		err = a.client.Alive(ctx)
	default:
		answer.Result, err = a.client.Exec(ctx, r.Program, r.Args)
	}
	if err == nil {
		return answer
	}
	// It may have been paused, or frozen, meanwhile.
	if why := a.excuse(r.Program != ""); why != "" {
		return AgentAnswer{Skipped: why}
	}
	return AgentAnswer{Error: err.Error()}
}

// excuse says why the guest cannot answer, through no fault of its own. While
// its file systems are frozen, an agent runs no program.
func (a *agent) excuse(runsProgram bool) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !a.running:
		return "the guest's CPUs are stopped"
	case a.halting:
		return "the guest's file systems are being frozen"
	case runsProgram && a.report.Frozen:
		return "the guest's file systems are frozen"
	}
	return ""
}
