package vm

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// slow is how long the API server of TestNeighbourStartsBesideVMsThatCannot takes for a request.
const slow = 20 * time.Millisecond

// TestNeighbourStartsBesideVMsThatCannot: a tenant's 40 VMs whose many disks cannot be made do not keep a neighbour's
// VM from its VMI, on an API server that takes its time.
func TestNeighbourStartsBesideVMsThatCannot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var greedy []client.Object
		for i := range 40 {
			vm := withManyDisks(`{"storage":{},"source":{"blank":{}}}`)
			vm.Namespace, vm.Name, vm.UID = "greedy", fmt.Sprintf("vm-%d", i), types.UID(fmt.Sprint(i))
			greedy = append(greedy, vm)
		}
		f := newFaulty(t, interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				time.Sleep(slow)
				if o.GetNamespace() == "greedy" {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "datavolumes"}, o.GetName(),
						errors.New("exceeded quota"))
				}
				return c.Create(ctx, o, opts...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch,
				opts ...client.SubResourcePatchOption) error {
				time.Sleep(slow)
				return c.SubResource(sub).Patch(ctx, o, patch, opts...)
			},
		}, greedy...)
		f.Clock, f.Events = clock.RealClock{}, &events.FakeRecorder{}
		f.Live = interceptor.NewClient(f.store, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch,
			key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			time.Sleep(slow)
			return c.Get(ctx, key, o, opts...)
		}})
		queue, end := f.controls(t)
		for _, vm := range greedy {
			queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(vm)})
		}
		for _, after := range []time.Duration{time.Second, 10 * time.Second, 20 * time.Second} {
			time.Sleep(after)
			neighbour := valid(v1.RunStrategyAlways)
			neighbour.Namespace, neighbour.Name = "neighbour", fmt.Sprintf("vm-%.0f", after.Seconds())
			if err := f.store.Create(t.Context(), neighbour); err != nil {
				t.Fatal(err)
			}
			begin, key := time.Now(), client.ObjectKeyFromObject(neighbour)
			for queue.Add(reconcile.Request{NamespacedName: key}); f.store.Get(t.Context(), key, &v1.VirtualMachineInstance{}) != nil &&
				time.Since(begin) < time.Hour; {
				time.Sleep(slow)
			}
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("%s later, a neighbour's VM has its VMI after %s", after, took)
			}
		}
		if c := f.vmOf("greedy", "vm-7").Status.Condition(v1.ConditionFailure); c == nil ||
			c.Reason != v1.ReasonFailedDataVolumeCreate {
			t.Errorf("a VM that cannot start says %+v", c)
		}
		end()
	})
}

func (f *faulty) vmOf(namespace, name string) *v1.VirtualMachine {
	f.t.Helper()
	vm := &v1.VirtualMachine{}
	if err := f.store.Get(f.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, vm); err != nil {
		f.t.Fatal(err)
	}
	return vm
}

// controls starts a controller with the reconciler, as Setup does. It returns the controller's queue, and a
// function that ends the controller.
func (f *faulty) controls(t *testing.T) (workqueue.TypedRateLimitingInterface[reconcile.Request], func()) {
	t.Helper()
	options := kit.Options(workers)
	options.SkipNameValidation = ptr.To(true)
	options.Reconciler = kit.Patient(f.Reconciler, f.Clock)
	c, err := controller.NewUnmanaged("vms", options)
	if err != nil {
		t.Fatal(err)
	}
	queue := make(chan workqueue.TypedRateLimitingInterface[reconcile.Request], 1)
	err = c.Watch(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue <- q
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	return <-queue, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
