package vm

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// faulty is a Reconciler on an API server that a test can make fail.
type faulty struct {
	*Reconciler
	t     *testing.T
	store client.WithWatch
}

func newFaulty(t *testing.T, faults interceptor.Funcs, objects ...client.Object) *faulty {
	t.Helper()
	store := fake.NewClientBuilder().WithScheme(newScheme(t)).
		WithStatusSubresource(&v1.VirtualMachine{}, &v1.VirtualMachineInstance{}).
		WithObjects(objects...).Build()
	c := interceptor.NewClient(store, faults)
	return &faulty{t: t, store: store, Reconciler: &Reconciler{Client: c, Live: store, Events: events.NewFakeRecorder(100),
		Clock: clocktesting.NewFakePassiveClock(now), Jitter: func() float64 { return 0 },
		Cluster: func(context.Context) (*v1.KubeVirtConfiguration, error) { return &v1.KubeVirtConfiguration{}, nil }}}
}

// step reconciles once and returns how long the next attempt is put off.
func (f *faulty) step() (time.Duration, error) {
	f.t.Helper()
	result, err := f.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "vm"}})
	return result.RequeueAfter, err
}

func (f *faulty) vmi() *v1.VirtualMachineInstance {
	f.t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	err := f.store.Get(ctx, client.ObjectKey{Namespace: "ns", Name: "vm"}, vmi)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return vmi
}

func (f *faulty) vm() *v1.VirtualMachine {
	f.t.Helper()
	vm := &v1.VirtualMachine{}
	if err := f.store.Get(ctx, client.ObjectKey{Namespace: "ns", Name: "vm"}, vm); err != nil {
		f.t.Fatal(err)
	}
	return vm
}

// valid returns a VM that can be started.
func valid(strategy v1.VirtualMachineRunStrategy) *v1.VirtualMachine {
	vm := machine(strategy)
	vm.UID = "5d307ca9-b3ef-428c-8861-06e72d69f223"
	vm.Finalizers = []string{v1.VMFinalizer}
	vm.Spec.Template.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))}
	return vm
}

var vmis = schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachineinstances"}

// TestRefusedCreateIsSaidOnceAndRetried: the controller says once that the VMI was refused, and tries again in
// time.
func TestRefusedCreateIsSaidOnceAndRetried(t *testing.T) {
	refuse := true
	f := newFaulty(t, interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if refuse {
				return apierrors.NewForbidden(vmis, o.GetName(), errors.New("quota"))
			}
			return w.Create(ctx, o, opts...)
		},
	}, valid(v1.RunStrategyAlways))
	for range 2 {
		if after, err := f.step(); err != nil || after < 5*time.Second || after > 5*time.Minute {
			t.Errorf("after %s (%v)", after, err)
		}
	}
	if c := f.vm().Status.Condition(v1.ConditionFailure); c == nil || c.Reason != "FailedCreate" {
		t.Errorf("condition %+v", c)
	}
	if n := len(f.Events.(*events.FakeRecorder).Events); n != 1 {
		t.Errorf("%d events", n)
	}
	refuse = false
	if _, err := f.step(); err != nil || f.vmi() == nil || f.vm().Status.Condition(v1.ConditionFailure) != nil {
		t.Errorf("%v, VMI %v", err, f.vmi())
	}
}

// TestGuestThatEndedUnseenIsNotStartedAgain: a guest that ends before the controller looks again was started.
// So the request for its start starts no other.
func TestGuestThatEndedUnseenIsNotStartedAgain(t *testing.T) {
	for _, strategy := range []v1.VirtualMachineRunStrategy{v1.RunStrategyRerunOnFailure, v1.RunStrategyManual} {
		vm := valid(strategy)
		vm.Status.RunStrategy = strategy
		vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{toStart()}
		f := newFaulty(t, interceptor.Funcs{}, vm)
		if _, err := f.step(); err != nil {
			t.Fatal(err)
		}
		vmi := f.vmi()
		if vmi == nil {
			t.Fatalf("%s: nothing was started", strategy)
		}
		vmi.Status.Phase = v1.Succeeded
		if err := f.store.Status().Update(ctx, vmi); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if _, err := f.step(); err != nil {
				t.Fatal(err)
			}
		}
		if vmi := f.vmi(); vmi != nil && vmi.Status.Phase != v1.Succeeded {
			t.Errorf("%s: the guest was started again", strategy)
		}
	}
}

// TestNothingIsStartedFromAStaleVM: a VM as the cache had it before a change starts nothing.
func TestNothingIsStartedFromAStaleVM(t *testing.T) {
	old := valid(v1.RunStrategyRerunOnFailure)
	old.Status.RunStrategy = ""
	f := newFaulty(t, interceptor.Funcs{}, old)
	stale := f.vm()
	// It has run since, and succeeded.
	ran := f.vm()
	ran.Status.RunStrategy = v1.RunStrategyRerunOnFailure
	if err := f.store.Status().Update(ctx, ran); err != nil {
		t.Fatal(err)
	}
	f.Client = interceptor.NewClient(f.store, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if vm, ok := o.(*v1.VirtualMachine); ok {
				stale.DeepCopyInto(vm)
				return nil
			}
			return w.Get(ctx, key, o, opts...)
		},
	})
	if after, err := f.step(); err != nil || after == 0 || f.vmi() != nil {
		t.Errorf("after %s (%v), VMI %v", after, err, f.vmi())
	}
}

// TestReplacedVMIIsNotDeleted: a VMI that has replaced the one in the cache is not deleted.
func TestReplacedVMIIsNotDeleted(t *testing.T) {
	vm := valid(v1.RunStrategyAlways)
	old := vm.Instance(&v1.KubeVirtConfiguration{}, false)
	old.UID, old.ResourceVersion = "old", "1"
	old.Status = run(v1.Running, v1.Failed).Status
	present := vm.Instance(&v1.KubeVirtConfiguration{}, false)
	present.UID = "new"
	f := newFaulty(t, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if vmi, ok := o.(*v1.VirtualMachineInstance); ok {
				old.DeepCopyInto(vmi)
				return nil
			}
			return w.Get(ctx, key, o, opts...)
		},
	}, vm, present)
	if _, err := f.step(); err != nil {
		t.Error(err)
	}
	if now := f.vmi(); now == nil || now.UID != "new" || now.DeletionTimestamp != nil {
		t.Errorf("VMI %+v", now)
	}
}

// TestStaleCacheOfAnOrphanedVMI: a VMI stays that the garbage collector has let go before this controller
// looked, though the cache is behind and has it as the VM's.
func TestStaleCacheOfAnOrphanedVMI(t *testing.T) {
	vm := valid(v1.RunStrategyAlways)
	vm.DeletionTimestamp = ptr.To(metav1.NewTime(now))
	cached := vm.Instance(&v1.KubeVirtConfiguration{}, false)
	cached.UID = thisUID
	orphan := cached.DeepCopy()
	orphan.OwnerReferences = nil
	behind := true
	f := newFaulty(t, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if vmi, ok := o.(*v1.VirtualMachineInstance); ok && behind {
				cached.DeepCopyInto(vmi)
				return nil
			}
			return w.Get(ctx, key, o, opts...)
		},
	}, vm, orphan)
	if after, err := f.step(); err != nil || after == 0 {
		t.Errorf("after %s (%v)", after, err)
	}
	behind = false
	if _, err := f.step(); err != nil {
		t.Error(err)
	}
	if f.vmi() == nil {
		t.Error("the VMI is deleted")
	}
	if err := f.store.Get(ctx, client.ObjectKeyFromObject(vm), vm); !apierrors.IsNotFound(err) {
		t.Errorf("the VM is there (%v)", err)
	}
}

// TestCrashesMakeNoSecondGuest: virt-controller is killed before any of its writes, again and again. The guest
// is made once, and a failure is not forgotten.
func TestCrashesMakeNoSecondGuest(t *testing.T) {
	killed := errors.New("killed")
	left := 0
	may := func() error {
		if left == 0 {
			return killed
		}
		left--
		return nil
	}
	creates := 0
	f := newFaulty(t, interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := may(); err != nil {
				return err
			}
			creates++
			o.SetUID("first")
			return w.Create(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := may(); err != nil {
				return err
			}
			return w.Delete(ctx, o, opts...)
		},
		SubResourcePatch: func(ctx context.Context, w client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			if err := may(); err != nil {
				return err
			}
			return w.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	}, valid(v1.RunStrategyRerunOnFailure))
	vm := f.vm()
	vm.Status.RunStrategy = ""
	if err := f.store.Status().Update(ctx, vm); err != nil {
		t.Fatal(err)
	}
	steps := func(n int) {
		for range n {
			left = 1
			_, _ = f.step() // that it was killed is no news
		}
	}
	steps(3)
	if creates != 1 || f.vmi() == nil || f.vm().Status.RunStrategy != v1.RunStrategyRerunOnFailure {
		t.Fatalf("%d created, %+v", creates, f.vm().Status)
	}
	failed := f.vmi()
	failed.Finalizers = []string{v1.VMIFinalizer}
	if err := f.store.Update(ctx, failed); err != nil {
		t.Fatal(err)
	}
	failed.Status = run(v1.Scheduling, v1.Failed).Status
	if err := f.store.Status().Update(ctx, failed); err != nil {
		t.Fatal(err)
	}
	steps(1)
	if now := f.vm().Status; f.vmi().DeletionTimestamp != nil || now.StartFailure == nil ||
		len(now.StateChangeRequests) != 1 {
		t.Fatalf("it is deleted before it is written that it failed: %+v", now)
	}
	steps(3)
	gone := f.vmi()
	if gone.DeletionTimestamp == nil {
		t.Fatal("it is not deleted")
	}
	gone.Finalizers = nil
	if err := f.store.Update(ctx, gone); err != nil {
		t.Fatal(err)
	}
	f.Clock.(*clocktesting.FakePassiveClock).SetTime(now.Add(time.Minute))
	steps(3)
	if creates != 2 || f.vmi() == nil {
		t.Errorf("%d created, %+v", creates, f.vm().Status)
	}
}

// TestWhatCannotBeReadDecidesNothing: the controller decides nothing while it cannot read a VM's VMI.
func TestWhatCannotBeReadDecidesNothing(t *testing.T) {
	down := apierrors.NewServiceUnavailable("down")
	f := newFaulty(t, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if _, ok := o.(*v1.VirtualMachineInstance); ok {
				return down
			}
			return w.Get(ctx, key, o, opts...)
		},
	}, valid(v1.RunStrategyAlways))
	if _, err := f.step(); !apierrors.IsServiceUnavailable(err) || f.vmi() != nil {
		t.Errorf("%v, VMI %v", err, f.vmi())
	}
}

// behind returns the faults of a cache that does not know any VMI yet.
func behind() interceptor.Funcs {
	return interceptor.Funcs{Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object,
		opts ...client.GetOption) error {
		if _, ok := o.(*v1.VirtualMachineInstance); ok {
			return apierrors.NewNotFound(vmis, key.Name)
		}
		return w.Get(ctx, key, o, opts...)
	}}
}

// TestDeletedVMStaysForAnUnseenVMI: a deleted VM whose VMI the cache does not know yet stays.
func TestDeletedVMStaysForAnUnseenVMI(t *testing.T) {
	vm := valid(v1.RunStrategyAlways)
	vm.DeletionTimestamp = ptr.To(metav1.NewTime(now))
	vmi := vm.Instance(&v1.KubeVirtConfiguration{}, false)
	vmi.UID = thisUID
	f := newFaulty(t, behind(), vm, vmi)
	if after, err := f.step(); err != nil || after == 0 || len(f.vm().Finalizers) != 1 {
		t.Errorf("after %s (%v), finalizers %v", after, err, f.vm().Finalizers)
	}
}

// TestRefusalInAnotherOrderIsSaidOnce: the controller says once what is invalid, in whatever order that is
// found. An event for the status that says it would have the VM reconciled at once.
func TestRefusalInAnotherOrderIsSaidOnce(t *testing.T) {
	bad := map[string]string{}
	var errs field.ErrorList
	for _, name := range strings.Split("abcdefgh", "") {
		bad[name+"!"] = "1"
		errs = append(errs, field.Invalid(field.NewPath("spec", "nodeSelector"), name+"!", "is no name"))
	}
	preference := &v1beta1.VirtualMachineClusterPreference{ObjectMeta: metav1.ObjectMeta{Name: "any", UID: otherUID}}
	size := &v1beta1.VirtualMachineClusterInstancetype{ObjectMeta: metav1.ObjectMeta{Name: "small", UID: otherUID}}
	size.Spec.CPU.Guest, size.Spec.Memory.Guest, size.Spec.NodeSelector = 1, resource.MustParse("128Mi"), bad
	for what, edit := range map[string]func(*v1.VirtualMachine){
		"template": func(vm *v1.VirtualMachine) { vm.Spec.Template.ObjectMeta.Labels = bad },
		"preference": func(vm *v1.VirtualMachine) {
			vm.Spec.Template.ObjectMeta.Labels, vm.Spec.Preference = bad, &v1.PreferenceMatcher{Name: "any"}
		},
		"conflicts": func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec = v1.VirtualMachineInstanceSpec{NodeSelector: bad}
			vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small"}
		},
		"API server": func(*v1.VirtualMachine) {},
	} {
		vm := valid(v1.RunStrategyAlways)
		edit(vm)
		writes := 0
		f := newFaulty(t, interceptor.Funcs{
			Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				if _, ok := o.(*v1.VirtualMachineInstance); !ok {
					return w.Create(ctx, o, opts...)
				}
				rand.Shuffle(len(errs), func(i, j int) { errs[i], errs[j] = errs[j], errs[i] })
				return apierrors.NewInvalid(v1.VirtualMachineInstanceGroupVersionKind.GroupKind(), o.GetName(), errs)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
				opts ...client.SubResourcePatchOption) error {
				writes++
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		}, vm, preference, size)
		want := 1
		if vm.Spec.Preference != nil || vm.Spec.Instancetype != nil {
			want++ // what it is to be started with
		}
		for range 20 {
			if _, err := f.step(); err != nil {
				t.Error(err)
			}
		}
		if n := len(f.Events.(*events.FakeRecorder).Events); writes != want || n != 1 {
			t.Errorf("%s: %d writes, want %d; %d events: %+v", what, writes, want, n,
				f.vm().Status.Condition(v1.ConditionFailure))
		}
	}
}

// TestGuestUnknownToTheCacheIsStopped: a guest that the cache does not know yet is stopped when somebody asks
// for that.
func TestGuestUnknownToTheCacheIsStopped(t *testing.T) {
	for _, strategy := range []v1.VirtualMachineRunStrategy{v1.RunStrategyManual, v1.RunStrategyRerunOnFailure} {
		vm := valid(strategy)
		vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{toStop(thisUID)}
		vmi := vm.Instance(&v1.KubeVirtConfiguration{}, false)
		vmi.UID = thisUID
		f := newFaulty(t, behind(), vm, vmi)
		if _, err := f.step(); err != nil || f.vmi() != nil && f.vmi().DeletionTimestamp == nil {
			t.Errorf("%s: %v, the guest runs; requests %v", strategy, err, f.vm().Status.StateChangeRequests)
		}
		if _, err := f.step(); err != nil || len(f.vm().Status.StateChangeRequests) != 0 {
			t.Errorf("%s: %v, requests %v of one that is gone", strategy, err, f.vm().Status.StateChangeRequests)
		}
	}
}
