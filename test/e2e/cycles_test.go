package e2e

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// component is one of Kubeqemu's long-lived processes, with a metrics port on
// the loopback of its network namespace.
type component struct {
	name, workload string
	metrics        int
}

var components = []component{
	{"virt-controller", "deployment/virt-controller", 18091},
	{"virt-handler", "daemonset/virt-handler", 18092},
}

// use is what a component holds.
type use struct {
	goroutines, files, rss int // RSS in KiB
}

// use asks the node, and the component for its goroutines.
func (c component) use() (u use, err error) {
	p, err := findProcess(func(p nodeProcess) bool { return path.Base(p.Args[0]) == c.name })
	if err != nil {
		return u, err
	}
	out, err := onNode(`ls "/proc/$1/fd" | wc -l; sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$1/status"
		nsenter --net="/proc/$1/ns/net" busybox wget -q -O - "http://127.0.0.1:$2/metrics" | sed -n 's/^go_goroutines //p'`,
		strconv.Itoa(p.PID), strconv.Itoa(c.metrics))
	if err != nil {
		return u, err
	}
	if _, err := fmt.Sscan(out, &u.files, &u.rss, &u.goroutines); err != nil {
		return u, fmt.Errorf("read what %s uses from %q: %w", c.name, out, err)
	}
	return u, nil
}

// withMetrics has the components serve metrics for the test's time: there the
// number of their goroutines is, and as shipped they do not.
func withMetrics(t *testing.T) {
	t.Helper()
	patchAll := func(patch func(component) string) error {
		for _, c := range components {
			if _, err := output("", "kubectl", "-n", "kubevirt", "patch", c.workload, "--type=json", "--patch", patch(c)); err != nil {
				return err
			}
		}
		for _, c := range components {
			if _, err := output("", "kubectl", "-n", "kubevirt", "rollout", "status", "--timeout=60s", c.workload); err != nil {
				return err
			}
		}
		return nil
	}
	const args = "/spec/template/spec/containers/0/args"
	t.Cleanup(func() {
		if err := patchAll(func(component) string { return `[{"op":"remove","path":"` + args + `/0"}]` }); err != nil {
			t.Error(err)
		}
	})
	err := patchAll(func(c component) string {
		return fmt.Sprintf(`[{"op":"add","path":"%s/0","value":"--metrics-bind-address=127.0.0.1:%d"}]`, args, c.metrics)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Beyond what there was before, goroutines come and go with timers and idle
// connections, and a heap is larger or smaller by what was collected last.
const (
	moreGoroutines = 5
	moreFiles      = 2
	moreRSS        = 8 << 10 // KiB; a hundred VMIs that left 100 KiB each would be more
)

// TestCycles: VMIs that came and went, side by side and one after the other,
// leave nothing, neither on the node nor in virt-controller and virt-handler.
func TestCycles(t *testing.T) {
	const side = 5
	cycles := 10
	if long() {
		cycles = 100
	}
	withMetrics(t)
	check := leavesNothing(t)
	ns := namespace(t)
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
		kubectl(t, "-n", ns, "delete", "vmi", "--all", "--timeout=60s")
	}
	// What is made on first use, connections and caches, has been made after this.
	round("first")
	before := map[string]use{}
	for _, c := range components {
		var err error
		if before[c.name], err = c.use(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range cycles / side {
		round(fmt.Sprintf("round-%d", i))
	}
	check()
	for _, c := range components {
		old := before[c.name]
		var now use
		err := poll(60*time.Second, func() error {
			var err error
			if now, err = c.use(); err != nil {
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
				return fmt.Errorf("%s has, after %d VMIs, %s", c.name, cycles, strings.Join(more, ", "))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		t.Logf("%s, before and after %d VMIs: %d and %d goroutines, %d and %d open files, %d and %d KiB RSS", c.name, cycles,
			old.goroutines, now.goroutines, old.files, now.files, old.rss, now.rss)
	}
}
