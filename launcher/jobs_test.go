package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/process"
)

func ignored() {}

// TestJobsAreBounded: a target has one job at a time. The number of jobs that run at a time is bounded, and so is
// the number of results of which nobody has said that they were seen.
func TestJobsAreBounded(t *testing.T) {
	var j jobs
	first, err := j.begin(control.JobBecome, "a", 10, ignored)
	if err != nil || first.ID == 0 || first.Finished() {
		t.Fatalf("%+v, %v", first, err)
	}
	if _, err := j.begin(control.JobBecome, "a", 20, ignored); err == nil ||
		!strings.Contains(err.Error(), "still working on a") {
		t.Errorf("a second one on the same disk: %v", err)
	}
	running := []*job{first}
	for i := 1; i < control.MaxRunningJobs; i++ {
		next, err := j.begin(control.JobBecome, string(rune('a'+i)), 10, ignored)
		if err != nil || next.ID <= running[i-1].ID {
			t.Fatalf("%+v, %v", next, err)
		}
		running = append(running, next)
	}
	if _, err := j.begin(control.JobBecome, "z", 10, ignored); err == nil ||
		!strings.Contains(err.Error(), "still running") {
		t.Errorf("one more: %v", err)
	}
	j.end(running[0], 10, nil)
	j.end(running[1], 0, context.Canceled)
	j.end(running[2], 5, errors.New(strings.Repeat("x", 2*control.MaxJobError)))
	for i, want := range []control.Job{{State: control.JobDone, Done: 10}, {State: control.JobCanceled},
		{State: control.JobFailed, Done: 5, Error: strings.Repeat("x", control.MaxJobError)}} {
		if got := j.list()[i]; got.State != want.State || got.Done != want.Done || got.Error != want.Error {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if again, err := j.begin(control.JobBecome, "a", 20, ignored); err != nil || again.ID <= running[len(running)-1].ID {
		t.Errorf("the disk's next: %+v, %v", again, err)
	}
	for range 3 * control.MaxFinishedJobs {
		next, err := j.begin(control.JobBecome, "z", 10, ignored)
		if err != nil {
			t.Fatal(err)
		}
		j.end(next, 10, nil)
	}
	listed := j.list()
	finished := slices.DeleteFunc(slices.Clone(listed), func(j control.Job) bool { return !j.Finished() })
	if len(finished) != control.MaxFinishedJobs || len(listed) != control.MaxRunningJobs-2+control.MaxFinishedJobs ||
		finished[len(finished)-1].ID != j.last {
		t.Errorf("listed: %+v", listed)
	}
	if _, err := j.find(1 << 40); err == nil {
		t.Error("there is a job that nobody has begun")
	}
}

// asked is a launcher's loop that is asked by hand.
type asked struct {
	*testing.T
	launcher
	handler *control.Conn
	sent    *control.Conn
	next    uint64
}

func newAsked(t *testing.T) *asked {
	t.Helper()
	ours, theirs, err := process.SocketPair("control")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	a := &asked{T: t, sent: control.NewConn(ours),
		launcher: launcher{Config: Config{Log: log}, results: make(chan func()), busy: busy{},
			link: link.New(filepath.Join(t.TempDir(), "none"), "", control.StateReport{}, log)}}
	defer theirs.Close()
	conn, err := net.FileConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	a.handler = control.NewConn(conn.(*net.UnixConn))
	t.Cleanup(func() { a.link.Close(); a.sent.Close(); a.handler.Close() })
	return a
}

// ask handles a command as the loop does, and returns its answer.
func (a *asked) ask(command string, arguments, result any) error {
	a.Helper()
	a.next++
	a.handle(a.Context(), a.message(command, arguments))
	return a.answered(result)
}

func (a *asked) message(command string, arguments any) *link.Command {
	a.Helper()
	data, err := json.Marshal(arguments)
	if err != nil {
		a.Fatal(err)
	}
	return &link.Command{Message: &control.Message{Execute: command, ID: a.next, Data: data}, Send: a.sent.Send,
		Log: a.launcher.Log}
}

func (a *asked) answered(result any) error {
	a.Helper()
	reply, err := a.handler.Receive()
	switch {
	case err != nil:
		a.Fatal(err)
	case reply.Error != nil:
		return reply.Error
	case result == nil:
		return nil
	}
	return control.Decode(reply.Return, result)
}

// TestJobCommands: a job is begun at once, listed, canceled where it can be, and
// forgotten when its result was seen.
func TestJobCommands(t *testing.T) {
	a := newAsked(t)
	begun := make(chan struct{})
	var ended error
	a.startJob(t.Context(), a.message(control.CommandBecome, nil), control.JobBecome, "data", 100,
		func(ctx context.Context) (int64, error) {
			close(begun)
			<-ctx.Done()
			return 40, context.Canceled
		}, func(err error) { ended = err })
	var reply control.JobReply
	if err := a.answered(&reply); err != nil || reply.ID == 0 {
		t.Fatalf("%+v, %v", reply, err)
	}
	<-begun
	var state control.StateReport
	if err := a.ask(control.CommandQueryState, nil, &state); err != nil || len(state.Jobs) != 1 ||
		state.Jobs[0] != (control.Job{ID: reply.ID, Kind: control.JobBecome, Target: "data", State: control.JobRunning,
			Total: 100}) {
		t.Errorf("while it runs: %+v, %v", state.Jobs, err)
	}
	for _, command := range []string{control.CommandCancelJob, control.CommandForgetJob} {
		if err := a.ask(command, control.JobRequest{ID: reply.ID + 1}, nil); err == nil ||
			!strings.Contains(err.Error(), "there is no job") {
			t.Errorf("%s of a job that is none: %v", command, err)
		}
	}
	if err := a.ask(control.CommandForgetJob, control.JobRequest(reply), nil); err == nil ||
		!strings.Contains(err.Error(), "still running") {
		t.Errorf("forgotten while it runs: %v", err)
	}
	if err := a.ask(control.CommandCancelJob, control.JobRequest(reply), nil); err != nil {
		t.Error(err)
	}
	(<-a.results)()
	if !errors.Is(ended, context.Canceled) {
		t.Errorf("the job's end was told as %v", ended)
	}
	if err := a.ask(control.CommandQueryState, nil, &state); err != nil || len(state.Jobs) != 1 ||
		state.Jobs[0].State != control.JobCanceled || state.Jobs[0].Done != 40 {
		t.Errorf("after it was canceled: %+v, %v", state.Jobs, err)
	}
	if err := a.ask(control.CommandForgetJob, control.JobRequest(reply), nil); err != nil {
		t.Error(err)
	}
	state = control.StateReport{}
	if err := a.ask(control.CommandQueryState, nil, &state); err != nil || len(state.Jobs) != 0 {
		t.Errorf("after it was seen: %+v, %v", state.Jobs, err)
	}
	if err := a.ask(control.CommandBecome, control.BecomeRequest{}, nil); err == nil ||
		!strings.Contains(err.Error(), "the VM is waiting") {
		t.Errorf("a machine has changed before QEMU was started: %v", err)
	}
}
