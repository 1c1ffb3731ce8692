package migration_test

import (
	"encoding/json"
	"io"
	"maps"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/migration"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// newLate does what newMoving does, with a configuration that allows post-copy.
func newLate(t *testing.T) *moving {
	t.Helper()
	m := newMoving(t)
	vmi := m.vmi()
	vmi.Status.MigrationState.MigrationConfiguration = &v1.MigrationConfiguration{AllowPostCopy: ptr.To(true)}
	if err := m.raw.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	return m
}

// job returns the job of a launcher whose guest moves.
func job(kind control.JobKind, state control.JobState) control.Job {
	return control.Job{ID: 1, Kind: kind, Target: control.JobTargetGuest, State: state}
}

// due lets the source's launcher say that only post-copy brings the migration to its end.
func (m *moving) due() {
	m.source.acts.Lock()
	defer m.source.acts.Unlock()
	m.source.mu.Lock()
	m.source.state.Migration = &control.MigrationReport{PostCopyDue: true}
	m.source.mu.Unlock()
	m.source.tell(control.StateRunning, job(control.JobMigrate, control.JobRunning))
}

// leaves brings the guest to where it has left the source, and its memory has not.
func (m *moving) leaves() {
	m.Helper()
	m.copies()
	m.due()
	m.until("told to go on by post-copy", func() bool { return m.source.wasAsked(control.CommandPostCopy) == 1 })
	m.source.report(control.StateMoved, job(control.JobMigrate, control.JobRunning))
}

// TestPostCopyEndsWhenTheMemoryIsThere: the guest runs on the target before its memory is there. The migration ends,
// and with it the source, when the memory is.
func TestPostCopyEndsWhenTheMemoryIsThere(t *testing.T) {
	m := newLate(t)
	m.copies()
	var asked control.MigrateRequest
	if err := json.Unmarshal(m.source.arguments(control.CommandMigrate), &asked); err != nil || !asked.PostCopy ||
		m.target.wasAsked(control.CommandPermitPostCopy) != 1 || m.status().PostCopy() {
		t.Errorf("the source was asked %+v (%v), the target for %v; %+v", asked, err, m.target.commands(),
			m.status().SourceState)
	}
	m.leaves()
	if !m.status().PostCopy() {
		t.Error("the launcher was told before it was written that nobody may cancel")
	}
	m.target.report(control.StateReceived, job(control.JobReceive, control.JobRunning))
	m.until("run", func() bool { return m.target.wasAsked(control.CommandRun) > 0 })
	m.target.report(control.StateRunning, job(control.JobReceive, control.JobRunning))
	m.clock.Step(2 * migration.DecisionPatience) // the memory takes long
	m.open(5)
	if s := m.status(); s.Decision != v1.DecisionTarget || s.TargetState.DomainReadyTimestamp != nil ||
		m.source.wasAsked(control.CommandRelease) != 0 {
		t.Errorf("as the memory comes: %+v, released %d times", s.TargetState, m.source.wasAsked(control.CommandRelease))
	}
	m.target.report(control.StateRunning, job(control.JobReceive, control.JobDone))
	m.source.sent()
	m.until("released", func() bool { return m.source.wasAsked(control.CommandRelease) > 0 })
	m.idle()
	m.runsOn(v1.DecisionTarget)
	if m.status().TargetState.DomainReadyTimestamp == nil {
		t.Error("nobody says that the guest is there")
	}
}

// open looks some times at what follows, and fails if the channels are closed meanwhile.
func (m *moving) open(times int) {
	m.Helper()
	looks := 0
	m.until("looked at", func() bool { looks++; return looks > times*20 })
	if _, err := m.source.ends[0].WriteString("x"); err != nil {
		m.Errorf("the channel has ended: %v", err)
	}
}

// TestMigrationGoesOnWithoutPostCopy: where a side cannot, the migration goes on without, and says why.
func TestMigrationGoesOnWithoutPostCopy(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*moving)
		says   string
	}{
		"no device": {func(m *moving) {
			m.target.answer(control.CommandPermitPostCopy, `{"refused":"Userfaultfd not available"}`)
		}, "the target: Userfaultfd not available"},
		"the target's launcher": {func(m *moving) {
			m.lacks(m.there.Node.Sessions, m.status().TargetPod, control.CommandPermitPostCopy)
		}, "the target: "},
		"the source's launcher": {func(m *moving) {
			m.lacks(m.here.Sessions, m.status().SourcePod, control.CommandPostCopy)
		}, "the source: "},
		"the target's virt-handler": {func(m *moving) { m.older = true }, "did not answer the wish"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newLate(t)
			c.change(m)
			m.copies()
			m.due()
			m.open(2)
			if s := m.status(); !strings.Contains(s.SourceState.PostCopyRefused, c.says) || s.PostCopy() ||
				m.source.wasAsked(control.CommandPostCopy) != 0 ||
				strings.Contains(string(m.source.arguments(control.CommandMigrate)), "postCopy") {
				t.Errorf("%+v, %s", s.SourceState, m.source.arguments(control.CommandMigrate))
			}
			m.source.sent()
			m.target.report(control.StateReceived)
			m.until("released", func() bool { return m.source.wasAsked(control.CommandRelease) > 0 })
			m.idle()
			m.runsOn(v1.DecisionTarget)
		})
	}
}

// TestSourceDecidesNothingAfterPostCopy: once the guest has left by post-copy, the source's virt-handler decides
// nothing as long as its launcher cannot let the guest run again.
func TestSourceDecidesNothingAfterPostCopy(t *testing.T) {
	for name, c := range map[string]struct {
		state   control.JobState
		returns bool
	}{"the memory follows": {control.JobRunning, false}, "the memory follows no more": {control.JobFailed, false},
		"all was sent": {control.JobDone, true}} {
		t.Run(name, func(t *testing.T) {
			m := newLate(t)
			m.leaves()
			m.source.report(control.StateMoved, job(control.JobMigrate, c.state))
			m.clock.Step(2 * migration.DecisionPatience)
			if c.returns {
				m.until("decided", func() bool {
					m.clock.Step(time.Second)
					return m.status().Decision == v1.DecisionSource
				})
				m.idle()
				m.runsOn(v1.DecisionSource)
				return
			}
			m.open(10)
			if s := m.status(); s.Decision != "" {
				t.Errorf("decided is %s", s.Decision)
			}
			m.decide(v1.DecisionSource) // virt-controller, because the target has ended
			m.until("taken back", func() bool {
				m.clock.Step(time.Second) // the source may have everything soon
				return m.source.wasAsked(control.CommandTakeBack) > 0
			})
		})
	}
}

// TestFailedPostCopyLauncherIsNotKept: the launcher of a guest that has failed before its memory was there is not
// kept: its migration would not end.
func TestFailedPostCopyLauncherIsNotKept(t *testing.T) {
	m := newLate(t)
	m.leaves()
	m.target.report(control.StateReceived, job(control.JobReceive, control.JobRunning))
	m.until("run", func() bool { return m.target.wasAsked(control.CommandRun) > 0 })
	m.target.report(control.StateExited, job(control.JobReceive, control.JobFailed))
	m.until("asked to end", func() bool { return m.target.wasAsked(control.CommandShutdown) > 0 })
	if s := m.status(); s.Decision != v1.DecisionTarget || s.TargetState.DomainReadyTimestamp != nil {
		t.Errorf("%+v", s)
	}
}

// TestPostCopyOfSilentQEMUFreesItsPlace: a QEMU that never says whether it lets a guest run does not keep its
// migration's place.
func TestPostCopyOfSilentQEMUFreesItsPlace(t *testing.T) {
	for _, known := range []bool{true, false} {
		m := newLate(t)
		m.leaves()
		m.target.refuses(control.CommandRun, "QEMU does not answer")
		if !known { // the target's virt-handler was restarted
			m.there.Forget()
		}
		m.target.report(control.StateReceived, job(control.JobReceive, control.JobRunning))
		m.until("asked to run", func() bool { return m.target.wasAsked(control.CommandRun) > 0 })
		m.clock.Step(2 * migration.RunPatience) // the memory takes long
		m.target.report(control.StateReceived, job(control.JobReceive, control.JobDone))
		m.source.sent()
		asked := m.target.wasAsked(control.CommandRun)
		m.until("asked to run again", func() bool { return m.target.wasAsked(control.CommandRun) > asked+2 })
		if m.target.wasAsked(control.CommandShutdown) != 0 {
			t.Error("a guest ends at once whose QEMU does not answer")
		}
		m.clock.Step(migration.RunPatience)
		m.until("ended", func() bool { return m.target.wasAsked(control.CommandShutdown) > 0 })
		if s := m.status(); s.Decision != v1.DecisionTarget || m.source.wasAsked(control.CommandTakeBack) != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// TestPostCopyThatStandsStillFreesItsPlace: a launcher that sends nothing more does not keep its migration's place.
func TestPostCopyThatStandsStillFreesItsPlace(t *testing.T) {
	m := newLate(t)
	m.leaves()
	m.target.report(control.StateReceived, job(control.JobReceive, control.JobRunning))
	m.until("run", func() bool { return m.target.wasAsked(control.CommandRun) > 0 })
	m.open(5)
	m.clock.Step((*v1.MigrationConfiguration)(nil).Progress() + 2*migration.LauncherSlack)
	ended := make(chan error, 1)
	go func() {
		buffer := make([]byte, 100)
		for {
			if _, err := m.target.ends[0].Read(buffer); err != nil {
				ended <- err
				return
			}
		}
	}()
	m.until("cut off", func() bool {
		m.clock.Step(time.Second)
		return len(ended) > 0
	})
}

// TestPostCopyWithFalseSizeFreesItsPlace: a launcher that says more memory than its guest has does not keep its place
// longer, although it sends something all the time.
func TestPostCopyWithFalseSizeFreesItsPlace(t *testing.T) {
	m := newLate(t)
	m.source.mu.Lock()
	m.source.state.Machine.MemoryBytes = 1 << 50
	m.source.mu.Unlock()
	m.leaves()
	m.target.report(control.StateReceived, job(control.JobReceive, control.JobRunning))
	m.until("run", func() bool { return m.target.wasAsked(control.CommandRun) > 0 })
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, m.target.ends[0])
		ended <- err
	}()
	m.open(5)
	m.clock.Step(migration.PostCopyFactor * (*v1.MigrationConfiguration)(nil).Completion(1)) // of a GiB at most
	m.until("cut off", func() bool {
		_, err := m.source.ends[0].WriteString("x")
		m.clock.Step(time.Second)
		return err != nil || len(ended) > 0
	})
}

// TestDecidedMigrationGetsNoPostCopy: a migration that is decided meanwhile does not go on by post-copy.
func TestDecidedMigrationGetsNoPostCopy(t *testing.T) {
	m := newLate(t)
	m.copies()
	m.decide(v1.DecisionSource)
	m.due()
	m.until("cancelled", func() bool { return m.source.wasAsked(control.CommandCancelJob) > 0 })
	m.idle()
	if m.source.wasAsked(control.CommandPostCopy) != 0 || m.status().PostCopy() {
		t.Errorf("the source was asked for %v", m.source.commands())
	}
	m.runsOn(v1.DecisionSource)
}

// TestPostCopyTargetAsksAgainToRun: while the memory of a guest comes that the target's QEMU does not let run, the
// target asks again. When all of the memory is there, the source has everything too, and takes the guest back.
func TestPostCopyTargetAsksAgainToRun(t *testing.T) {
	m := newLate(t)
	m.leaves()
	m.target.answer(control.CommandRun, `{"refused":"no lock"}`)
	m.target.report(control.StateReceived, job(control.JobReceive, control.JobRunning))
	m.until("asked to run again", func() bool { return m.target.wasAsked(control.CommandRun) > 1 })
	m.open(2)
	if s := m.status(); s.Decision != v1.DecisionTarget || s.TargetState.DomainReadyTimestamp != nil {
		t.Errorf("%+v", s)
	}
	m.target.report(control.StateReceived, job(control.JobReceive, control.JobDone))
	m.until("given back", func() bool { return m.status().Decision == v1.DecisionSource })
	m.open(2) // the source's QEMU has not heard yet that all has come
	if m.source.wasAsked(control.CommandTakeBack) != 0 {
		t.Error("the source takes back a guest of which QEMU does not say that it was sent")
	}
	m.source.sent()
	m.until("taken back", func() bool { return m.source.wasAsked(control.CommandTakeBack) > 0 })
	m.idle()
	m.runsOn(v1.DecisionSource)
	if s := m.status(); !strings.Contains(s.TargetState.Failure, "no lock") {
		t.Errorf("%+v", s.TargetState)
	}
}

// lacks takes a command from a launcher.
func (m *moving) lacks(at *sessions.Set, pod, command string) {
	launcher := at.Get(types.NamespacedName{Namespace: "default", Name: pod})
	launcher.Commands = maps.Clone(launcher.Commands)
	delete(launcher.Commands, command)
}
