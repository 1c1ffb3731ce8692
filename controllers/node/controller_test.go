package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
)

// TestVMIWithoutItsLauncherIsNotReady: a running VMI whose launcher does not dial, to a
// virt-handler that was just started say, is not ready after a while.
func TestVMIWithoutItsLauncherIsNotReady(t *testing.T) { synctest.Test(t, launcherGone) }

func launcherGone(t *testing.T) {
	running := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "u"},
		Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "here", ActivePods: map[types.UID]string{"p": "here"}}}
	starting, elsewhere := running.DeepCopy(), running.DeepCopy()
	starting.Name, starting.Status.Phase = "starting", v1.Scheduled
	elsewhere.Name, elsewhere.Status.NodeName = "elsewhere", "there"
	recorder := events.NewFakeRecorder(10)
	r := &Reconciler{
		Client: fake.NewClientBuilder().WithScheme(nodetest.Scheme(t)).WithObjects(running, starting, elsewhere).WithStatusSubresource(running).Build(),
		Events: recorder, Clock: clock.RealClock{}, NodeName: "here",
		Sessions: sessions.NewSet(testr.New(t), func(types.NamespacedName) {}),
	}
	step := func(name string) (time.Duration, *v1.VirtualMachineInstanceCondition) {
		t.Helper()
		key := types.NamespacedName{Namespace: "ns", Name: name}
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
		object := &v1.VirtualMachineInstance{}
		if err == nil {
			err = r.Client.Get(t.Context(), client.ObjectKey(key), object)
		}
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter, object.Status.Condition(v1.ConditionReady)
	}
	if wait, ready := step("guest"); wait <= 0 || wait > gonePatience || ready != nil {
		t.Errorf("at first: wait %s, Ready %+v", wait, ready)
	}
	time.Sleep(gonePatience)
	for range 2 { // the second time changes nothing
		if wait, ready := step("guest"); wait != 0 || ready == nil || ready.Reason != "LauncherNotResponding" {
			t.Errorf("after a while: wait %s, Ready %+v", wait, ready)
		}
	}
	if n := len(recorder.Events); n != 1 {
		t.Errorf("%d events", n)
	}
	for _, name := range []string{"starting", "elsewhere"} {
		if wait, ready := step(name); wait != 0 || ready != nil {
			t.Errorf("%s: wait %s, Ready %+v", name, wait, ready)
		}
	}
}
