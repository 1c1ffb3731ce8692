package node

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func TestGuestWaitsForOthersOnTheirWay(t *testing.T) {
	now := time.Unix(100_000, 0)
	made := func(name string, age time.Duration, phase v1.VirtualMachineInstancePhase, edits ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
		o := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-age))},
			Status: v1.VirtualMachineInstanceStatus{NodeName: "n1", Phase: phase, ActivePods: map[types.UID]string{"p": "n1"}}}
		for _, edit := range edits {
			edit(o)
		}
		return o
	}
	tests := []struct {
		name   string
		other  *v1.VirtualMachineInstance
		waited time.Duration
		want   time.Duration
	}{
		{"alone", nil, 0, 0},
		{"another is bound", made("other", time.Second, v1.Scheduling), 0, gatherLook},
		{"another has its containers", made("other", time.Second, v1.Scheduled), time.Second, gatherLook},
		{"for long enough", made("other", time.Second, v1.Scheduling), gatherMost, 0},
		{"for almost long enough", made("other", time.Second, v1.Scheduling), gatherMost - 300*time.Millisecond, 300 * time.Millisecond},
		{"another's QEMU is not up", made("preparing", time.Second, v1.Scheduled), 0, gatherLook},
		{"another is held too", made("held", time.Second, v1.Scheduled), 0, 0},
		{"another runs", made("other", time.Second, v1.Running), 0, 0},
		{"another has ended", made("other", time.Second, v1.Failed), 0, 0},
		{"another has not come for long", made("other", gatherYoung+time.Second, v1.Scheduling), 0, 0},
		{"on another node", made("other", time.Second, v1.Scheduling, func(o *v1.VirtualMachineInstance) { o.Status.NodeName = "n2" }), 0, 0},
		{"in another namespace", made("other", time.Second, v1.Scheduling, func(o *v1.VirtualMachineInstance) { o.Namespace = "foreign" }), 0, 0},
		{"another is deleted", made("other", time.Second, v1.Scheduling, func(o *v1.VirtualMachineInstance) {
			o.DeletionTimestamp, o.Finalizers = &metav1.Time{Time: now}, []string{"x"}
		}), 0, 0},
	}
	for _, tt := range tests {
		builder := fake.NewClientBuilder().WithScheme(nodetest.Scheme(t)).WithObjects(made("own", time.Second, v1.Scheduled))
		if tt.other != nil {
			builder = builder.WithObjects(tt.other)
		}
		pod := func(name string) types.NamespacedName {
			return types.NamespacedName{Namespace: "ns", Name: v1.LauncherPodName(name, types.UID(name), v1.FirstPod)}
		}
		own := reporting(pod("own"), control.StateReport{})
		own.Since = now.Add(-tt.waited)
		set := connected(t, own, reporting(pod("preparing"), control.StateReport{State: control.StatePreparing}), reporting(pod("held"), control.StateReport{State: control.StatePaused}))
		r := &Reconciler{Client: builder.Build(), Clock: clocktesting.NewFakePassiveClock(now), NodeName: "n1", Sessions: set}
		if got, err := r.gather(context.Background(), own); got != tt.want || err != nil {
			t.Errorf("%s: waits %v, %v; want %v", tt.name, got, err, tt.want)
		}
	}
}

// TestWaitingGuestsAreLookedAtInTime: guests that wait are looked at as soon as nobody comes any more in their
// namespace, and no sooner; those of other namespaces are not.
func TestWaitingGuestsAreLookedAtInTime(t *testing.T) {
	now := time.Unix(100_000, 0)
	coming := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "coming", UID: "coming", CreationTimestamp: metav1.NewTime(now)},
		Status: v1.VirtualMachineInstanceStatus{NodeName: "n1", Phase: v1.Scheduled, ActivePods: map[types.UID]string{"p": "n1"}}}
	preparing := reporting(types.NamespacedName{Namespace: "ns", Name: v1.LauncherPodName("coming", "coming", v1.FirstPod)}, control.StateReport{State: control.StatePreparing})
	set := connected(t, preparing)
	c := fake.NewClientBuilder().WithScheme(nodetest.Scheme(t)).WithObjects(coming).Build()
	r := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(now), NodeName: "n1", Sessions: set, Starter: newStarter(), woken: make(chan event.GenericEvent, 10)}
	for _, name := range []types.NamespacedName{{Namespace: "ns", Name: "a"}, {Namespace: "ns", Name: "b"}, {Namespace: "ns", Name: "gone"}, {Namespace: "foreign", Name: "c"}} {
		r.gathering.note(name, true)
	}
	r.gathering.note(types.NamespacedName{Namespace: "ns", Name: "gone"}, false)
	r.wake(t.Context(), types.NamespacedName{Namespace: "ns", Name: "away"})
	if len(r.woken) > 0 {
		t.Errorf("%d are woken while another's QEMU is not up", len(r.woken))
	}
	preparing.SetState(control.StateReport{State: control.StatePaused})
	// The reconciliation of the last to come wakes the others, once.
	for range 2 {
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "away"}}); err != nil {
			t.Fatal(err)
		}
	}
	close(r.woken)
	var got []string
	for woken := range r.woken {
		got = append(got, client.ObjectKeyFromObject(woken.Object).String())
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"ns/a", "ns/b"}) {
		t.Errorf("woken are %v", got)
	}
}

func TestGuestThatHasWaitedStartsDespiteErrors(t *testing.T) {
	down := errors.New("down")
	c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(nodetest.Scheme(t)).Build(), interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return down }})
	now := time.Now()
	r := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(now), NodeName: "n1", Sessions: sessions.NewSet(testr.New(t), func(types.NamespacedName) {})}
	if _, err := r.gather(context.Background(), &sessions.Session{Since: now}); !errors.Is(err, down) {
		t.Error(err)
	}
	if wait, err := r.gather(context.Background(), &sessions.Session{Since: now.Add(-gatherMost)}); wait != 0 || err != nil {
		t.Errorf("who has waited is held up: %v, %v", wait, err)
	}
}

// TestGuestIsHeldWhileAnotherIsOnItsWay: while another guest of its namespace is on its way, a guest's QEMU is
// started and its CPUs are stopped. The CPUs run once the other guest has come. A guest
// that its user wants paused stays paused.
func TestGuestIsHeldWhileAnotherIsOnItsWay(t *testing.T) {
	n, netns, now := newNode(t), nodetest.PodNetwork(t), time.Now()
	launcher := n.Dial(t, "vm1")
	launcher.Send(control.EventHello, nodetest.Hello(), nodetest.NetNSFile(t, netns))
	n.Await(t)
	s := n.sessions.Get(nodetest.Pod("a"))
	other := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other", UID: "other", CreationTimestamp: metav1.NewTime(now)},
		Status: v1.VirtualMachineInstanceStatus{NodeName: "n1", Phase: v1.Scheduling}}
	c := fake.NewClientBuilder().WithScheme(nodetest.Scheme(t)).WithObjects(other).Build()
	r := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(now), NodeName: "n1", Starter: newStarter(), Sessions: n.sessions}
	guest := nodetest.Demanding()
	guest.Spec.StartStrategy = ""
	// advance returns what the launcher was asked for last, if for anything.
	advance := func(until ...string) (wait time.Duration, asked *control.Message) {
		t.Helper()
		done := make(chan error, 1)
		go func() {
			w := world{vmi: guest, launcher: s, state: s.State()}
			r.lookAround(t.Context(), &w)
			next := decide(w)
			wait = next.after
			done <- errors.Join(next.failure, r.begin(t.Context(), w, next.begin))
		}()
		if len(until) > 0 {
			asked = launcher.AnswerUntil(until...)
			t.Cleanup(func() { asked.Close() })
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if waits := len(r.gathering.in(guest.Namespace)) > 0; waits != (wait > 0) {
			t.Errorf("noted that it waits: %v, looked at again after %v", waits, wait)
		}
		return wait, asked
	}
	says := func(state control.StateReport) {
		t.Helper()
		launcher.Send(control.EventState, state)
		n.Await(t)
	}
	var request control.StartRequest
	wait, asked := advance(control.CommandStart)
	if err := control.Decode(asked.Data, &request); err != nil || wait != gatherLook || !request.Paused {
		t.Errorf("started with paused %v, looked at again after %v: %v", request.Paused, wait, err)
	}
	says(control.StateReport{State: control.StatePreparing})
	if wait, _ := advance(); wait != 0 {
		t.Errorf("looked at again after %v while QEMU is on its way", wait)
	}
	says(control.StateReport{State: control.StatePaused, Pause: &control.Pause{Status: control.PausedByUser}})
	if wait, _ := advance(); wait != gatherLook {
		t.Errorf("held, looked at again after %v", wait)
	}
	// Nobody is told that it runs, or that its user paused it; nor when it is deleted, or
	// cannot be let go.
	for _, deleted := range []*metav1.Time{nil, {Time: now}} {
		said := guest.DeepCopy()
		said.DeletionTimestamp = deleted
		state := s.State()
		state.Machine = &qemuargs.Machine{Type: "pc-q35-11.1"}
		report(said, state, nil, metav1.NewTime(now))
		if !reflect.DeepEqual(said.Status, guest.Status) {
			t.Errorf("deleted %v: the status says %+v", deleted, said.Status)
		}
	}
	if err := c.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	guest.Spec.StartStrategy = v1.StartStrategyPaused
	if wait, _ := advance(); wait != 0 {
		t.Errorf("what is to be paused is looked at again after %v", wait)
	}
	guest.Spec.StartStrategy = ""
	if wait, asked := advance(control.CommandUnpause); wait != 0 || asked == nil {
		t.Errorf("let go, looked at again after %v", wait)
	}
	// Paused later, by its user.
	says(control.StateReport{State: control.StatePaused, StartedAt: &now, Pause: &control.Pause{Status: control.PausedByUser}})
	if wait, _ := advance(); wait != 0 {
		t.Errorf("paused by its user, looked at again after %v", wait)
	}
}

// TestGuestIsNotedBeforeOthersAreLookedAt: a guest that could run is noted while it looks at the others: one of them
// that changes meanwhile wakes it. A guest does not wake itself.
func TestGuestIsNotedBeforeOthersAreLookedAt(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm"}}
	launcher := &sessions.Session{Pod: types.NamespacedName{Namespace: "ns"}, Since: time.Unix(1000, 0)}
	w := world{vmi: vmi, launcher: launcher, state: control.StateReport{State: control.StateWaiting}}
	r := &Reconciler{Clock: clocktesting.NewFakePassiveClock(launcher.Since), woken: make(chan event.GenericEvent, 1)}
	var noted []types.NamespacedName
	r.Client = fake.NewClientBuilder().WithScheme(nodetest.Scheme(t)).WithInterceptorFuncs(interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			noted = r.gathering.in("ns")
			return nil
		}}).Build()
	if r.lookAround(t.Context(), &w); len(noted) != 1 || noted[0] != client.ObjectKeyFromObject(vmi) {
		t.Fatalf("noted are %v", noted)
	}
	r.gathering.note(noted[0], true)
	if r.wake(t.Context(), noted[0]); len(r.woken) > 0 || len(r.gathering.in("ns")) > 0 {
		t.Error("a guest wakes itself")
	}
}
