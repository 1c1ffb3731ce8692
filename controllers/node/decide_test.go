package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestDecide: what is done next for a VMI follows from what is there.
func TestDecide(t *testing.T) {
	began := time.Unix(1000, 0)
	// there returns a VMI on this node, whose launcher is connected, and whose pod has an address.
	there := func(phase v1.VirtualMachineInstancePhase, state control.StateReport, changes ...func(*world)) world {
		w := world{vmi: &v1.VirtualMachineInstance{}, here: true, launcher: &sessions.Session{}, state: state,
			ips: []string{"10.244.0.5"}}
		w.vmi.Status.Phase = phase
		for _, change := range changes {
			change(&w)
		}
		return w
	}
	waiting := control.StateReport{State: control.StateWaiting}
	running := control.StateReport{State: control.StateRunning, StartedAt: &began}
	held, preparing := control.StateReport{State: control.StatePaused}, control.StateReport{State: control.StatePreparing}
	exited := control.StateReport{State: control.StateExited}
	away := func(gone time.Duration) func(*world) { return func(w *world) { w.launcher, w.gone = nil, gone } }
	noAddress := func(w *world) { w.ips = nil }
	others := func(w *world) { w.wait = time.Second }
	unknown := func(w *world) { w.unknown = errors.New("down") }
	foreign := func(w *world) { w.foreign = errors.New("another's") }
	asPaused := func(w *world) { w.vmi.Spec.StartStrategy = v1.StartStrategyPaused }
	behind := func(w *world) { w.behind = true }
	elsewhere := func(w *world) { w.here = false }
	deleted := func(w *world) { w.vmi.DeletionTimestamp = &metav1.Time{Time: began} }
	comes := step{leaves: true, after: gonePatience - time.Second}
	served := func(s step) step {
		s.leaves, s.serves = true, true
		return s
	}
	startsHeld := served(step{begin: beginHeld, after: time.Second})
	for name, c := range map[string]struct {
		world world
		want  step
	}{
		"there is no VMI":             {world{}, step{}},
		"the cache is behind":         {there(v1.Running, running, behind), step{after: kit.WriteDelay}},
		"the VMI has ended":           {there(v1.Failed, running), step{}},
		"ended, no launcher":          {there(v1.Succeeded, running, away(time.Hour)), step{}},
		"starting, no launcher":       {there(v1.Scheduled, waiting, away(time.Hour)), step{leaves: true}},
		"on another node":             {there(v1.Running, running, away(time.Hour), elsewhere), step{leaves: true}},
		"the launcher is away":        {there(v1.Running, running, away(time.Second)), comes},
		"the launcher stays away":     {there(v1.Running, running, away(gonePatience)), step{leaves: true, tell: tellGone}},
		"another's network namespace": {there(v1.Running, running, foreign), step{leaves: true, tell: tellForeign}},
		"another's, to start":         {there(v1.Scheduled, waiting, foreign), step{leaves: true, tell: tellForeign}},
		"to start":                    {there(v1.Scheduled, waiting), served(step{begin: beginStart, tell: tellGuest})},
		"to start, without addresses": {there(v1.Scheduled, waiting, noAddress), served(step{begin: beginStart})},
		"to start, others come":       {there(v1.Scheduled, waiting, others), startsHeld},
		"to start, nobody knows":      {there(v1.Scheduled, waiting, unknown), served(step{tell: tellGuest})},
		"to start, deleted":           {there(v1.Scheduled, waiting, deleted), served(step{tell: tellGuest})},
		"it ran, the launcher is new": {there(v1.Running, waiting), served(step{tell: tellGuest})},
		"held, others come":           {there(v1.Scheduled, held, others), served(step{after: time.Second})},
		"held, nobody comes":          {there(v1.Scheduled, held), served(step{begin: beginRelease, tell: tellGuest})},
		"held, nobody knows":          {there(v1.Scheduled, held, unknown, noAddress), served(step{tell: tellGuest})},
		"held, deleted":               {there(v1.Scheduled, held, deleted), served(step{tell: tellGuest})},
		"its user wants it paused":    {there(v1.Scheduled, held, asPaused), served(step{tell: tellGuest})},
		"it runs":                     {there(v1.Running, running), served(step{tell: tellGuest})},
		"it runs, without addresses":  {there(v1.Running, running, noAddress), served(step{})},
		"its QEMU is on its way":      {there(v1.Scheduled, preparing), served(step{tell: tellGuest})},
		"its QEMU has ended":          {there(v1.Running, exited), served(step{tell: tellGuest})},
	} {
		got := decide(c.world)
		if (got.failure != nil) != (c.world.unknown != nil) {
			t.Errorf("%s: fails with %v", name, got.failure)
		}
		if got.failure = nil; got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestOutcome: after a failure the VMI is looked at again as after any error, whose text is printable and not long. If
// the launcher has hung up, its next hello brings the VMI back.
func TestOutcome(t *testing.T) {
	full := errors.New("\x1bno room" + strings.Repeat("!", 2*maxMessage))
	for name, c := range map[string]struct {
		failure error
		after   time.Duration
		err     bool
	}{
		"none":                     {nil, time.Second, false},
		"the launcher has hung up": {fmt.Errorf("start: %w", control.ErrClosed), 0, false},
		"another":                  {full, 0, true},
	} {
		after, err := (&step{after: time.Second, failure: c.failure}).outcome()
		if after != c.after || (err != nil) != c.err {
			t.Errorf("%s: after %s, %v", name, after, err)
		}
		if err != nil && (len(err.Error()) > maxMessage || strings.Contains(err.Error(), "\x1b")) {
			t.Errorf("%s: %q", name, err)
		}
	}
}
