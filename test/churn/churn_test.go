//go:build long

// Package churn has virt-controller and virt-handler, as they are shipped, start
// and end VMs by the thousand, on a node that is made up: what costs time and
// memory on a real one, images, containers and QEMU, is left out. What they do
// to an API server and to network namespaces is real.
package churn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
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

// writesPerStart bounds what is written for a VM by its user, virt-controller and
// virt-handler, events among it. The scheduler and the kubelet write as for any pod.
const writesPerStart = 10

type world struct {
	t          *testing.T
	client     client.Client
	user       *door
	node       *node
	nodeDoor   *door
	components []*component
}

func newWorld(t *testing.T) *world {
	folder := build(t)
	server, token := newPlane(t)
	account := func(name string, extra map[string][]string) *door {
		config := server.As("system:serviceaccount:kubevirt:"+name, "system:serviceaccounts", "system:serviceaccounts:kubevirt")
		config.Impersonate.Extra = extra
		return openDoor(t, config)
	}
	w := &world{t: t, user: openDoor(t, rest.CopyConfig(server.Config)), nodeDoor: openDoor(t, rest.CopyConfig(server.Config))}
	objects := runtime.NewScheme()
	err := errors.Join(scheme.AddToScheme(objects), v1.AddToScheme(objects))
	if err == nil {
		w.client, err = client.New(w.user.config(), client.Options{Scheme: objects})
	}
	if err == nil {
		err = w.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	}
	if err != nil {
		t.Fatal(err)
	}
	w.node = newNode(t, w.nodeDoor)
	w.components = []*component{
		start(t, folder+"/virt-controller", account("virt-controller", nil), token, "--launcher-image=launcher"),
		start(t, folder+"/virt-handler", account("virt-handler", map[string][]string{"authentication.kubernetes.io/node-name": {nodeName}}), token,
			"--node-name="+nodeName, "--accelerator=tcg", "--kubelet-root="+w.node.root, "--run-dir="+t.TempDir(), "--bind-address="+freeAddress(t)),
	}
	return w
}

// tiny is a VMI that needs of a node what most do: an image and a network.
func tiny() v1.VirtualMachineInstanceSpec {
	return v1.VirtualMachineInstanceSpec{
		Domain: v1.DomainSpec{
			Memory: &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))},
			Devices: v1.Devices{
				Disks:      []v1.Disk{{Name: "root", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}},
				Interfaces: []v1.Interface{{Name: "default", Masquerade: &v1.InterfaceMasquerade{}}},
			},
		},
		Networks: []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}},
		Volumes:  []v1.Volume{{Name: "root", ContainerDisk: &v1.ContainerDiskSource{Image: "image"}}},
	}
}

// await asks until the answer is nil.
func await(what string, ask func() error) error {
	if err := poll(3*time.Minute, ask); err != nil {
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
	vmi.Spec = tiny()
	if err := w.client.Create(w.t.Context(), vmi); err != nil {
		return err
	}
	_, err := w.runs(name, "")
	return err
}

// runs waits until the VMI of the name runs, and is not the one that was before.
func (w *world) runs(name string, before types.UID) (uid types.UID, err error) {
	err = await("VMI "+name, func() error {
		vmi := named(name)
		if err := w.client.Get(w.t.Context(), client.ObjectKeyFromObject(vmi), vmi); err != nil {
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
		err := w.client.Get(w.t.Context(), client.ObjectKeyFromObject(object), object)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there (%v)", err)
	})
}

func (w *world) delete(object client.Object) error {
	if err := w.client.Delete(w.t.Context(), object); err != nil {
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
	vm.Spec.Template = v1.VirtualMachineInstanceTemplateSpec{Spec: tiny()}
	if err := w.client.Create(w.t.Context(), vm); err != nil {
		return err
	}
	strategy := func(s v1.VirtualMachineRunStrategy) error {
		return w.client.Patch(w.t.Context(), vm, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"runStrategy":%q}}`, s)))
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

// TestChurn: a thousand starts leave nothing in virt-controller and virt-handler;
// a start costs a few writes, and guests that nobody asks anything of, as many as
// a node takes, cost none.
func TestChurn(t *testing.T) {
	w := newWorld(t)
	// What is made on first use, connections and caches, has been made after this.
	w.churn("first", 2*side)
	before := map[*component]use{}
	for _, c := range w.components {
		w.must(await("metrics of "+c.name, func() (err error) {
			before[c], err = c.use()
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

func (w *world) holdsAsBefore(c *component, old use) {
	w.t.Helper()
	var now use
	err := poll(60*time.Second, func() (err error) {
		time.Sleep(leftAlone)
		if now, err = c.use(); err != nil {
			return err
		}
		var more []string
		for _, grown := range []struct {
			what     string
			by, most int
		}{{"goroutines", now.goroutines - old.goroutines, moreGoroutines}, {"open files", now.files - old.files, moreFiles}, {"KiB RSS", now.rss - old.rss, moreRSS}} {
			if grown.by > grown.most {
				more = append(more, fmt.Sprintf("%d %s", grown.by, grown.what))
			}
		}
		if len(more) > 0 {
			return fmt.Errorf("%s has, after %d starts, %s more", c.name, starts, strings.Join(more, ", "))
		}
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
	w.t.Logf("%s, before and after %d starts: %+v, %+v", c.name, starts, old, now)
}

// fills runs as many guests as the node takes, and counts what is written.
func (w *world) fills() {
	w.t.Helper()
	doors := map[string]*door{"its user": w.user, "the node": w.nodeDoor}
	for _, c := range w.components {
		doors[c.name] = c.door
	}
	counts := func() map[string]map[string]int {
		all := map[string]map[string]int{}
		for name, d := range doors {
			all[name] = d.since(nil)
		}
		return all
	}
	before := counts()
	w.together(full, func(i int) error { return w.starts(fmt.Sprintf("full-%d", i)) })
	time.Sleep(5 * time.Second) // for what is written later
	all := 0
	for _, name := range slices.Sorted(maps.Keys(doors)) {
		written := doors[name].since(before[name])
		w.t.Logf("%d starts, written by %s: %v", full, name, written)
		if name != "the node" {
			all += sum(written)
		}
	}
	w.t.Logf("a start is %.1f writes", float64(all)/full)
	if all > full*writesPerStart {
		w.t.Errorf("a start is %.1f writes, want at most %d", float64(all)/full, writesPerStart)
	}

	before = counts()
	time.Sleep(time.Minute)
	for name, d := range doors {
		written := d.since(before[name])
		if name == "virt-handler" && written["PATCH leases"] <= 2 {
			delete(written, "PATCH leases") // once a minute, however many guests there are
		}
		if len(written) > 0 {
			w.t.Errorf("while %d guests ran for a minute, %s wrote %v", full, name, written)
		}
	}
	for _, c := range w.components {
		if u, err := c.use(); err != nil {
			w.t.Error(err)
		} else {
			w.t.Logf("%s with %d guests: %+v", c.name, full, u)
		}
	}
	w.must(w.client.DeleteAllOf(context.Background(), &v1.VirtualMachineInstance{}, client.InNamespace("default")))
	w.must(await("end of all", func() error {
		var left v1.VirtualMachineInstanceList
		if err := w.client.List(context.Background(), &left); err != nil || len(left.Items) > 0 {
			return fmt.Errorf("%d VMIs are left (%v)", len(left.Items), err)
		}
		return nil
	}))
}
