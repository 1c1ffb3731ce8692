package filler

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// TestOtherPod: an importer pod that the cache does not hold yet stays. The cache selects by the label,
// so a pod of the DataVolume without the label is deleted, and a foreign pod is named.
func TestOtherPod(t *testing.T) {
	v := volume(t, blank)
	labels := map[string]string{v1.AppLabel: importerName}
	owners := []metav1.OwnerReference{*metav1.NewControllerRef(v, cdi.DataVolumeGroupVersionKind)}
	for name, test := range map[string]struct {
		labels  map[string]string
		owners  []metav1.OwnerReference
		after   time.Duration
		gone    bool
		stopped bool
	}{
		"not cached yet": {labels: labels, owners: owners, after: kit.WriteDelay},
		"no label":       {owners: owners, after: recheck, gone: true},
		"foreign":        {labels: labels, after: recheck, stopped: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: podName(v.Name), Labels: test.labels, OwnerReferences: test.owners}}
			r := among(t, pod)
			s := &step{after: kit.WriteDelay, was: &v.Status}
			if err := r.otherPod(context.Background(), world{volume: v}, s, pod.Name); err != nil {
				t.Fatal(err)
			}
			if err := r.Live.Get(context.Background(), client.ObjectKeyFromObject(pod), &corev1.Pod{}); apierrors.IsNotFound(err) != test.gone {
				t.Errorf("reading the pod says %v, want the pod gone: %t", err, test.gone)
			}
			if s.after != test.after {
				t.Errorf("the DataVolume is looked at again after %v, want %v", s.after, test.after)
			}
			if stopped := len(s.events) == 1; stopped != test.stopped {
				t.Errorf("events %v, want a warning: %t", s.events, test.stopped)
			}
		})
	}
}
