package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// postCopyFaults are what goes wrong while a guest's memory follows it, or early, before that. ends says whether that ends the guest.
var postCopyFaults = []struct {
	name        string
	do          func(moving)
	ends, early bool
}{
	{name: "controller-killed", do: func(m moving) { awaitController(m.t, controller{}).kill(m.t) }},
	{name: "api-server-away", do: func(m moving) { m.without("kube-apiserver", func() { time.Sleep(10 * time.Second) }) }},
	{name: "api-server-away-before", do: awayBefore, early: true},
	{name: "api-server-away-at-the-switch", do: awayAtSwitch, early: true},
	{name: "link-cut-shortly", do: func(m moving) { m.cut(10 * time.Second) }},
	{name: "target-qemu-killed", do: func(m moving) { killIn(m.t, m.pod(m.state.TargetPod), "qemu-system-") }, ends: true},
	{name: "source-qemu-killed", do: func(m moving) { killIn(m.t, m.pod(m.state.SourcePod), "qemu-system-") }, ends: true},
	{name: "target-launcher-killed", do: func(m moving) { killIn(m.t, m.pod(m.state.TargetPod), "virt-launcher") }, ends: true},
	{name: "source-launcher-killed", do: func(m moving) { killIn(m.t, m.pod(m.state.SourcePod), "virt-launcher") }, ends: true},
	{name: "target-handler-killed", do: func(m moving) { killIn(m.t, handlerOn(m.t, m.state.TargetNode), "virt-handler") }, ends: true},
	{name: "source-handler-killed", do: func(m moving) { killIn(m.t, handlerOn(m.t, m.state.SourceNode), "virt-handler") }, ends: true},
}

// postCopyPolicy lets a guest of 128 MiB leave after 20 s. The copying of its disks, of 40 MiB, takes 10 s of them. Most of its memory then follows it.
const postCopyPolicy = "bandwidthPerMigration: 4Mi, completionTimeoutPerGiB: 20, allowPostCopy: true"

// TestMigrationPostCopyFaults: whatever goes wrong while a guest's memory follows it, the guest runs once at most. A guest whose memory
// cannot follow ends for that reason, and its VM starts again.
func TestMigrationPostCopyFaults(t *testing.T) {
	newSecondNode(t)
	nothing, nothingThere := leavesNothing(t), addsNothingOn(t, secondName)
	ns := namespace(t)
	disk := filepath.Join(sharedClaim(t, ns, "shared"), "disk.img")
	policy(t, ns, postCopyPolicy)
	t.Cleanup(func() { output("", "kubectl", "delete", "migrationpolicy", ns) })
	m := createVM(t, ns, "trails", v1.RunStrategyAlways, emptyDisk("data", "1Mi"), onClaim("shared"))
	uid := m.runs("")
	m.busy()
	uuid := m.get().Spec.Domain.Firmware.UUID
	guests := guestsOn(t, uuid)
	for _, f := range postCopyFaults {
		t.Run(f.name, func(t *testing.T) {
			m := vm{vmi{t: t, namespace: ns, name: m.name}}
			once := m.runsOnce(uuid, disk)
			defer once()
			var now moving
			if f.early {
				now = m.moves(f.name)
			} else {
				migration, state := m.trailing(f.name)
				migration.stays()
				now = moving{vm: m, migration: migration, state: state}
			}
			f.do(now)
			if f.ends {
				m.endedBy("PostCopyFailed", uid)
				uid = m.runs(uid)
				m.endsOnce(now, "", guests) // the migration goes with the guest's VMI
				once()
				m.busy()
				return
			}
			m.endsOnce(now, v1.MigrationSucceeded, guests)
			once()
			if s := m.get().Status.MigrationState; s.Mode != v1.MigrationPostCopy {
				t.Errorf("the guest did not go by post-copy: %+v", s)
			}
			m.continues(uid)
		})
	}
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
	nothing()
	nothingThere()
}

// busy waits until a guest that has just started runs its programs: the canary, and the change of memory.
func (m vm) busy() {
	m.t.Helper()
	m.log().shows("tiny: eth0")
	shell := m.shell()
	m.in(shell, "mkdir -p /tmp; "+canary)
	// The canary has then written over the numbers of an earlier guest.
	if out, status := shell.run("while [ ! -e /tmp/count ]; do usleep 100000; done"); status != 0 {
		m.t.Fatalf("the guest does not count: %s", out)
	}
	m.in(shell, churning)
}

// continues checks that the guest goes on in the same VMI, and that no other QEMU has written to its disk.
func (m vm) continues(uid types.UID) {
	m.t.Helper()
	if now := m.uid(); now != uid {
		m.t.Fatalf("the guest has ended: VMI %s, was %s", now, uid)
	}
	shell := m.shell()
	if out, status := shell.run("n=$(cat /tmp/count); while [ $(cat /tmp/count) -le $n ]; do usleep 100000; done"); status != 0 {
		m.t.Errorf("the guest does not count on: %s", out)
	}
	if two := m.in(shell, "cat /tmp/two 2>/dev/null; true"); two != "" {
		m.t.Fatalf("another QEMU has written to the guest's disk: %s", two)
	}
}

// endedBy waits for the event of a VMI's end.
func (m vm) endedBy(reason string, uid types.UID) {
	m.t.Helper()
	err := poll(func() error {
		var said []string
		for _, e := range m.events() {
			if e.Reason == "Stopped" && e.InvolvedObject.UID == uid {
				if said = append(said, e.Message); strings.Contains(e.Message, "("+reason+")") {
					return nil
				}
			}
		}
		return fmt.Errorf("the guest has not ended with %s: %q", reason, said)
	})
	if err != nil {
		m.t.Error(err)
	}
}

// awayBefore takes the API server away before post-copy is due.
func awayBefore(m moving) {
	m.without("kube-apiserver", func() { time.Sleep(25 * time.Second) })
}

// awayAtSwitch takes the API server away when the guest is about to leave, and before the target can decide. Until then the target's
// virt-handler stands still.
func awayAtSwitch(m moving) {
	handler := process(m.t, handlerOn(m.t, m.state.TargetNode), "virt-handler")
	cont := func() {
		if err := syscall.Kill(handler, syscall.SIGCONT); err != nil {
			m.t.Error(err)
		}
	}
	defer cont()
	err := poll(func() error {
		if p := m.get().Status.MigrationState.SourceState.Progress; p.TotalBytes < 64<<20 {
			return fmt.Errorf("the disks are still copied: %+v", p)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	if err := syscall.Kill(handler, syscall.SIGSTOP); err != nil {
		m.t.Fatal(err)
	}
	err = poll(func() error {
		if s := m.get().Status.MigrationState; !s.PostCopy() || s.Decision != "" {
			return fmt.Errorf("post-copy has not begun: %+v", s)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.without("kube-apiserver", func() {
		cont()
		time.Sleep(15 * time.Second)
	})
}

// lookOften is the time between two looks at the QEMUs of a guest.
const lookOften = 50 * time.Millisecond

// runsOnce looks all the time at which QEMU's vCPU gets CPU time, and at the number that the guest's canary writes. The function that it
// returns says whether two QEMUs ran the guest: a QEMU ran it again after another one had, or the numbers went back.
func (m vm) runsOnce(uuid, disk string) (check func()) {
	var wait sync.WaitGroup
	stop, last, complaints := make(chan struct{}), -1, []string{}
	seen := newRunners(uuid)
	tick := time.NewTicker(lookOften)
	wait.Go(func() {
		defer tick.Stop()
		for {
			if again := seen.look(); again != "" {
				complaints = append(complaints, again)
			}
			text := make([]byte, 16)
			if file, err := os.Open(disk); err == nil {
				_, err = file.ReadAt(text, 0)
				file.Close()
				if n, bad := strconv.Atoi(string(text)); err == nil && bad == nil {
					if n < last {
						complaints = append(complaints, fmt.Sprintf("the canary wrote %d after %d", n, last))
					}
					last = n
				}
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		m.t.Helper()
		close(stop)
		wait.Wait()
		if len(complaints) > 0 {
			m.t.Errorf("two QEMUs have run the guest: %q", complaints[:min(len(complaints), 10)])
		}
		if len(seen.ran) == 0 || last < 0 {
			m.t.Errorf("nobody ran the guest: %v, %d", seen.ran, last)
		}
		m.t.Logf("%d QEMUs ran the guest; it wrote %d", len(seen.ran), last)
	})
}

// runners are the QEMUs of a guest.
type runners struct {
	uuid  string
	tasks map[int]string // of each QEMU's vCPU: its folder in /proc
	spent map[int]int64  // what the vCPU has used, in ns
	ran   []int          // which QEMUs ran the guest, in order
	next  time.Time      // when to look for new QEMUs
}

func newRunners(uuid string) *runners {
	return &runners{uuid: uuid, tasks: map[int]string{}, spent: map[int]int64{}}
}

// runs is how much CPU time a vCPU that runs the guest uses between two looks at least, in ns. A vCPU that stands still may be woken.
const runs = 10e6

// look says which QEMU ran the guest since the last look although another one had run it since.
func (r *runners) look() (again string) {
	if now := time.Now(); now.After(r.next) {
		r.next = now.Add(500 * time.Millisecond)
		r.find()
	}
	// First comes the QEMU that ran the guest last: on a busy machine the guest may leave it and run elsewhere between two looks.
	last := 0
	if len(r.ran) > 0 {
		last = r.ran[len(r.ran)-1]
	}
	pids := slices.SortedFunc(maps.Keys(r.tasks), func(a, b int) int {
		switch last {
		case a:
			return -1
		case b:
			return 1
		}
		return a - b
	})
	for _, pid := range pids {
		task := r.tasks[pid]
		text, err := os.ReadFile(filepath.Join(task, "schedstat"))
		if err != nil {
			delete(r.tasks, pid)
			continue
		}
		first, _, _ := strings.Cut(string(text), " ")
		spent, _ := strconv.ParseInt(first, 10, 64)
		before, known := r.spent[pid]
		r.spent[pid] = spent
		if !known || spent-before < runs {
			continue
		}
		for i, ran := range r.ran {
			if ran == pid && i < len(r.ran)-1 {
				again = fmt.Sprintf("QEMU %d ran after QEMU %d", pid, r.ran[len(r.ran)-1])
			}
		}
		if len(r.ran) == 0 || again == "" && r.ran[len(r.ran)-1] != pid {
			r.ran = append(r.ran, pid)
		}
	}
	return again
}

// find finds the vCPUs. The argument debug-threads gives them names.
func (r *runners) find() {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		line, err := os.ReadFile(file)
		if err != nil || r.tasks[pid] != "" || !bytes.HasPrefix(line, []byte("/usr/bin/qemu-system")) || !bytes.Contains(line, []byte(r.uuid)) {
			continue
		}
		names, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "task/*/comm"))
		for _, name := range names {
			if text, _ := os.ReadFile(name); strings.HasPrefix(string(text), "CPU 0/") {
				r.tasks[pid] = filepath.Dir(name)
			}
		}
	}
}
