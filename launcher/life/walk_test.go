package life

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// world is what surrounds a life in the random walk: a loop that does what it is
// told, a QEMU that tells and does what it likes, and a clock.
type world struct {
	*testing.T
	random *rand.Rand
	state  State
	now    time.Time
	timers [Timers]time.Time // zero: it does not run

	pending        []Event // what may be heard of what was done
	qemu, monitor  bool    // QEMU lives; its monitor does
	prepares, dead bool    // a preparation goes on; QEMU was sent SIGKILL
	away           bool    // the guest may run in another QEMU
	told           bool    // QEMU was told to let a received guest run, and has not refused
	quits          int
	kills          int
	ends           int
	end            time.Time // when it must have ended, or QEMU been killed; zero before it was asked to
	path           []string
}

// TestRandomWalk: whatever comes, in lives that go on at random, a life ends once, never goes back and leaves no
// timer. It ends within a bound once it is asked to.
func TestRandomWalk(t *testing.T) {
	for seed := range uint64(1000) {
		w := &world{T: t, random: rand.New(rand.NewPCG(seed, 7)), now: begin}
		for step := 0; w.ends == 0 && step < 400; step++ {
			w.hear(w.next())
			if t.Failed() {
				t.Fatalf("seed %d: %v", seed, w.path)
			}
		}
		// Now it is asked to end, and nobody else moves but what must.
		if w.ends == 0 {
			w.hear(ShutdownAsked{w.now})
		}
		for step := 0; w.ends == 0; step++ {
			if step > 100 {
				t.Fatalf("seed %d: no end: %v", seed, w.path)
			}
			w.hear(w.must())
			if t.Failed() {
				t.Fatalf("seed %d: %v", seed, w.path)
			}
		}
		for timer, due := range w.timers {
			if !due.IsZero() {
				t.Fatalf("seed %d: the %s timer runs after the end: %v", seed, timerNames[timer], w.path)
			}
		}
	}
}

// next returns something that can be heard now.
func (w *world) next() Event {
	candidates := []Event{
		StartAsked{Order{Paused: w.coin(), Incoming: w.random.IntN(4) == 0, NoACPI: w.random.IntN(4) == 0, Keep: w.coin(),
			Grace: w.random.Int64N(60)}},
		OperationAsked{Pause, Agent{}}, OperationAsked{Unpause, Agent{}}, OperationAsked{Reset, Agent{}},
		OperationAsked{SoftReboot, Agent{w.coin(), w.coin()}},
		GraceShortened{w.random.Int64N(60) - 1, w.now}, Probed{},
		MigrateAsked{w.random.IntN(4) == 0}, TakeBackAsked{}, RunAsked{w.coin(), w.now},
		HoldAsked{w.random.Uint64N(2) + 1, time.Duration(w.random.IntN(2000)+1) * time.Millisecond, w.coin()},
		HoldOver{w.random.Uint64N(2) + 1},
	}
	if w.random.IntN(10) == 0 {
		candidates = append(candidates, ReleaseAsked{})
	}
	if w.random.IntN(40) == 0 {
		candidates = append(candidates, ShutdownAsked{w.now}, Canceled{}, Rejected{"no"})
	}
	if w.qemu && w.monitor && !w.dead {
		candidates = append(candidates, Resumed{w.now}, Stopped{}, PoweredDown{w.coin(), "x"},
			IOFailed{IOError{Disk: "d", Operation: "write"}}, Panic{})
		if w.random.IntN(20) == 0 {
			candidates = append(candidates, MonitorLost{errors.New("x")})
		}
	}
	if w.qemu && !w.dead && w.state.Phase == Receiving {
		candidates = append(candidates, AllButMemory{}, ReceptionEnded{})
	}
	if w.qemu && !w.dead && w.state.Memory == Coming {
		candidates = append(candidates, ReceptionEnded{}, ReceptionEnded{errors.New("x")})
	}
	if w.qemu && w.random.IntN(20) == 0 {
		candidates = append(candidates, TPMEnded{Exit: Exit{Code: w.random.IntN(2)}})
	}
	if w.qemu && (w.dead || w.random.IntN(20) == 0) {
		candidates = append(candidates,
			QEMUExited{Exit{Code: w.random.IntN(2), Signal: syscall.Signal(9 * w.random.IntN(2))}})
	}
	if len(w.pending) > 0 && w.coin() {
		return w.result()
	}
	if t, ok := w.nextTimer(); ok && w.random.IntN(5) == 0 {
		return w.expire(t)
	}
	w.now = w.now.Add(time.Duration(w.random.IntN(300)) * time.Millisecond)
	if t, ok := w.nextTimer(); ok && w.timers[t].Before(w.now) {
		return w.expire(t)
	}
	return candidates[w.random.IntN(len(candidates))]
}

// must returns what comes even where nobody helps: the end of a timer, and the exit of a process that was killed.
func (w *world) must() Event {
	if w.dead {
		return QEMUExited{Exit{Signal: syscall.SIGKILL}}
	}
	t, ok := w.nextTimer()
	if !ok {
		w.Fatalf("nothing will come any more: %s", describe(w.state))
	}
	return w.expire(t)
}

func (w *world) coin() bool { return w.random.IntN(2) == 0 }

func (w *world) result() Event {
	i := w.random.IntN(len(w.pending))
	e := w.pending[i]
	w.pending = slices.Delete(w.pending, i, i+1)
	return e
}

func (w *world) nextTimer() (next Timer, ok bool) {
	for t, due := range w.timers {
		if !due.IsZero() && (!ok || due.Before(w.timers[next])) {
			next, ok = Timer(t), true
		}
	}
	return next, ok
}

func (w *world) expire(t Timer) Event {
	if due := w.timers[t]; due.After(w.now) {
		w.now = due
	}
	w.timers[t] = time.Time{}
	return Expired{t}
}

// hear lets the life hear something, and checks what becomes of it.
func (w *world) hear(e Event) {
	before := w.state
	w.path = append(w.path, fmt.Sprintf("%T%+v", e, e))
	if why := impossible(before, e); why != "" {
		w.Errorf("%T came in %s, and is said not to: %s", e, describe(before), why)
	}
	switch e := e.(type) {
	case MonitorLost:
		w.monitor = false
	case QEMUExited:
		w.qemu, w.monitor = false, false
	case Prepared:
		w.prepares = false
	case ShutdownAsked:
		if w.end.IsZero() {
			// QuitTime twice: QEMU may take it before it closes its monitor, and after it.
			w.end = e.At.Add(seconds(max(before.Order.Grace, 0)) + 2*QuitTime)
		}
	case ExecFailed:
		w.qemu, w.monitor = false, false
	}
	if _, refused := e.(RunFailed); refused {
		w.told = false
	}
	switch e := e.(type) {
	case TakeBackAsked, Resumed: // virt-handler, or QEMU itself, has the guest run here
		w.away = false
	case MigrationEnded: // after which no word of the same migration comes
		w.pending = slices.DeleteFunc(w.pending, func(late Event) bool { return late == MemoryTrails{} })
		w.away = w.away && (e.Err == nil || e.NoReturn)
	}
	after, actions := Step(before, e)
	w.state = after
	for _, a := range actions {
		w.do(a)
	}
	for _, why := range broken(before, e, after, actions) {
		w.Errorf("%T in %s: %s: %q", e, describe(before), why, follows(before, after, actions))
	}
	w.check(after)
	for _, a := range actions { // QEMU cannot be started: that is heard at once
		if a == Exec && w.random.IntN(10) == 0 {
			w.pending = nil
			w.hear(ExecFailed{errors.New("x")})
		}
	}
}

func (w *world) either(ok, failed Event) {
	if w.coin() {
		ok = failed
	}
	if ok != nil {
		w.pending = append(w.pending, ok)
	}
}

func (w *world) do(a Action) {
	if w.ends > 0 {
		w.Errorf("%v after the end", a)
	}
	switch a {
	case Prepare:
		w.prepares = true
		w.either(Prepared{}, Prepared{errors.New("x")})
	case Exec:
		w.qemu, w.monitor = true, true
		w.either(Handshaken{w.now}, HandshakeFailed{errors.New("x")})
	case Send:
		if w.coin() {
			w.pending = append(w.pending, PostCopyBegun{})
		}
		w.either(SwitchoverAsked{}, MigrationEnded{Err: errors.New("x")})
	case Run:
		if w.told {
			w.Error("QEMU is told twice to let a guest run")
		}
		w.told = true
		w.either(RunAnswered{}, RunFailed{errors.New("x"), w.coin()})
	case Restart:
		w.staysAway(a)
		w.either(nil, RestartFailed{errors.New("x")})
	case Continue:
		w.staysAway(a)
		w.either(nil, ContinueFailed{})
	case Probe:
		w.either(ProbeAnswered{}, nil)
	case Press:
		if w.state.Phase != ShuttingDown {
			w.Errorf("the power button was pressed in %s", describe(w.state))
		}
	case TellQuit:
		w.quits++
	case Keep, End:
		if w.qemu {
			w.Errorf("%v while QEMU lives", a)
		}
		if a == End {
			w.ends++
		}
	default:
		w.doMore(a)
	}
}

// doMore does what needs more than its name.
func (w *world) doMore(a Action) {
	switch a := a.(type) {
	case Operate:
		w.staysAway(a)
		w.either(nil, OperationFailed(a))
	case AnswerSwitchover:
		w.away = a.Refusal == ""
		switch {
		case !w.away:
			w.pending = append(w.pending, MigrationEnded{Err: errors.New("x")})
		case w.coin():
			w.either(MigrationEnded{}, MigrationEnded{Err: errors.New("x")})
		default:
			w.pending = append(w.pending, MemoryTrails{})
			w.either(MigrationEnded{}, MigrationEnded{errors.New("x"), true})
		}
	case TakeBack:
		w.staysAway(a)
	case HoldGuest:
		w.either(Stopped{}, HoldFailed{a.Job, errors.New("x")})
	case LetGo:
		w.staysAway(a)
		w.either(LetGoAnswered{Job: a.Job}, LetGoAnswered{a.Job, errors.New("x")})
	case Reboot:
		w.either(nil, OperationFailed{SoftReboot})
	case AskReason:
		w.either(ReasonTold{a.Pause, "watchdog", w.coin()}, nil)
	case Kill:
		if w.kills++; !w.qemu {
			w.Error("there is nothing to kill")
		}
		w.dead = true
	case StartTimer:
		if a.After <= 0 {
			w.Errorf("a timer of %v", a.After)
		}
		w.timers[a.Timer] = w.now.Add(a.After)
	case StopTimer:
		if w.timers[a.Timer].IsZero() {
			w.Errorf("the %s timer was stopped and did not run", timerNames[a.Timer])
		}
		w.timers[a.Timer] = time.Time{}
	}
}

// staysAway fails the test if an action lets a guest run here that may run elsewhere.
func (w *world) staysAway(a Action) {
	if w.away {
		w.Errorf("%T%+v while the guest may run elsewhere: %s", a, a, describe(w.state))
	}
}

func (w *world) check(after State) {
	for t := range Timers {
		if after.runs(t) == w.timers[t].IsZero() {
			w.Errorf("the %s timer: runs %t, should %t in %s", timerNames[t], !w.timers[t].IsZero(), after.runs(t),
				describe(after))
		}
	}
	if w.ends > 1 || w.quits > 1 || w.kills > 1 {
		w.Errorf("%d ends, %d quits, %d kills", w.ends, w.quits, w.kills)
	}
	if after.Phase == Quitting && w.timers[KillTimer].IsZero() {
		w.Error("told to quit, and nothing kills it if it does not")
	}
	if after.Phase == Ended && w.ends == 0 {
		w.Error("ended, and the loop was not told")
	}
	if after.HasEnded() {
		if r := after.Termination().Reason; w.told && (r == control.ReasonStartFailed || r == control.ReasonNeverStarted) {
			w.Errorf("ended with reason %q, and the guest may have run", r)
		}
	}
	if !w.end.IsZero() && !w.dead && w.now.After(w.end) {
		w.Errorf("should have ended %v ago, and lives: %s", w.now.Sub(w.end), describe(after))
	}
	if w.prepares && after.Phase == Starting {
		w.Error("QEMU is started before all is prepared")
	}
}
