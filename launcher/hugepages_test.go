package launcher

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/hugepagetest"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

const hugePage = 2 << 20

// onHugePages makes the guest's memory huge pages, of which the machine has enough for as many guests.
func (v *vm) onHugePages(guests int64) {
	v.Helper()
	v.request.Machine.HugePageBytes = hugePage
	if err := hugepagetest.Lend(v.T, hugePage, guests*v.request.Machine.MemoryBytes); err != nil {
		v.Fatalf("THIS MACHINE HAS NO HUGE PAGES, and they cannot be tested (run the tests as root): %v", err)
	}
}

var hugetlb = regexp.MustCompile(`(?m)^(?:Shared|Private)_Hugetlb: +(\d+) kB$`)

// hugeMemory returns how many bytes of a process are huge pages of the pool.
func (v *vm) hugeMemory(pid int) (bytes int64) {
	v.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	v.must(err)
	for _, m := range hugetlb.FindAllSubmatch(text, -1) {
		kib, err := strconv.ParseInt(string(m[1]), 10, 64)
		v.must(err)
		bytes += kib << 10
	}
	return bytes
}

// TestHugePages: all of the guest's memory is huge pages from the start on, and again where the guest moves to.
func TestHugePages(t *testing.T) {
	m := &move{source: launch(t)}
	m.source.onHugePages(2)
	report := m.source.boot()
	want := m.source.request.Machine.MemoryBytes
	if got := m.source.hugeMemory(report.QEMUPID); got != want {
		t.Errorf("%d bytes of QEMU are huge pages, want the guest's %d", got, want)
	}
	m.aim()
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.until(control.StateMoved)
	m.released()
	if got := m.target.hugeMemory(m.target.state().QEMUPID); got != want {
		t.Errorf("%d bytes of the target's QEMU are huge pages, want the guest's %d", got, want)
	}
}

// TestHugePagesMissing: a guest for which the node has too few pages does not start, and its end says why.
func TestHugePagesMissing(t *testing.T) {
	v := launch(t)
	v.request.Machine.HugePageBytes, v.request.Machine.MemoryBytes = hugePage, 1<<40
	v.must(v.call(control.CommandStart, v.request, nil))
	end := v.expectEnd(control.ReasonStartFailed, "before the guest ran")
	if !regexp.MustCompile(`(?i)cannot allocate memory|insufficient|set up guest memory`).MatchString(end.Stderr) {
		t.Errorf("QEMU's last words are %q", end.Stderr)
	}
}
