package e2e

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// component is one of Kubeqemu's long-lived processes.
type component string

var components = []component{"virt-controller", "virt-handler"}

// use is what a component holds.
type use struct {
	goroutines, files, rss int // RSS in KiB
}

// use asks the node, and the component for its goroutines.
func (c component) use(s *scraper) (u use, err error) {
	p, err := findProcess(func(p nodeProcess) bool { return path.Base(p.Args[0]) == string(c) })
	if err != nil {
		return u, err
	}
	m, err := s.scrape(string(c))
	if err != nil {
		return u, err
	}
	goroutines, err := m.value("go_goroutines")
	if err != nil {
		return u, err
	}
	u.goroutines = int(goroutines)
	out, err := onNode(`ls "/proc/$1/fd" | wc -l; sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$1/status"`, strconv.Itoa(p.PID))
	if err != nil {
		return u, err
	}
	if _, err := fmt.Sscan(out, &u.files, &u.rss); err != nil {
		return u, fmt.Errorf("read what %s uses from %q: %w", c, out, err)
	}
	return u, nil
}

// Beyond what there was before, goroutines come and go with timers and idle
// connections, and a heap is larger or smaller by what was collected last.
const (
	moreGoroutines = 5
	moreFiles      = 2
	moreRSS        = 8 << 10 // KiB; a hundred VMIs that left 100 KiB each would be more
)

// TestVMIsThatCameAndWentLeaveNothing: VMIs that came and went, side by side and one after the other,
// leave nothing, neither on the node nor in virt-controller and virt-handler.
func TestVMIsThatCameAndWentLeaveNothing(t *testing.T) {
	const side = 5
	cycles := 10
	if long() {
		cycles = 100
	}
	check := leavesNothing(t)
	ns := namespace(t)
	scraper := mustScraper(t, readerAccount(t, ns))
	round := func(names string) {
		t.Helper()
		var vmis []vmi
		for i := range side {
			vmis = append(vmis, create(t, ns, tiny(fmt.Sprintf("%s-%d", names, i))))
		}
		qemus := map[int]bool{}
		for _, v := range vmis {
			v.await(v1.Running)
			qemus[v.qemu().PID] = true
		}
		if len(qemus) != side {
			t.Errorf("%d VMIs have %d QEMUs", side, len(qemus))
		}
		kubectl(t, "-n", ns, "delete", "vmi", "--all", "--timeout=600s")
	}
	// What is made on first use, connections and caches, has been made after this.
	round("first")
	before := map[component]use{}
	for _, c := range components {
		var err error
		if before[c], err = c.use(scraper); err != nil {
			t.Fatal(err)
		}
	}
	for i := range cycles / side {
		round(fmt.Sprintf("round-%d", i))
	}
	check()
	for _, c := range components {
		old := before[c]
		var now use
		err := poll(func() error {
			var err error
			if now, err = c.use(scraper); err != nil {
				return err
			}
			var more []string
			for _, grown := range []struct {
				what     string
				by, most int
			}{{"goroutines", now.goroutines - old.goroutines, moreGoroutines}, {"open files", now.files - old.files, moreFiles}, {"KiB RSS", now.rss - old.rss, moreRSS}} {
				if grown.by > grown.most {
					more = append(more, fmt.Sprintf("%d %s more", grown.by, grown.what))
				}
			}
			if len(more) > 0 {
				return fmt.Errorf("%s has, after %d VMIs, %s", c, cycles, strings.Join(more, ", "))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		t.Logf("%s, before and after %d VMIs: %d and %d goroutines, %d and %d open files, %d and %d KiB RSS", c, cycles,
			old.goroutines, now.goroutines, old.files, now.files, old.rss, now.rss)
	}
}
