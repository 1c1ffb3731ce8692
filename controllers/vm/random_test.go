package vm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// world is a VM whose user, guest and API server do as they like.
type world struct {
	*faulty
	dice *rand.Rand
	calm bool // the API server does as it is told
	made int
	// halts: the VM is Halted, and was asked for nothing since.
	halts bool
	story []string
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{dice: rand.New(rand.NewPCG(seed, 0))}
	down := func() error {
		if !w.calm && w.dice.IntN(4) == 0 {
			return errors.New("the API server is away")
		}
		return nil
	}
	w.faulty = newFaulty(t, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := down(); err != nil {
				return err
			}
			w.made++
			o.SetUID(types.UID(fmt.Sprint("run-", w.made)))
			o.SetFinalizers([]string{v1.VMIFinalizer})
			return errors.Join(c.Create(ctx, o, opts...), down()) // it may be done all the same
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := down(); err != nil {
				return err
			}
			return errors.Join(c.Delete(ctx, o, opts...), down())
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch,
			opts ...client.PatchOption) error {
			if err := down(); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			if err := down(); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	}, valid(v1.RunStrategyHalted))
	return w
}

// edit changes the VM, unless it is gone.
func (w *world) edit(status bool, change func(*v1.VirtualMachine)) {
	vm := &v1.VirtualMachine{}
	if err := w.store.Get(ctx, client.ObjectKey{Namespace: "ns", Name: "vm"}, vm); apierrors.IsNotFound(err) {
		return
	}
	change(vm)
	err := w.store.Update(ctx, vm)
	if status {
		err = w.store.Status().Update(ctx, vm)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

var strategies = []v1.VirtualMachineRunStrategy{v1.RunStrategyAlways, v1.RunStrategyRerunOnFailure, v1.RunStrategyOnce,
	v1.RunStrategyManual, v1.RunStrategyHalted}

// user does one of the things that users do, or nothing.
func (w *world) user() {
	vmi := w.vmi()
	switch w.dice.IntN(8) {
	case 0:
		s := strategies[w.dice.IntN(len(strategies))]
		w.story = append(w.story, string(s))
		w.edit(false, func(vm *v1.VirtualMachine) {
			// Of what changes before the controller looks, nobody knows the order.
			known := vm.Status.RunStrategy != v1.RunStrategyHalted || len(vm.Status.StateChangeRequests) == 0
			w.halts = s == v1.RunStrategyHalted && (known || w.halts)
			vm.Spec.RunStrategy = &s
		})
	case 1:
		w.story, w.halts = append(w.story, "start"), false
		w.edit(true, func(vm *v1.VirtualMachine) {
			vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{toStart()}
		})
	case 2:
		if vmi != nil {
			w.story = append(w.story, "stop")
			w.edit(true, func(vm *v1.VirtualMachine) {
				vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{toStop(vmi.UID)}
			})
		}
	case 3:
		// The API refuses it of one that is Halted.
		if vmi != nil && w.vm().Strategy() != v1.RunStrategyHalted {
			w.story = append(w.story, "restart")
			w.edit(true, func(vm *v1.VirtualMachine) {
				vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{toStop(vmi.UID), toStart()}
			})
		}
	case 4:
		if vmi != nil && w.dice.IntN(4) == 0 {
			w.story = append(w.story, "delete VMI")
			if err := w.store.Delete(ctx, vmi); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// guest takes the VMI a step further, and lets a deleted one go.
func (w *world) guest(may ...v1.VirtualMachineInstancePhase) {
	vmi := w.vmi()
	if vmi == nil {
		return
	}
	phase := may[w.dice.IntN(len(may))]
	w.story = append(w.story, string(phase))
	vmi.Status.SetPhase(phase, metav1.NewTime(w.Clock.Now()))
	if err := w.store.Status().Update(ctx, vmi); err != nil {
		w.t.Fatal(err)
	}
	if vmi.DeletionTimestamp != nil && (w.calm || w.dice.IntN(2) == 0) {
		w.story = append(w.story, "gone")
		controllerutil.RemoveFinalizer(vmi, v1.VMIFinalizer)
		if err := w.store.Update(ctx, vmi); err != nil {
			w.t.Fatal(err)
		}
	}
}

// settles lets time pass until nothing happens any more.
func (w *world) settles() {
	w.calm = true
	for range 20 {
		w.passes(longestBackOff)
		if _, err := w.step(); err != nil {
			w.t.Errorf("%v: %v", w.story, err)
		}
		if vmi := w.vmi(); vmi != nil && !vmi.IsFinal() {
			w.guest(v1.Running)
		} else {
			w.guest(v1.Pending) // it stays what it is
		}
	}
}

func (w *world) passes(d time.Duration) {
	clock := w.Clock.(*clocktesting.FakePassiveClock)
	clock.SetTime(clock.Now().Add(d))
}

// TestRandomEventsEndAsTheRunStrategySays: whatever users, guests and the API server do, in the end there is
// what the run strategy asks for. The status says so, and the VM can be deleted.
func TestRandomEventsEndAsTheRunStrategySays(t *testing.T) { randomEvents(t, 10) }

func randomEvents(t *testing.T, seeds uint64) {
	t.Helper()
	for seed := range seeds {
		w := newWorld(t, seed)
		for range 60 {
			switch w.dice.IntN(4) {
			case 0:
				w.user()
			case 1:
				w.guest(v1.Pending, v1.Scheduling, v1.Scheduled, v1.Running, v1.Running, v1.Succeeded, v1.Failed)
			default:
				w.step() // what failed is tried again
			}
			w.passes(time.Duration(w.dice.IntN(30)) * time.Second)
		}
		w.settles()
		w.check()
		if err := w.store.Delete(ctx, w.vm()); err != nil {
			t.Fatal(err)
		}
		w.settles()
		if err := w.store.Get(ctx,
			client.ObjectKey{Namespace: "ns", Name: "vm"}, &v1.VirtualMachine{}); !apierrors.IsNotFound(err) || w.vmi() != nil {
			t.Errorf("%v: the VM (%v) or its VMI is there", w.story, err)
		}
		if t.Failed() {
			return
		}
	}
}

// check compares what there is with what the run strategy asks for.
func (w *world) check() {
	vm, vmi := w.vm(), w.vmi()
	runs := vmi != nil && vmi.Status.Phase == v1.Running && vmi.DeletionTimestamp == nil
	want := v1.VirtualMachineStatusStopped
	if runs {
		want = v1.VirtualMachineStatusRunning
	}
	wrong := false
	switch vm.Strategy() {
	case v1.RunStrategyAlways:
		wrong = !runs || w.halts
	case v1.RunStrategyHalted:
		wrong = vmi != nil
	case v1.RunStrategyRerunOnFailure:
		wrong = vmi != nil && !runs
	case v1.RunStrategyOnce:
		wrong = vmi == nil
	}
	if vm.Status.StartFailure != nil && !runs {
		want = v1.VirtualMachineStatusCrashLoopBackOff // KubeVirt's word for it, though nobody tries again
	}
	left := len(vm.Status.StateChangeRequests)
	if wrong || vm.Status.PrintableStatus != want || vm.Status.Created != (vmi != nil) ||
		left > 0 && vm.Strategy() != v1.RunStrategyOnce || vm.Status.RunStrategy != vm.Strategy() {
		w.t.Errorf("%v: with %s there is %+v; want %s, and it is said %+v", w.story, vm.Strategy(), vmi, want, vm.Status)
	}
}
