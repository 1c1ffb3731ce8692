//go:build long

package launcher

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
)

// fault is something that goes wrong in a migration.
type fault struct {
	name string
	do   func(m *move, job uint64)
	// mute: the source never hears from the target.
	mute bool
	// ends: the guest may end with the source.
	ends bool
	// kills: the target may end after it has received everything.
	kills bool
	// slow: the migration takes longer than it may.
	slow bool
}

var faults = []fault{
	{name: "none", do: func(*move, uint64) {}},
	{name: "mute", do: func(*move, uint64) {}, mute: true},
	{name: "canceled", do: func(m *move, job uint64) {
		m.source.call(control.CommandCancelJob, control.JobRequest{ID: job}, nil)
	}},
	{name: "cut", do: func(m *move, _ uint64) { m.cut() }},
	{name: "virt-handler gone", do: func(m *move, _ uint64) {
		m.cut()
		m.source.conn.Close()
		m.source.conn = launchertest.Accept(m.source.T, m.source.handler)
	}},
	{name: "mute and cut", do: func(m *move, _ uint64) { m.cut() }, mute: true},
	{name: "target's QEMU killed", do: func(m *move, _ uint64) { syscall.Kill(m.target.state().QEMUPID, syscall.SIGKILL) },
		kills: true},
	{name: "mute, target's QEMU killed",
		do: func(m *move, _ uint64) { syscall.Kill(m.target.state().QEMUPID, syscall.SIGKILL) }, mute: true, kills: true},
	{name: "target ended", do: func(m *move, _ uint64) { m.target.cancel() }, kills: true},
	{name: "target stopped", do: func(m *move, _ uint64) { m.target.signals <- syscall.SIGTERM }, kills: true},
	{name: "source's QEMU killed", do: func(m *move, _ uint64) { syscall.Kill(m.source.state().QEMUPID, syscall.SIGKILL) },
		ends: true},
	{name: "too slow", do: func(*move, uint64) {}, slow: true},
	{name: "source ended", do: func(m *move, _ uint64) { m.source.cancel() }, ends: true},
}

func (m *move) cut() {
	for _, c := range m.cables {
		c.cut()
	}
}

var (
	faultCount = flag.Int("faults", 200, "`number` of migrations in which something goes wrong at random")
	faultSeed  = flag.Uint64("fault-seed", 0, "`seed` of the first of these migrations; 0 is the time")
)

// faultLanes is how many guests move at a time. Migrations mostly wait.
const faultLanes = 4

// TestMigrateAtRandom: at whatever moment something goes wrong, the guest then runs exactly once, where virt-handler
// says. A guest that is there goes on from one migration to the next. Each migration has a seed of its own: -faults 1
// -fault-seed SEED has the same go wrong at the same time, with a new guest.
func TestMigrateAtRandom(t *testing.T) {
	t.Parallel()
	next := *faultSeed
	if next == 0 {
		next = uint64(time.Now().UnixNano())
	}
	for lane := range faultLanes {
		first, count := next, (*faultCount+lane)/faultLanes
		next += uint64(count)
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			met := map[string]int{}
			var source *vm
			for i := range count {
				source = (&chance{seed: first + uint64(i)}).befall(t, source, met)
			}
			t.Logf("%d migrations, seeds from %d: %v", count, first, met)
		})
	}
}

// chance is a migration in which something goes wrong.
type chance struct {
	seed    uint64
	fault   fault
	disks   []string
	request control.MigrateRequest
	after   time.Duration
}

func (c *chance) String() string {
	return fmt.Sprintf("%s after %s, disks %v, %d bytes a second (-faults 1 -fault-seed %d)", c.fault.name, c.after,
		c.disks, c.request.BytesPerSecond, c.seed)
}

func (c *chance) draw() {
	random := rand.New(rand.NewPCG(c.seed, 1))
	c.fault = faults[random.IntN(len(faults))]
	if random.IntN(2) == 0 {
		c.disks = []string{"root"}
	}
	c.request = limits
	// Where no virt-handler notices that a channel is cut, only a limit does.
	c.request.StallSeconds, c.request.CompletionSeconds = 5, 60
	if random.IntN(2) == 0 {
		c.request.BytesPerSecond = 2 << 20 // the migration takes some seconds
	}
	switch {
	case c.fault.slow:
		c.request = slow
		c.request.CompletionSeconds = 1
	case c.fault.mute && c.disks != nil: // nothing says that the disk arrives
		c.request.CompletionSeconds = 5
	}
	c.after = time.Duration(random.IntN(1500)) * time.Millisecond
}

// befall moves a guest, and makes something go wrong. It returns the launcher that has the guest, or nil if the
// guest has ended. A nil source stands for a new guest.
func (c *chance) befall(t *testing.T, source *vm, met map[string]int) *vm {
	c.draw()
	begun := time.Now()
	defer func() {
		if took := time.Since(begun); took > 30*time.Second {
			t.Logf("took %s: %s", took.Round(time.Second), c)
		}
		if t.Failed() {
			t.Logf("what went wrong: %s", c)
		}
	}()
	if source == nil {
		source = launch(t)
		source.boot()
	}
	m := &move{source: source, mute: c.fault.mute}
	m.aim(c.disks...)
	job := m.begin(c.request)
	time.Sleep(c.after)
	c.fault.do(m, job)
	now, outcome := m.decide(c.fault)
	met[c.fault.name+": "+outcome]++
	if t.Failed() {
		t.FailNow()
	}
	for _, v := range []*vm{m.source, m.target} {
		if v != now {
			v.stop()
			v.retired = true
		}
	}
	return now
}

// decide does what virt-handler does, and returns the launcher that has the guest, or nil if the
// guest has ended.
func (m *move) decide(f fault) (*vm, string) {
	m.source.Helper()
	sent, alive := m.source.comesTo(func(r control.StateReport) bool {
		// A report may still wait to be read that is older than this migration.
		i := slices.IndexFunc(r.Jobs, func(j control.Job) bool { return j.ID == m.job })
		return i >= 0 && (r.State == control.StateMoved || r.Jobs[i].Finished())
	})
	_, arrived := m.target.comesTo(func(r control.StateReport) bool { return r.State == control.StateReceived })
	defer m.cut()
	if arrived && (!alive || sent.State == control.StateMoved) {
		err := m.target.call(control.CommandRun, nil, nil)
		if err == nil {
			switch {
			case f.ends: // the source may have died since it said that the guest has moved
				_ = m.source.call(control.CommandRelease, nil, nil)
				m.source.termination()
			case alive:
				m.source.must(m.source.call(control.CommandRelease, nil, nil))
				m.source.expectEnd(control.ReasonMigrated, "another pod")
			}
			m.target.answers("1W", "1w")
			return m.target, "migrated"
		}
		// The target's QEMU may have died since it said that it has the guest.
		if !f.kills {
			m.source.Errorf("the guest does not run on the target: %v", err)
		}
	}
	m.target.cancel()
	m.target.termination()
	if !alive {
		if !f.ends {
			m.source.Error("the guest is lost")
		}
		return nil, "ended"
	}
	// The source may have died since it said how far it is.
	if err := m.source.call(control.CommandTakeBack, nil, nil); err != nil && f.ends {
		m.source.termination()
		return nil, "ended"
	} else if err != nil {
		m.source.Fatal(err)
	}
	if _, runs := m.source.comesTo(func(r control.StateReport) bool { return r.State == control.StateRunning }); !runs {
		m.source.Error("the guest is lost")
		return nil, "lost"
	}
	m.source.answers("1W", "1w")
	m.source.comesTo(func(r control.StateReport) bool { return r.Jobs[len(r.Jobs)-1].Finished() })
	m.source.must(m.source.call(control.CommandForgetJob, control.JobRequest{ID: sent.Jobs[len(sent.Jobs)-1].ID}, nil))
	return m.source, "stayed"
}
