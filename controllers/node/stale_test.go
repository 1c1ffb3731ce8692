package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocks "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestGuestWithoutVMIEndsAtOnce: a guest whose VMI has ended or is gone ends at once. No other guest does: not one
// whose VMI is not in the cache yet, nor one of which the API server says nothing.
func TestGuestWithoutVMIEndsAtOnce(t *testing.T) {
	end := []string{`grace {"seconds":0}`, "shutdown null"}
	for name, c := range map[string]struct {
		vmi    func(*v1.VirtualMachineInstance) // nil: there is none
		cached bool
		age    time.Duration
		state  control.State
		live   error
		want   []string
		again  time.Duration
	}{
		"the VMI is gone":                 {age: staleAfter, want: end, again: staleAfter},
		"the VMI is gone, just connected": {age: time.Second, again: staleAfter - time.Second},
		"the VMI is gone, the guest too":  {age: staleAfter, state: control.StateExited},
		"a new VMI of the name":           {vmi: func(vmi *v1.VirtualMachineInstance) { vmi.UID = "another" }, age: time.Hour, want: end, again: staleAfter},
		"the VMI has ended":               {vmi: func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Failed }, cached: true, age: time.Hour, want: end, again: staleAfter},
		"a new VMI, in the cache":         {vmi: func(vmi *v1.VirtualMachineInstance) { vmi.UID = "another" }, cached: true, age: time.Hour, want: end, again: staleAfter},
		"the VMI is there":                {vmi: func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Pending }, cached: true, age: time.Hour},
		"the VMI is not in the cache":     {vmi: func(*v1.VirtualMachineInstance) {}, age: time.Hour, again: staleAfter},
		"the API server does not answer":  {live: errors.New("the API server is away"), age: time.Hour, again: staleAfter},
		"another server answers":          {live: apierrors.NewGenericServerResponse(404, "get", v1.GroupVersion.WithResource("virtualmachineinstances").GroupResource(), "vm", "404 page not found", 0, true), age: time.Hour, again: staleAfter},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocks.NewFakeClock(time.Now())
			vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "u1"},
				Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "here"}}
			all := fake.NewClientBuilder().WithScheme(nodetest.Scheme(t)).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, inner client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if c.live != nil {
						return c.live
					}
					return inner.Get(ctx, key, o, opts...)
				}})
			cache := fake.NewClientBuilder().WithScheme(nodetest.Scheme(t))
			if c.vmi != nil {
				c.vmi(vmi)
				all = all.WithObjects(vmi)
			}
			if c.cached {
				cache = cache.WithObjects(vmi)
			}
			set := sessions.NewSet(testr.New(t), func(types.NamespacedName) {})
			asked := make(chan string, 10)
			launcher := answering(t, asked)
			launcher.Slot, launcher.Since = "s", clock.Now().Add(-c.age)
			launcher.Pod = types.NamespacedName{Namespace: "ns", Name: v1.LauncherPodName("vm", "u1", v1.FirstPod)}
			launcher.Commands = control.KnownCommands()
			state := c.state
			if state == "" {
				state = control.StateRunning
			}
			launcher.SetState(control.StateReport{State: state})
			if !set.Add(launcher) {
				t.Fatal("the session is not taken")
			}
			if c.cached {
				cache = cache.WithStatusSubresource(vmi)
			}
			r := &Reconciler{Client: cache.Build(), Live: all.Build(), Clock: clock, NodeName: "here", Sessions: set}
			result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "vm"}})
			if err != nil || result.RequeueAfter != c.again {
				t.Errorf("come again after %v, want %v; %v", result.RequeueAfter, c.again, err)
			}
			// Whatever the launcher reports meanwhile, nobody is asked more often.
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "vm"}}); err != nil {
				t.Error(err)
			}
			var got []string
			for len(asked) > 0 {
				got = append(got, <-asked)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("the launcher was asked for %q, want %q", got, c.want)
			}
		})
	}
}

// answering returns the session of a launcher that says yes, and tells what it was asked.
func answering(t *testing.T, asked chan<- string) *sessions.Session {
	t.Helper()
	ours, theirs := testkit.SocketPair(t)
	s := &sessions.Session{Client: control.NewClient(control.NewConn(ours), control.Limits{}, func(m *control.Message) { m.Close() })}
	launcher, done := control.NewConn(theirs), make(chan struct{})
	go func() {
		defer close(done)
		for job := 1; ; {
			m, err := launcher.Receive()
			if err != nil {
				return
			}
			asked <- m.Execute + " " + string(m.Data)
			answer := "{}"
			if m.Execute == control.CommandBecome {
				answer = fmt.Sprintf(`{"id":%d}`, job)
				job++
			}
			if launcher.Send(control.Message{ID: m.ID, Return: json.RawMessage(answer)}) != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { s.Client.Close(); launcher.Close(); <-done })
	return s
}
