package filler

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/internal/importer"
)

type noProgress struct{}

func (noProgress) Follow(types.NamespacedName, Pods) *importer.Progress { return nil }
func (noProgress) Forget(types.NamespacedName)                          {}

// TestNothingIsChangedOnceCDICame: CDI may come at any time. From then on nothing is changed, even before the Filler has
// looked again.
func TestNothingIsChangedOnceCDICame(t *testing.T) {
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

// TestPodInTheWayOfTheImporterPod: a pod has the importer pod's name, and the cache does not show the pod. The importer
// pod stays while the cache is only behind. Without its label it never reaches the cache and is deleted.
// A foreign pod is named.
func TestPodInTheWayOfTheImporterPod(t *testing.T) {
	v := volume(t, blank)
	claim := bound(v, "10Gi")
	for name, test := range map[string]struct {
		change      func(pod *corev1.Pod)
		after       time.Duration
		gone, warns bool
	}{
		"the cache is behind": {change: func(*corev1.Pod) {}, after: kit.WriteDelay},
		"no label":            {change: func(pod *corev1.Pod) { delete(pod.Labels, v1.AppLabel) }, after: recheck, gone: true},
		"foreign":             {change: func(pod *corev1.Pod) { pod.OwnerReferences = nil }, after: recheck, warns: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := podOf(v, claim, testConfig, 0)
			if err != nil {
				t.Fatal(err)
			}
			test.change(pod)
			r := among(t, pod)
			s := &step{was: &v.Status}
			if err := r.makePod(t.Context(), world{volume: v, claim: claim}, s); err != nil {
				t.Fatal(err)
			}
			if err := r.Live.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{}); apierrors.IsNotFound(err) != test.gone || client.IgnoreNotFound(err) != nil {
				t.Errorf("read the pod: %v, want it gone: %t", err, test.gone)
			}
			if s.after != test.after {
				t.Errorf("the DataVolume is looked at again after %v, want %v", s.after, test.after)
			}
			if warns := len(s.events) == 1; warns != test.warns {
				t.Errorf("events %v, want a warning: %t", s.events, test.warns)
			}
		})
	}
}
