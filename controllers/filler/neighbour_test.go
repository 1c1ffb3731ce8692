package filler

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
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

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// slowly has an API server take its time for whatever the reconciler asks of it, but for what the cache has.
func slowly(r *Reconciler) {
	const slow = 20 * time.Millisecond
	r.Live = interceptor.NewClient(r.Live.(client.WithWatch), interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		time.Sleep(slow)
		return c.Get(ctx, key, o, opts...)
	}})
	r.Client = interceptor.NewClient(r.Client.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			time.Sleep(slow)
			return c.Create(ctx, o, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			time.Sleep(slow)
			return c.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	})
}

// TestNeighboursDataVolumeIsFilledBesideManyThatWait: a tenant's 500 DataVolumes whose source is not there do not keep
// a neighbour's DataVolume from its claim.
func TestNeighboursDataVolumeIsFilledBesideManyThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var greedy []client.Object
		for i := range 500 {
			v := volume(t, ofDebian)
			v.Namespace, v.Name, v.UID = "greedy", fmt.Sprintf("dv-%d", i), types.UID(fmt.Sprint(i))
			greedy = append(greedy, v)
		}
		r := among(t, greedy...)
		store := r.Client
		r.Clock, r.Events = clock.RealClock{}, &events.FakeRecorder{}
		slowly(r)
		options := kit.Options(workers)
		options.SkipNameValidation, options.Reconciler = ptr.To(true), kit.Patient(r, r.Clock)
		c, err := controller.NewUnmanaged("waiting", options)
		if err != nil {
			t.Fatal(err)
		}
		queue := make(chan workqueue.TypedRateLimitingInterface[reconcile.Request], 1)
		if err := c.Watch(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			for _, v := range greedy {
				q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(v)})
			}
			queue <- q
			return nil
		})); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Start(ctx) }()
		q := <-queue
		for i := range 3 {
			time.Sleep(time.Second)
			v := volume(t, blank)
			v.Namespace, v.Name, v.UID, v.ResourceVersion = "neighbour", fmt.Sprintf("dv-%d", i), types.UID(fmt.Sprint("n", i)), ""
			if err := store.Create(t.Context(), v); err != nil {
				t.Fatal(err)
			}
			begin, key := time.Now(), client.ObjectKeyFromObject(v)
			for q.Add(reconcile.Request{NamespacedName: key}); store.Get(t.Context(), key, &corev1.PersistentVolumeClaim{}) != nil && time.Since(begin) < time.Hour; {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("a neighbour's DataVolume has its claim after %s", took)
			}
		}
		waits := &cdi.DataVolume{}
		if err := store.Get(t.Context(), client.ObjectKey{Namespace: "greedy", Name: "dv-0"}, waits); err != nil {
			t.Fatal(err)
		}
		if running := waits.Status.Condition(cdi.Running); running == nil || running.Reason != reasonCloneWithoutSource {
			t.Errorf("a DataVolume that waits says %+v", running)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
