package launcher

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
)

// move is a guest on its way from one launcher to another, and the channels between the two.
type move struct {
	source, target *vm
	cables         []*cable
	mute           bool // nothing is carried to the source
	slow           bool // the guest's state is carried slowly to the target, whatever QEMU's own limit is
	// configure changes what the target is asked to start.
	configure func(*control.StartRequest)
	// job is the source's.
	job uint64
}

// cable carries bytes between a channel of the source and one of the target, as the virt-handlers
// do.
type cable struct {
	ends [2]*control.Stream // of the source, and of the target
	once sync.Once
}

func (c *cable) cut() {
	c.once.Do(func() {
		for _, end := range c.ends {
			end.Close()
		}
	})
}

// prepareMove boots a guest, and makes a second launcher wait for it. disks are the disks that the target has files
// of its own for.
func prepareMove(t *testing.T, disks ...string) *move {
	t.Helper()
	m := &move{source: launch(t)}
	m.source.boot()
	m.aim(disks...)
	return m
}

// aim makes another launcher wait for the guest.
func (m *move) aim(disks ...string) {
	m.source.Helper()
	m.target = launch(m.source.T)
	if len(disks) == 0 {
		m.target.request.Machine = m.source.request.Machine
	} else {
		m.target.must(os.WriteFile(m.target.request.Machine.Disks[0].Image.Path, make([]byte, 1<<20), 0o644))
	}
	if m.configure != nil {
		m.configure(&m.target.request)
	}
	m.receive()
	for _, disk := range disks {
		m.connect(control.CommandMirrorDisk, control.CommandExportDisk, control.DiskRequest{Disk: disk})
	}
}

// receive makes the target wait for the guest, and opens the channel for the guest's state.
func (m *move) receive() {
	m.source.Helper()
	m.target.request.Incoming = true
	m.target.must(m.target.call(control.CommandStart, m.target.request, nil))
	m.target.until(control.StateReceiving)
	m.connect(control.CommandOpenChannel, control.CommandOpenChannel, nil)
}

// connect opens a channel at both launchers and connects the two.
func (m *move) connect(atSource, atTarget string, arguments any) {
	m.source.Helper()
	c := &cable{ends: [2]*control.Stream{m.source.stream(atSource, arguments), m.target.stream(atTarget, arguments)}}
	m.cables = append(m.cables, c)
	done := make(chan struct{}, 2)
	for i := range c.ends {
		go func() {
			to := io.Writer(c.ends[i])
			if i == 0 && m.mute {
				to = io.Discard
			}
			from := io.Reader(c.ends[1-i])
			if i == 1 && m.slow && atSource == control.CommandOpenChannel {
				from = &slowly{from, rate.NewLimiter(64<<10, 4<<10)}
			}
			io.Copy(to, from)
			c.cut()
			done <- struct{}{}
		}()
	}
	m.source.Cleanup(func() { c.cut(); <-done; <-done })
}

// slowly reads no faster than a limiter lets it.
type slowly struct {
	io.Reader
	limiter *rate.Limiter
}

func (s *slowly) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p[:min(len(p), s.limiter.Burst())])
	if wait := s.limiter.WaitN(context.Background(), n); err == nil {
		err = wait
	}
	return n, err
}

func (v *vm) stream(command string, arguments any) *control.Stream {
	v.Helper()
	stream, err := v.conn.CallForStream(v.Context(), command, arguments)
	v.must(err)
	return stream
}

var limits = control.MigrateRequest{DowntimeMilliseconds: 300, CompletionSeconds: 170, StallSeconds: 170}

// begin lets both launchers begin.
func (m *move) begin(request control.MigrateRequest) (job uint64) {
	m.source.Helper()
	m.target.must(m.target.call(control.CommandReceive, nil, nil))
	var reply control.JobReply
	m.source.must(m.source.call(control.CommandMigrate, request, &reply))
	m.job = reply.ID
	return reply.ID
}

// until waits for a state, whatever states come before.
func (v *vm) until(want control.State) control.StateReport {
	v.Helper()
	return v.untilReport("state "+string(want), func(r control.StateReport) bool { return r.State == want })
}

func (v *vm) untilReport(what string, is func(control.StateReport) bool) control.StateReport {
	v.Helper()
	for {
		if got := testkit.Receive(v.T, v.conn.States, what); is(got) {
			return got
		}
	}
}

// state asks for a launcher's state. A launcher that has ended has none.
func (v *vm) state() (report control.StateReport) {
	_ = v.call(control.CommandQueryState, nil, &report)
	return report
}

// answers writes a text to the guest's serial port, and waits for the guest's answer.
func (v *vm) answers(text, answer string) {
	v.Helper()
	attach(v).say(text)
	v.stdout.Expect(answer)
}

// TestMigrate: a guest goes on in another QEMU, with the same disk, and its source ends.
func TestMigrate(t *testing.T) {
	t.Parallel()
	m := prepareMove(t)
	m.source.answers("1", "1")
	job := m.begin(limits)
	m.target.until(control.StateReceived)
	sent := m.source.untilReport("the job's end",
		func(r control.StateReport) bool { return len(r.Jobs) == 1 && r.Jobs[0].Finished() })
	if sent.State != control.StateMoved || sent.Jobs[0].ID != job || sent.Jobs[0].State != control.JobDone ||
		sent.Migration == nil || sent.Migration.Transferred == 0 || sent.Migration.DowntimeMilliseconds == 0 {
		t.Errorf("the source says %+v, %+v", sent, sent.Migration)
	}
	for _, command := range []string{control.CommandUnpause, control.CommandReset, control.CommandMigrate,
		control.CommandMirrorDisk} {
		if err := m.source.call(command, nil, nil); err == nil {
			t.Errorf("%s of a guest that has left is carried out", command)
		}
	}
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
	if running := m.target.until(control.StateRunning); running.StartedAt == nil {
		t.Errorf("the target says %+v", running)
	}
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	m.source.qemuGone(sent)
	m.target.answers("2W", "2w")
	if err := m.target.call(control.CommandTakeBack, nil, nil); err != nil {
		t.Errorf("a guest that stays is taken back: %v", err)
	}
}

// TestMigrateDisk: a disk for which the target has a file of its own arrives whole, with what the
// guest writes meanwhile.
func TestMigrateDisk(t *testing.T) {
	t.Parallel()
	m := prepareMove(t, "root")
	m.source.answers("1W", "1w")
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.until(control.StateMoved)
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	sent, err := os.ReadFile(m.source.request.Machine.Disks[0].Image.Path)
	m.source.must(err)
	arrived, err := os.ReadFile(m.target.request.Machine.Disks[0].Image.Path)
	m.target.must(err)
	if !bytes.Equal(sent, arrived) || bytes.Equal(arrived[512:514], []byte{0, 0}) {
		t.Errorf("the disk differs: begins with %x, and then %x, want %x", arrived[:16], arrived[512:528], sent[512:528])
	}
	m.target.answers("2W", "2w")
}

// slow takes half a minute. QEMU's mirror notices only between two pieces of 1 MiB that its target is
// gone.
var slow = control.MigrateRequest{BytesPerSecond: 64 << 10, DowntimeMilliseconds: 1, CompletionSeconds: 3600,
	StallSeconds: 3600}

// jobEnded waits for the end of a launcher's only job.
func (v *vm) jobEnded() control.StateReport {
	v.Helper()
	return v.untilReport("the job's end",
		func(r control.StateReport) bool { return len(r.Jobs) == 1 && r.Jobs[0].Finished() })
}

// TestMigrateFails: until the switchover the guest runs on whatever happens, and can be migrated
// again at once.
func TestMigrateFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fail  func(m *move, job uint64)
		state control.JobState
	}{
		"canceled": {func(m *move, job uint64) {
			m.source.must(m.source.call(control.CommandCancelJob, control.JobRequest{ID: job}, nil))
		}, control.JobCanceled},
		"target killed": {func(m *move, _ uint64) { m.target.cancel() }, control.JobFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := prepareMove(t, "root")
			job := m.begin(slow)
			m.source.answers("1W", "1w") // the guest runs while it is copied
			for _, command := range []string{control.CommandPause, control.CommandReset, control.CommandBecome,
				control.CommandMigrate, control.CommandTakeBack, control.CommandRelease} {
				if err := m.source.call(command, nil, nil); err == nil {
					t.Errorf("%s of a guest that is being copied is carried out", command)
				}
			}
			tt.fail(m, job)
			failed := m.source.jobEnded()
			if failed.State != control.StateRunning || failed.Jobs[0].State != tt.state ||
				(tt.state == control.JobFailed) == (failed.Jobs[0].Error == "") {
				t.Errorf("the source says %+v", failed)
			}
			m.source.answers("2W", "2w")
			m.source.must(m.source.call(control.CommandForgetJob, control.JobRequest{ID: job}, nil))
			if end := m.target.termination(); end.Succeeded() {
				t.Errorf("the target ends with %+v", end)
			}
			m.aim("root")
			m.begin(limits)
			m.target.until(control.StateReceived)
			m.target.must(m.target.call(control.CommandRun, nil, nil))
			m.target.answers("3W", "3w")
		})
	}
}

// TestGuestStaysStoppedWithoutTargetsAnswer: the source never hears that the target has the guest. Its guest stays
// stopped, also when the channel breaks, until virt-handler decides.
func TestGuestStaysStoppedWithoutTargetsAnswer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		broken bool
		decide func(m *move)
	}{
		"taken back": {false, (*move).takenBack}, "taken back after a break": {true, (*move).takenBack},
		"released": {false, (*move).released}, "released after a break": {true, (*move).released},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &move{source: launch(t), mute: true}
			m.source.boot()
			m.aim()
			m.begin(limits)
			m.target.until(control.StateReceived)
			m.source.until(control.StateMoved)
			if tt.broken {
				m.cables[0].cut()
				m.source.conn.Close() // virt-handler is gone
				m.source.conn = launchertest.Accept(t, m.source.handler)
				if m.source.conn.Hello.State.State != control.StateMoved {
					t.Errorf("after the break: %+v", m.source.conn.Hello.State)
				}
			}
			tt.decide(m)
		})
	}
}

func (m *move) takenBack() {
	m.source.must(m.source.call(control.CommandTakeBack, nil, nil))
	m.source.until(control.StateRunning)
	m.source.answers("1W", "1w")
	m.source.must(m.source.call(control.CommandTakeBack, nil, nil)) // once more changes nothing
}

// runsAtTarget makes the target run the guest that has come, and makes the source end.
func (m *move) runsAtTarget() {
	m.source.Helper()
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
	m.target.until(control.StateRunning)
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
}

func (m *move) released() {
	m.target.must(m.target.call(control.CommandRun, nil, nil))
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	m.target.answers("1W", "1w")
}

// TestGuestThatWasSentIsTakenBack: the source has sent all, and its guest is not to run on the target.
func TestGuestThatWasSentIsTakenBack(t *testing.T) {
	t.Parallel()
	m := prepareMove(t)
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.jobEnded()
	m.target.cancel()
	m.target.termination()
	m.takenBack()
}

// TestMigratePaused: a guest that a user has paused is paused on the target, and after a migration
// that fails.
func TestMigratePaused(t *testing.T) {
	t.Parallel()
	m := prepareMove(t)
	m.source.must(m.source.call(control.CommandPause, nil, nil))
	m.source.until(control.StatePaused)
	m.begin(limits)
	m.target.until(control.StateReceived)
	if moved := m.source.until(control.StateMoved); moved.Pause == nil || moved.Pause.Status != control.PausedByUser {
		t.Errorf("the source says %+v", moved)
	}
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{Paused: true}, nil))
	m.target.until(control.StatePaused)
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	m.target.must(m.target.call(control.CommandUnpause, nil, nil))
	m.target.answers("1W", "1w")
}

// TestStoppedWhileMigrating: a source that is asked to end shuts its guest down while the guest can
// run nowhere else, and only ends its QEMU later.
func TestStoppedWhileMigrating(t *testing.T) {
	t.Parallel()
	copying := prepareMove(t, "root")
	obey(copying.source)
	copying.begin(slow)
	copying.source.signals <- syscall.SIGTERM
	copying.source.expectEnd(control.ReasonShutdown, "power button")
	moved := &move{source: launch(t), mute: true}
	moved.source.boot()
	moved.aim()
	moved.begin(limits)
	moved.source.until(control.StateMoved)
	moved.source.signals <- syscall.SIGTERM
	moved.source.expectEnd(control.ReasonMigrated, "another pod")
}

// TestMigrateRefused: what makes no sense is refused, and changes nothing.
func TestMigrateRefused(t *testing.T) {
	t.Parallel()
	v := launch(t)
	if err := v.call(control.CommandOpenChannel, nil, nil); err == nil {
		t.Error("a launcher without a guest opens a channel")
	}
	v.boot()
	for name, refused := range map[string]struct {
		command   string
		arguments any
	}{
		"no channel":                  {control.CommandMigrate, limits},
		"no channel to mirror beside": {control.CommandMirrorDisk, control.DiskRequest{Disk: "root"}},
		"receive":                     {control.CommandReceive, nil},
		"export":                      {control.CommandExportDisk, control.DiskRequest{Disk: "root"}},
		"run":                         {control.CommandRun, nil}, "release": {control.CommandRelease, nil},
	} {
		if err := v.call(refused.command, refused.arguments, nil); err == nil {
			t.Errorf("%s: %s is carried out", name, refused.command)
		}
	}
	defer v.stream(control.CommandOpenChannel, nil).Close()
	if err := v.call(control.CommandMirrorDisk, control.DiskRequest{Disk: "none"}, nil); err == nil ||
		!strings.Contains(err.Error(), `"none"`) {
		t.Errorf("a disk that is none: %v", err)
	}
	defer v.stream(control.CommandMirrorDisk, control.DiskRequest{Disk: "root"}).Close()
	if err := v.call(control.CommandMirrorDisk, control.DiskRequest{Disk: "root"}, nil); err == nil ||
		!strings.Contains(err.Error(), "already") {
		t.Errorf("a disk is mirrored twice: %v", err)
	}
	for name, change := range map[string]func(*control.MigrateRequest){
		"negative bandwidth": func(r *control.MigrateRequest) { r.BytesPerSecond = -1 },
		"no downtime":        func(r *control.MigrateRequest) { r.DowntimeMilliseconds = 0 },
		"endless":            func(r *control.MigrateRequest) { r.CompletionSeconds = 1 << 60 },
		"no patience":        func(r *control.MigrateRequest) { r.StallSeconds = 0 },
	} {
		request := limits
		change(&request)
		if err := v.call(control.CommandMigrate, request, nil); err == nil || !strings.Contains(err.Error(), "limits") {
			t.Errorf("%s: %v", name, err)
		}
	}
	v.answers("1W", "1w")
}

// TestSilentTargetDisk: a target whose disk says nothing holds up no guest, and the migration fails.
func TestSilentTargetDisk(t *testing.T) {
	t.Parallel()
	testkit.Slower(t, 4*time.Second, func(completion time.Duration) error { return silentTargetDisk(t, completion) })
}

// silentTargetDisk returns an error if the guest answers when the migration has ended already.
func silentTargetDisk(t *testing.T, completion time.Duration) error {
	t.Helper()
	m := &move{source: launch(t), mute: true}
	m.source.boot()
	m.aim("root")
	request := limits
	request.CompletionSeconds = int64(completion / time.Second)
	begun := time.Now()
	m.begin(request)
	m.source.answers("1", "1")
	time.Sleep(time.Second)
	m.source.answers("2W", "2w")
	took := time.Since(begun)
	if failed := m.source.jobEnded(); failed.State != control.StateRunning || failed.Jobs[0].State != control.JobFailed ||
		!strings.Contains(failed.Jobs[0].Error, "root") {
		t.Errorf("the source says %+v", failed)
	}
	if took := time.Since(begun); took > completion+tooLate {
		t.Errorf("the migration took %s", took)
	}
	m.source.answers("3W", "3w")
	if took >= completion {
		return fmt.Errorf("the guest answers after %s", took)
	}
	return nil
}

// comesTo asks for a launcher's state until it is one of these. It returns false if the launcher ends.
func (v *vm) comesTo(is func(control.StateReport) bool) (control.StateReport, bool) {
	v.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for report := v.state(); ; {
		if is(report) {
			return report, true
		}
		select {
		case report = <-v.conn.States:
		case <-v.ended:
			return report, false
		case <-timeout.C:
			v.Fatalf("waited %s in vain; the last state is %+v", patience, report)
		}
	}
}

// TestUnansweredRunMayHaveRun: a QEMU that does not answer may have let the guest run. It is told once, and the
// launcher does not say of its end that the guest never ran.
func TestUnansweredRunMayHaveRun(t *testing.T) {
	t.Parallel()
	v := launch(t, withQEMU(t, "qemu-received"))
	v.request.Incoming = true
	v.must(v.call(control.CommandStart, v.request, nil))
	v.until(control.StateReceiving)
	v.stream(control.CommandOpenChannel, nil)
	v.must(v.call(control.CommandReceive, nil, nil))
	v.until(control.StateReceived)
	answers := make(chan error, 2)
	for range 2 {
		go func() { answers <- v.conn.Ask(control.CommandRun, control.RunRequest{}, nil) }()
	}
	if err := testkit.Receive(t, answers, "an answer"); err == nil || !strings.Contains(err.Error(), "has not answered") {
		t.Errorf("the second word is answered with %v", err)
	}
	v.signals <- syscall.SIGTERM
	v.expectEnd(control.ReasonQEMUExited, "killed by signal 9")
}
