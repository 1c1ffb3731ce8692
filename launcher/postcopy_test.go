package launcher

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// late is a migration that cannot end in time.
var late = control.MigrateRequest{BytesPerSecond: 64 << 10, DowntimeMilliseconds: 1, CompletionSeconds: 1,
	StallSeconds: 170, PostCopy: true}

// prepareLate does what prepareMove does, with a target that permits post-copy. The guest's state is carried slowly.
func prepareLate(t *testing.T, disks ...string) *move {
	t.Helper()
	m := &move{source: launch(t), slow: true}
	m.source.boot()
	m.aim(disks...)
	m.permitPostCopy()
	return m
}

func (m *move) permitPostCopy() {
	m.source.Helper()
	var permitted control.PostCopyReply
	m.target.must(m.target.call(control.CommandPermitPostCopy, nil, &permitted))
	if permitted.Refused != "" {
		m.source.Fatalf("the target refuses post-copy: %s", permitted.Refused)
	}
}

// postCopy does what virt-handler does until the guest has left all but its memory.
func (m *move) postCopy(request control.MigrateRequest) {
	m.source.Helper()
	job := m.begin(request)
	m.source.untilReport("post-copy to be due",
		func(r control.StateReport) bool { return r.Migration != nil && r.Migration.PostCopyDue })
	m.source.must(m.source.call(control.CommandPostCopy, control.JobRequest{ID: job}, nil))
	m.source.until(control.StateMoved)
	m.target.until(control.StateReceived)
}

// counts makes a launcher's guest change memory, and checks that the guest finds in it what it has written. QEMU 7.2
// without KVM overlooks changes of memory on the source. So the guest begins on the target.
func (v *vm) counts() {
	v.Helper()
	attach(v).say("M")
	v.stdout.WaitFor("the guest to count", func(said []byte) bool { return bytes.Count(said, []byte("m")) > 2 })
	if strings.Contains(v.stdout.String(), "x") {
		v.Error("the guest has found a page that is not as the guest left it")
	}
}

// TestPostCopy: a guest that cannot be sent in time goes on at the target, and its memory follows.
func TestPostCopy(t *testing.T) {
	t.Parallel()
	m := prepareLate(t)
	m.postCopy(late)
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
	m.target.until(control.StateRunning)
	m.target.answers("1", "1")
	if job := m.source.state().Jobs[0]; job.Finished() {
		t.Fatal("the memory has arrived at once: nothing is tested")
	}
	for command, v := range map[string]*vm{control.CommandCancelJob: m.source, control.CommandRelease: m.source,
		control.CommandPause: m.target, control.CommandReset: m.target, control.CommandOpenChannel: m.target} {
		var arguments any
		if command == control.CommandCancelJob {
			arguments = control.JobRequest{ID: m.job}
		}
		err := v.call(command, arguments, nil)
		if err == nil {
			t.Errorf("%s is carried out while the memory follows", command)
		}
		if command == control.CommandCancelJob && !strings.Contains(err.Error(), "no way back") {
			t.Errorf("cancel is refused with %v", err)
		}
	}
	m.target.counts()
	sent := m.source.jobEnded()
	if sent.State != control.StateMoved || sent.Jobs[0].State != control.JobDone {
		t.Errorf("the source says %+v", sent)
	}
	if arrived := m.target.jobEnded(); arrived.State != control.StateRunning || arrived.Jobs[0].State != control.JobDone {
		t.Errorf("the target says %+v", arrived)
	}
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	m.target.must(m.target.call(control.CommandPause, nil, nil))
	m.target.until(control.StatePaused)
}

// TestPostCopyDisk: a disk is copied whole before its guest goes on, with what the guest writes meanwhile.
func TestPostCopyDisk(t *testing.T) {
	t.Parallel()
	m := prepareLate(t, "root")
	m.source.answers("1W", "1w")
	request := late // the disk has 1 MiB
	request.BytesPerSecond, request.CompletionSeconds = 256<<10, 170
	job := m.begin(request)
	// Post-copy takes effect when the disk is copied.
	m.source.must(m.source.call(control.CommandPostCopy, control.JobRequest{ID: job}, nil))
	m.source.until(control.StateMoved)
	m.target.until(control.StateReceived)
	sent, err := os.ReadFile(m.source.request.Machine.Disks[0].Image.Path)
	m.source.must(err)
	arrived, err := os.ReadFile(m.target.request.Machine.Disks[0].Image.Path)
	m.target.must(err)
	if !bytes.Equal(sent, arrived) || bytes.Equal(arrived[512:514], []byte{0, 0}) {
		t.Error("the disk differs before the guest runs")
	}
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
	m.target.answers("2W", "2w")
	m.source.jobEnded()
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	m.target.answers("3W", "3w")
}

// TestPostCopyFails: whichever side dies while the memory follows, the guest ends on both, for that reason.
func TestPostCopyFails(t *testing.T) {
	t.Parallel()
	kill := func(v *vm) { v.must(syscall.Kill(v.state().QEMUPID, syscall.SIGKILL)) }
	for name, tt := range map[string]struct {
		runs bool
		fail func(*move)
	}{
		"source's QEMU":                  {true, func(m *move) { kill(m.source) }},
		"source's QEMU before the guest": {false, func(m *move) { kill(m.source) }},
		"target's QEMU":                  {true, func(m *move) { kill(m.target) }},
		"target's QEMU before the guest": {false, func(m *move) { kill(m.target) }},
		"channel":                        {true, func(m *move) { m.cables[0].cut() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := prepareLate(t)
			m.postCopy(late)
			if tt.runs {
				m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
				m.target.answers("1", "1")
			}
			tt.fail(m)
			m.target.expectEnd(control.ReasonPostCopyFailed, "memory")
			switch name {
			case "source's QEMU before the guest": // and perhaps before QEMU has said that the guest has left
				if end := m.source.termination(); end.Reason != control.ReasonPostCopyFailed &&
					end.Reason != control.ReasonQEMUExited {
					t.Errorf("the source ends with %+v", end)
				}
				return
			case "source's QEMU":
				m.source.expectEnd(control.ReasonPostCopyFailed, "memory")
				return
			case "target's QEMU before the guest":
				// QEMU 10.2 and newer lets the guest run on as long as it has not heard that the target has all but the memory.
				m.source.must(m.source.call(control.CommandTakeBack, nil, nil))
				if _, runs := m.source.comesTo(func(r control.StateReport) bool { return r.State == control.StateRunning }); runs {
					m.source.answers("1", "1")
				} else if end := m.source.termination(); end.Reason != control.ReasonPostCopyFailed {
					t.Errorf("the source ends with %+v", end)
				}
				return
			}
			// The guest has run on the target. virt-handler ends the source as it ends a guest whose VMI has ended.
			m.source.must(m.source.call(control.CommandGrace, control.GraceRequest{}, nil))
			m.source.must(m.source.call(control.CommandShutdown, nil, nil))
			m.source.expectEnd(control.ReasonMigrated, "another pod")
		})
	}
}

// TestPostCopyNotBegun: where nobody begins post-copy, or the migration is canceled before, the guest stays.
func TestPostCopyNotBegun(t *testing.T) {
	t.Parallel()
	m := prepareLate(t)
	job := m.begin(late)
	m.source.untilReport("post-copy to be due",
		func(r control.StateReport) bool { return r.Migration != nil && r.Migration.PostCopyDue })
	m.source.must(m.source.call(control.CommandCancelJob, control.JobRequest{ID: job}, nil))
	if canceled := m.source.jobEnded(); canceled.State != control.StateRunning ||
		canceled.Jobs[0].State != control.JobCanceled {
		t.Errorf("the source says %+v", canceled)
	}
	m.source.answers("1W", "1w")
	if err := m.source.call(control.CommandPostCopy, control.JobRequest{ID: job}, nil); err == nil {
		t.Error("a migration that has ended goes on by post-copy")
	}
}

// TestPostCopySourceStopped: a source that is asked to end sends the memory first.
func TestPostCopySourceStopped(t *testing.T) {
	t.Parallel()
	m := prepareLate(t)
	m.postCopy(late)
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
	m.source.signals <- syscall.SIGTERM
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	m.target.jobEnded()
	m.target.counts()
}

// TestPostCopyTakenBack: a source that has sent everything may have its guest back, if the guest has not run on the
// target.
func TestPostCopyTakenBack(t *testing.T) {
	t.Parallel()
	m := prepareLate(t)
	m.postCopy(late)
	if sent := m.source.jobEnded(); sent.Jobs[0].State != control.JobDone {
		t.Fatalf("the source says %+v", sent)
	}
	m.target.cancel()
	m.target.termination()
	m.takenBack()
}
