package filler

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestSourcePodOfAnEarlierDataVolumeGoes: a DataVolume that copied is deleted and made anew before the reconciler looks again, which has
// one key for both. The source pod of the earlier one goes, whatever the new one is.
func TestSourcePodOfAnEarlierDataVolumeGoes(t *testing.T) {
	for name, spec := range map[string]string{"blank": blank, "a copy of its own namespace": ofDebian, "not valid": `{source: {}, storage: {}}`} {
		v := volume(t, spec)
		v.UID, v.CreationTimestamp = "new-uid", metav1.NewTime(now)
		source, err := sourcePodOf(volume(t, ofGolden), goldenClaim("1Gi"), testConfig)
		if err != nil {
			t.Fatal(err)
		}
		r := among(t, v, source)
		for range 10 {
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(v)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(source), source); !apierrors.IsNotFound(err) {
			t.Errorf("%s: source pod %s is still there (%v)", name, fullName(source), err)
		}
	}
}
