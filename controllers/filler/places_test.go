package filler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// refusing refuses to create pods in a namespace.
func refusing(r *Reconciler, namespace string) {
	r.Client = interceptor.NewClient(r.Client.(client.WithWatch), interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
		if object.GetNamespace() == namespace {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, object.GetName(), errors.New("exceeded quota"))
		}
		return c.Create(ctx, object, options...)
	}})
}

// sourcesOf counts the source pods of a cluster.
func sourcesOf(t *testing.T, r *Reconciler) int {
	t.Helper()
	list := &corev1.PodList{}
	if err := r.Client.List(t.Context(), list, client.HasLabels{forLabel}); err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// TestNoSourcePodIsLeftWithoutItsImporterPod: a namespace whose quota permits no importer pod leaves no source pod in
// another namespace, neither where the quota was there before nor where it comes in between.
func TestNoSourcePodIsLeftWithoutItsImporterPod(t *testing.T) {
	w := copying(t)
	source := w.origin.pods[0]
	w.pod, w.origin.pods = nil, nil
	r := among(t)
	refusing(r, "ns")
	s := decide(w)
	if s.action != makeSource {
		t.Fatalf("action %v", s.action)
	}
	if err := r.act(t.Context(), w, &s); !kit.IsRefusal(err) || sourcesOf(t, r) != 0 {
		t.Errorf("%v, and %d source pods", err, sourcesOf(t, r))
	}
	if c := s.status.Condition(cdi.Running); c == nil || c.Reason != reasonStartingPod {
		t.Errorf("condition %+v", c)
	}
	w.origin.pods = []*corev1.Pod{source}
	r = among(t, source.DeepCopy())
	refusing(r, "ns")
	if s = decide(w); s.action != makePod {
		t.Fatalf("action %v", s.action)
	}
	if err := r.act(t.Context(), w, &s); !kit.IsRefusal(err) || sourcesOf(t, r) != 0 {
		t.Errorf("%v, and %d source pods", err, sourcesOf(t, r))
	}
}

// TestSourcePodIsMadeOnceTheImporterPodMayCome: the question is a dry run, and leaves no importer pod.
func TestSourcePodIsMadeOnceTheImporterPodMayCome(t *testing.T) {
	w := copying(t)
	w.pod, w.origin.pods = nil, nil
	r := among(t)
	s := decide(w)
	if err := r.act(t.Context(), w, &s); err != nil || sourcesOf(t, r) != 1 {
		t.Errorf("%v, and %d source pods", err, sourcesOf(t, r))
	}
	if err := r.Client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: podName("data")}, &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("read the importer pod: %v", err)
	}
}

// gets has so many DataVolumes of a namespace ask for a place, and returns how many got one.
func gets(p *places, namespace string, count int, pods []corev1.Pod, now time.Time) (got int) {
	for i := range count {
		volume := &cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint(i), UID: types.UID(fmt.Sprintf("%s-%d", namespace, i))}}
		if p.take(volume, "golden", pods, now) {
			got++
		}
	}
	return got
}

// TestCopiesFromANamespaceAreBounded: those of a namespace, and all of them, whether or not the cache shows their
// source pods; and a place that is free is for a namespace that has none rather than for one that has many.
func TestCopiesFromANamespaceAreBounded(t *testing.T) {
	p, all := &places{}, 0
	if got := gets(p, "greedy", 500, nil, now); got != placesFor {
		t.Errorf("a namespace gets %d places, want %d", got, placesFor)
	}
	for i := range 100 {
		all += gets(p, fmt.Sprintf("more-%d", i), 500, nil, now)
	}
	if all != placesFrom-placesFor {
		t.Errorf("the others get %d places, want %d", all, placesFrom-placesFor)
	}
	if got := gets(p, "golden", 500, nil, now); got != 500 {
		t.Errorf("of copies in the namespace itself, %d go on", got)
	}
	p.give(&cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{UID: "greedy-3"}})
	if got := gets(p, "greedy", 500, nil, now); got != placesFor-1 { // those that have one keep it
		t.Errorf("a namespace with many places has %d", got)
	}
	if got := gets(p, "more-99", 500, nil, now); got != 1 {
		t.Errorf("a namespace without a place gets %d", got)
	}
	if got := gets(p, "greedy", 1, nil, now.Add(placeSeen+time.Second)); got != 1 || len(p.made) != 1 {
		t.Errorf("places of pods that never came are kept: %d", len(p.made))
	}
}

// TestPlacesAreTakenBySourcePods: of those that the cache shows.
func TestPlacesAreTakenBySourcePods(t *testing.T) {
	var pods []corev1.Pod
	for i := range placesFor {
		uid := fmt.Sprintf("pod-%d", i)
		pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "golden", Name: sourcePodPrefix + uid, Labels: map[string]string{forLabel: uid},
			Annotations: map[string]string{forAnnotation: "greedy/x"}}})
	}
	if got := gets(&places{}, "greedy", 10, pods, now); got != 0 {
		t.Errorf("%d more", got)
	}
	if got := gets(&places{}, "other", 10, pods, now); got != 10 {
		t.Errorf("another namespace gets %d", got)
	}
	if got := gets(&places{}, "greedy", 10, pods[1:], now); got != 1 {
		t.Errorf("%d after one has ended", got)
	}
}
