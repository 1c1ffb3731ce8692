package migration

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
)

// played is a QEMU that answers each question with the next of its answers, and with the last one for ever. It leaves a question without
// an answer where that is "".
type played struct {
	mu      sync.Mutex
	answers map[string][]string
}

func (p *played) next(command string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.answers[command]
	if len(list) == 0 {
		return "{}"
	}
	if len(list) > 1 {
		p.answers[command] = list[1:]
	}
	return list[0]
}

// play returns a client that waits for no answer longer than patience.
func play(t *testing.T, answers map[string][]string, patience time.Duration) *qmp.Client {
	t.Helper()
	ours, theirs := testkit.SocketPair(t)
	p, served := &played{answers: maps.Clone(answers)}, make(chan struct{})
	go func() {
		defer close(served)
		fmt.Fprintln(theirs, `{"QMP": {"version": {"qemu": {"micro": 0, "minor": 0, "major": 10}, "package": ""}, "capabilities": []}}`)
		for lines := bufio.NewScanner(theirs); lines.Scan(); {
			var asked struct {
				Execute string
				ID      uint64
			}
			if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
				t.Error(err)
			}
			switch answer := p.next(asked.Execute); answer {
			case "":
			case "end":
				theirs.Close()
			default:
				fmt.Fprintf(theirs, `{"return": %s, "id": %d}`+"\n", answer, asked.ID)
			}
		}
	}()
	client := qmp.New(ours, qmp.Options{Timeout: patience})
	t.Cleanup(func() { client.Close(); theirs.Close(); <-served })
	if err := client.Connect(); err != nil {
		t.Fatal(err)
	}
	return client
}

const (
	switching = `{"status": "pre-switchover"}`
	trailing  = `{"status": "postcopy-active"}`
	done      = `{"status": "completed", "downtime": 7}`
	stopped   = `{"status": "postmigrate", "running": false}`
	silent    = ""
)

// TestLateAnswerOfSourceIsNoFailure: a QEMU that does not answer in time when it is to send the rest has not failed. It may send the rest, and the guest then runs
// elsewhere.
func TestLateAnswerOfSourceIsNoFailure(t *testing.T) {
	for name, c := range map[string]struct {
		answers map[string][]string
		trails  int
		fails   error
	}{
		"answers": {map[string][]string{"query-migrate": {done}, "query-status": {stopped}}, 0, nil},
		"late to send": {map[string][]string{"migrate-continue": {silent}, "query-migrate": {silent, silent, silent, silent, switching, trailing, silent, done, silent, done},
			"query-status": {silent, stopped}}, 1, nil},
		"ends":  {map[string][]string{"migrate-continue": {silent}, "query-migrate": {silent, "end"}}, 0, qmp.ErrClosed},
		"fails": {map[string][]string{"query-migrate": {silent, `{"status": "failed"}`}, "query-status": {silent, `{"status": "running", "running": true}`}}, 0, errFailed},
		"torn":  {map[string][]string{"query-migrate": {trailing, silent, `{"status": "failed"}`}}, 1, ErrNoReturn},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A QEMU that answers is silent too while it has no CPU.
			testkit.Slower(t, 100*time.Millisecond, func(patience time.Duration) error {
				w, trails := watch(nil), 0
				w.tick.Reset(time.Millisecond)
				defer w.stop()
				s := &Source{QEMU: play(t, c.answers, patience), Trails: func() { trails++ }, Progress: func(Progress) {}}
				sent, err := s.finish(t.Context(), w, time.Now())
				if !errors.Is(err, c.fails) || (err == nil) != (c.fails == nil) || trails != c.trails || err == nil && sent.Downtime != 7*time.Millisecond {
					return fmt.Errorf("%+v, %w, want %w; the memory trailed %d times", sent, err, c.fails, trails)
				}
				return nil
			})
		})
	}
}

// TestTargetWaitsForALateQEMU: a target waits for a QEMU that does not answer in time, as long as the guest may still come.
func TestTargetWaitsForALateQEMU(t *testing.T) {
	late := []string{silent, silent, silent, silent, silent}
	for name, c := range map[string]struct {
		answers map[string][]string
		hungUp  bool
		trails  int
		fails   error
	}{
		"late to have the guest":      {map[string][]string{"query-migrate": append(late, silent, silent, done)}, false, 0, nil},
		"late to have all but memory": {map[string][]string{"query-migrate": append(late, trailing, done), "query-status": append(late, `{"status": "paused"}`)}, false, 1, nil},
		"nobody sends any more":       {map[string][]string{"query-migrate": {silent}}, true, 0, errSilent},
		"no memory comes any more":    {map[string][]string{"query-migrate": {trailing, silent}, "query-status": {`{"status": "paused"}`}}, true, 1, ErrNoReturn},
		"late, and all has come":      {map[string][]string{"query-migrate": {silent, silent, done}}, true, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.Slower(t, 100*time.Millisecond, func(patience time.Duration) error {
				state, peer, err := process.Pair("channel")
				if err != nil {
					t.Fatal(err)
				}
				defer state.Close()
				defer peer.Close()
				if c.hungUp {
					peer.Close()
				}
				trails := 0
				target := &Target{QEMU: play(t, c.answers, patience)}
				err = target.Receive(t.Context(), state, func() { trails++ })
				if !errors.Is(err, c.fails) || (err == nil) != (c.fails == nil) || trails != c.trails {
					return fmt.Errorf("%w, want %w; the memory trailed %d times", err, c.fails, trails)
				}
				return nil
			})
		})
	}
}

// TestGuestRunsBeforeItsStateIsOnDisk: a guest whose memory still comes runs before its state is on the disk, however slow the storage is. The reception ends after
// both.
func TestGuestRunsBeforeItsStateIsOnDisk(t *testing.T) {
	state, peer, err := process.Pair("channel")
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	defer peer.Close()
	trails, written, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	target := &Target{QEMU: play(t, map[string][]string{"query-migrate": {trailing, done}, "query-status": {`{"status": "paused"}`}}, testkit.Patience)}
	target.Whole = func() error { <-written; return errors.New("the disk is full") }
	go func() { ended <- target.Receive(t.Context(), state, func() { close(trails) }) }()
	testkit.Receive(t, trails, "the guest, which waits for no disk")
	select {
	case err := <-ended:
		t.Fatalf("the reception ends before the state is on the disk: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	close(written)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
