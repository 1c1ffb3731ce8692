//go:build long

// Package churn has virt-controller and virt-handler, as they are shipped, start
// and end VMs by the thousand, on a node that is made up: what costs time and
// memory on a real one, images, containers and QEMU, is left out. What they do
// to an API server and to network namespaces is real.
package churn

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/test/simulation"
)

const (
	starts = 1000
	// Of so many guests at a time one is being started or ended.
	side = 20
	// A node has as many slots.
	full = 110
)

// What may be there more than before: goroutines and files come and go with
// timers and idle connections. Of memory the most is client-go's recorder's, which
// keeps each event for 6 to 12 minutes (finishTime in its tools/events): some
// 3 KiB of each of a start's three or four. What is left of each start is seen if it
// is a goroutine, a file, or a VMI's object with its pod's.
const (
	moreGoroutines = 5
	moreFiles      = 2
	moreRSS        = 18 << 10 // KiB: 18 of each start
)

// leftAlone is how long a component is left alone before its memory counts. A component that is
// asked without pause is busy, and its heap may be large (internal/heap).
const leftAlone = 15 * time.Second

// What is written per start, events excluded, is bounded for the VMI and its pod; events
// included, for all that virt-controller, virt-handler and virt-api write. The scheduler and
// the kubelet write as for any pod.
const (
	writesPerStart    = 5
	allWritesPerStart = 8
)

type world struct {
	*simulation.Cluster
	t          *testing.T
	components []*simulation.Component
}

func newWorld(t *testing.T) *world {
	ctrl.SetLogger(logr.Discard()) // the node's controller has much to say
	w := &world{t: t}
	repository, err := filepath.Abs("../..")
	w.must(err)
	w.Cluster, err = simulation.Start(t.Context(), simulation.Options{Repository: repository, Programs: build(t), Folder: t.TempDir()})
	w.must(err)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		for _, c := range w.components {
			if t.Failed() {
				t.Logf("the end of what %s says:\n%s", c.Name, c.Said())
			}
		}
	})
	for _, start := range []func() (*simulation.Component, error){
		func() (*simulation.Component, error) { return w.StartAPI(t.Context()) },
		w.StartController,
		func() (*simulation.Component, error) { return w.StartNode(t.Context()) },
	} {
		c, err := start()
		w.must(err)
		w.components = append(w.components, c)
	}
	return w
}

// build makes the programs as they are shipped, but for what says where a fault is.
func build(t *testing.T) (folder string) {
	t.Helper()
	const program = "virt-components"
	folder = t.TempDir()
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "grpcnotrace", "-o", filepath.Join(folder, program), "../../cmd/"+program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", program, err, out)
	}
	if err := simulation.LinkPrograms(folder); err != nil {
		t.Fatal(err)
	}
	return folder
}

// await asks until the answer is nil.
func await(what string, ask func() error) error {
	if err := simulation.Poll(context.Background(), 3*time.Minute, ask); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func named(name string) *v1.VirtualMachineInstance {
	return &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// starts makes a VMI and waits until it runs.
func (w *world) starts(name string) error {
	vmi := named(name)
	vmi.Spec = simulation.Guest()
	if err := w.Client.Create(w.t.Context(), vmi); err != nil {
		return err
	}
	_, err := w.runs(name, "")
	return err
}

// runs waits until the VMI of the name runs, and is not the one that was before.
func (w *world) runs(name string, before types.UID) (uid types.UID, err error) {
	err = await("VMI "+name, func() error {
		vmi := named(name)
		if err := w.Client.Get(w.t.Context(), client.ObjectKeyFromObject(vmi), vmi); err != nil {
			return err
		}
		if ready := vmi.Status.Condition(v1.ConditionReady); vmi.Status.Phase != v1.Running || vmi.UID == before || ready.Status != metav1.ConditionTrue {
			return fmt.Errorf("it is %s, %+v", vmi.Status.Phase, vmi.Status.Conditions)
		}
		uid = vmi.UID
		return nil
	})
	return uid, err
}

func (w *world) gone(object client.Object) error {
	return await("end of "+object.GetName(), func() error {
		err := w.Client.Get(w.t.Context(), client.ObjectKeyFromObject(object), object)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there (%v)", err)
	})
}

func (w *world) delete(object client.Object) error {
	if err := w.Client.Delete(w.t.Context(), object); err != nil {
		return err
	}
	return w.gone(object)
}

// instance is one start: a VMI that comes and goes.
func (w *world) instance(name string) error {
	if err := w.starts(name); err != nil {
		return err
	}
	return w.delete(named(name))
}

// machine is two starts: a VM that is started, stopped, started and deleted.
func (w *world) machine(name string) error {
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
	vm.Spec.Template = v1.VirtualMachineInstanceTemplateSpec{Spec: simulation.Guest()}
	if err := w.Client.Create(w.t.Context(), vm); err != nil {
		return err
	}
	strategy := func(s v1.VirtualMachineRunStrategy) error {
		return w.Client.Patch(w.t.Context(), vm, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"runStrategy":%q}}`, s)))
	}
	first, err := w.runs(name, "")
	for _, step := range []func() error{
		func() error { return strategy(v1.RunStrategyHalted) },
		func() error { return w.gone(named(name)) },
		func() error { return strategy(v1.RunStrategyAlways) },
		func() error { _, err := w.runs(name, first); return err },
		func() error { return w.delete(vm) },
		func() error { return w.gone(named(name)) },
	} {
		if err == nil {
			err = step()
		}
	}
	return err
}

// together does n things, side by side.
func (w *world) together(n int, do func(i int) error) {
	w.t.Helper()
	work, errs := make(chan int), make(chan error, n)
	var workers sync.WaitGroup
	for range side {
		workers.Go(func() {
			for i := range work {
				errs <- do(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	workers.Wait()
	close(errs)
	for err := range errs {
		w.must(err)
	}
}

// churn starts guests so often, a third of them in VMs.
func (w *world) churn(names string, starts int) {
	w.t.Helper()
	w.together(starts/3, func(i int) error { return w.machine(fmt.Sprintf("%s-vm-%d", names, i)) })
	w.together(starts-starts/3*2, func(i int) error { return w.instance(fmt.Sprintf("%s-%d", names, i)) })
}

// TestThousandStartsLeaveNothing: a thousand starts leave nothing in virt-controller and virt-handler;
// a start costs a few writes, and guests that nobody asks anything of, as many as
// a node takes, cost none.
func TestThousandStartsLeaveNothing(t *testing.T) {
	w := newWorld(t)
	// What is made on first use, connections and caches, has been made after this.
	w.churn("first", 2*side)
	before := map[*simulation.Component]simulation.Use{}
	for _, c := range w.components {
		w.must(await("metrics of "+c.Name, func() (err error) {
			before[c], err = c.Use()
			return err
		}))
	}
	begin := time.Now()
	w.churn("again", starts)
	t.Logf("%d starts took %.0f s", starts, time.Since(begin).Seconds())
	for _, c := range w.components {
		w.holdsAsBefore(c, before[c])
	}
	w.fills()
}

func (w *world) holdsAsBefore(c *simulation.Component, old simulation.Use) {
	w.t.Helper()
	var now simulation.Use
	err := simulation.Poll(w.t.Context(), 60*time.Second, func() (err error) {
		time.Sleep(leftAlone)
		if now, err = c.Use(); err != nil {
			return err
		}
		var more []string
		for _, grown := range []struct {
			what     string
			by, most int
		}{{"goroutines", now.Goroutines - old.Goroutines, moreGoroutines}, {"open files", now.Files - old.Files, moreFiles}, {"KiB RSS", now.RSS - old.RSS, moreRSS}} {
			if grown.by > grown.most {
				more = append(more, fmt.Sprintf("%d %s", grown.by, grown.what))
			}
		}
		if len(more) > 0 {
			return fmt.Errorf("%s has, after %d starts, %s more", c.Name, starts, strings.Join(more, ", "))
		}
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
	w.t.Logf("%s, before and after %d starts: %+v, %+v", c.Name, starts, old, now)
}

// mostWritten lists, for each VMI and each pod that components wrote more often than others of its kind, these writes in their order.
func mostWritten(all []simulation.Write) (lines []string) {
	type object struct{ resource, name string }
	writes, least := map[object][]string{}, map[string]int{}
	for _, one := range all {
		_, resource, _ := strings.Cut(one.What, " ")
		resource, _, _ = strings.Cut(resource, "/")
		if o := (object{resource, one.Name}); one.Component() && one.OfInstance() && one.Name != "" {
			writes[o] = append(writes[o], fmt.Sprintf("%s %s: %s", one.At.Format(time.StampMilli), one.User, one.What))
		}
	}
	for o, of := range writes {
		if n, ok := least[o.resource]; !ok || len(of) < n {
			least[o.resource] = len(of)
		}
	}
	for o, of := range writes {
		if len(of) > least[o.resource] {
			lines = append(lines, fmt.Sprintf("%s %s: %s", o.resource, o.name, strings.Join(of, ", ")))
		}
	}
	slices.Sort(lines)
	return lines
}

// fills runs as many guests as the node takes, and counts what is written.
func (w *world) fills() {
	w.t.Helper()
	_, err := w.Audit.Next()
	w.must(err)
	w.together(full, func(i int) error { return w.starts(fmt.Sprintf("full-%d", i)) })
	time.Sleep(5 * time.Second) // for what is written later
	written, err := w.Audit.Next()
	w.must(err)
	counts := simulation.Count(written)
	for _, user := range slices.Sorted(maps.Keys(counts)) {
		w.t.Logf("%d starts, written by %s: %v", full, user, counts[user])
	}
	instances, all := 0, 0
	for _, one := range written {
		if one.Component() {
			all++
		}
		if one.Component() && one.OfInstance() {
			instances++
		}
	}
	w.t.Logf("a start is %.1f writes to the VMI and its pod, %.1f with all others", float64(instances)/full, float64(all)/full)
	if instances > full*writesPerStart || all > full*allWritesPerStart {
		w.t.Errorf("want at most %d, and %d", writesPerStart, allWritesPerStart)
		w.t.Logf("the VMIs and pods that were written more often than others:\n%s", strings.Join(mostWritten(written), "\n"))
	}

	time.Sleep(time.Minute)
	written, err = w.Audit.Next()
	w.must(err)
	leases := 0
	for _, one := range written {
		switch {
		case one.Component() && one.Of("leases"):
			leases++
		case one.Component() || one.OfInstance():
			w.t.Errorf("while %d guests ran for a minute, there was written: %+v", full, one)
		}
	}
	if leases > 2 {
		w.t.Errorf("Leases were written %d times in a minute; want once, however many guests there are", leases)
	}
	for _, c := range w.components {
		if u, err := c.Use(); err != nil {
			w.t.Error(err)
		} else {
			w.t.Logf("%s with %d guests: %+v", c.Name, full, u)
		}
	}
	w.must(w.Client.DeleteAllOf(context.Background(), &v1.VirtualMachineInstance{}, client.InNamespace("default")))
	w.must(await("end of all", func() error {
		var left v1.VirtualMachineInstanceList
		if err := w.Client.List(context.Background(), &left); err != nil || len(left.Items) > 0 {
			return fmt.Errorf("%d VMIs are left (%v)", len(left.Items), err)
		}
		return nil
	}))
}
