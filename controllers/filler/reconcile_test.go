package filler

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/internal/importer"
)

type noProgress struct{}

func (noProgress) Follow(types.NamespacedName, Pods) *importer.Progress { return nil }
func (noProgress) Forget(types.NamespacedName)                          {}

// TestOurs: CDI may come at any time. From then on nothing is changed, even before the Filler has
// looked again.
func TestOurs(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), storagev1.AddToScheme(scheme), cdi.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("down")
	for _, test := range []struct {
		ours    bool
		err     error
		changed bool
	}{{true, nil, true}, {false, nil, false}, {false, failure, false}} {
		volume := &cdi.DataVolume{}
		volume.Namespace, volume.Name, volume.UID = "ns", "disk", "uid"
		c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(volume).WithObjects(volume).Build()
		r := &Reconciler{Client: c, Live: c, Clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0)), Events: events.NewFakeRecorder(10), Progresses: noProgress{},
			Ours: func(context.Context) (bool, error) { return test.ours, test.err }}
		key := client.ObjectKeyFromObject(volume)
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); !errors.Is(err, test.err) {
			t.Errorf("%+v: %v", test, err)
		}
		if err := c.Get(t.Context(), key, volume); err != nil || (volume.Status.Phase != "") != test.changed {
			t.Errorf("%+v: the phase is %q (%v)", test, volume.Status.Phase, err)
		}
	}
}
