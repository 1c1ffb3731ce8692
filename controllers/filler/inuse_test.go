package filler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// crowd is a cluster with so many pods of one phase in each namespace. The last one may write to the claim debian.
type crowd struct {
	client.Reader
	pods  int
	phase corev1.PodPhase
	lists int
}

func writerOf(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "debian"}}}}}}
}

func (c *crowd) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	pods, ok := list.(*corev1.PodList)
	if !ok {
		return c.Reader.List(ctx, list, options...)
	}
	c.lists++
	o := client.ListOptions{}
	o.ApplyOptions(options)
	if o.FieldSelector != nil && !o.FieldSelector.Matches(fields.Set{"status.phase": string(c.phase)}) {
		return nil
	}
	from := 0
	_, _ = fmt.Sscan(o.Continue, &from)
	to := min(from+int(o.Limit), c.pods)
	for i := from; i < to; i++ {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: fmt.Sprint("job-", i)}}
		if i == c.pods-1 {
			pod = writerOf(o.Namespace, "writer")
		}
		pod.Status.Phase = c.phase
		pods.Items = append(pods.Items, *pod)
	}
	if to < c.pods {
		pods.Continue = fmt.Sprint(to)
	}
	return nil
}

// TestPodListingIsShared: however many DataVolumes wait for the claims of a namespace, its pods are listed once in a while.
func TestPodListingIsShared(t *testing.T) {
	c := &crowd{Reader: among(t).Live, pods: 3 * podsPage, phase: corev1.PodRunning}
	w := copying(t)
	w.pod = nil
	r := among(t)
	r.Live = c
	look := func(at time.Time, want int) {
		t.Helper()
		for range 20 {
			w.now = at
			if name, err := r.user(t.Context(), w, w.origin); name != "writer" || err != nil {
				t.Fatalf("%q (%v)", name, err)
			}
		}
		if c.lists != want {
			t.Errorf("%d LIST requests, want %d", c.lists, want)
		}
	}
	look(now, 3)
	look(now.Add(-time.Millisecond), 3) // another worker, which waited for the first one's listing
	look(now.Add(listingFor-1), 3)
	look(now.Add(listingFor), 6)
	w.origin.at.Namespace = "other"
	look(now.Add(3*listingFor), 9)
	if len(r.listings.of) != 1 {
		t.Errorf("%d listings are kept", len(r.listings.of))
	}
}

// TestCopyIsCompleteAfterALaterListing: a copy is complete only if a listing that began after its end has no writer.
func TestCopyIsCompleteAfterALaterListing(t *testing.T) {
	w := copying(t)
	r := among(t)
	if name, err := r.user(t.Context(), w, w.origin); name != "" || err != nil {
		t.Fatal(name, err)
	}
	if err := r.Client.Create(t.Context(), writerOf("golden", "writer")); err != nil {
		t.Fatal(err)
	}
	w.pod.Status.Phase = corev1.PodSucceeded
	if name, err := r.user(t.Context(), w, w.origin); name != "writer" || err != nil {
		t.Errorf("%q (%v)", name, err)
	}
}

// TestTooManyPodsHoldUpACopy: pods that have ended are no obstacle to a copy. Too many others are, and the condition says so, before
// the copy and at its end.
func TestTooManyPodsHoldUpACopy(t *testing.T) {
	w := copying(t)
	for name, c := range map[string]struct {
		phase corev1.PodPhase
		want  string
	}{"ended": {corev1.PodSucceeded, ""}, "living": {corev1.PodRunning, reasonCloneManyPods}} {
		for _, phase := range []corev1.PodPhase{"", corev1.PodSucceeded} {
			w := w
			w.pod, w.sources, w.origin = w.pod.DeepCopy(), w.origin.pods, nil
			if w.pod.Status.Phase = phase; phase == "" {
				w.pod = nil
			}
			r := among(t, goldenClaim("1Gi"))
			r.Live = &crowd{Reader: r.Live, pods: podsPage*livingPages + 1, phase: c.phase}
			o, err := r.origin(t.Context(), w)
			if err != nil {
				t.Fatal(name, err)
			}
			w.origin = o
			s := decide(w)
			if got := o.waits(); got.reason != c.want || c.want != "" && (s.action == fillClaim || !strings.Contains(got.note, "namespace golden has too many pods")) {
				t.Errorf("%s: %+v; %s", name, got, told(s))
			}
		}
	}
	// The whole step of a DataVolume ends with the condition, and no error.
	v := volume(t, `{source: {pvc: {name: debian}}, storage: {resources: {requests: {storage: 1Gi}}}}`)
	source := goldenClaim("1Gi")
	source.Namespace = "ns"
	r := among(t, v, source, bound(v, "2Gi"))
	r.Live = &crowd{Reader: r.Live, pods: podsPage*livingPages + 1, phase: corev1.PodRunning}
	key := types.NamespacedName{Namespace: "ns", Name: v.Name}
	if result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil || result.RequeueAfter == 0 {
		t.Errorf("%+v (%v)", result, err)
	}
}

// TestCopyOfAChangedDeviceIsNotFilled: while virt-controller is away, a pod writes to the device that is copied, and ends. The copy is not
// called filled. A file has a version, which its source pod looks at.
func TestCopyOfAChangedDeviceIsNotFilled(t *testing.T) {
	w := copying(t)
	w.pod.Status.Phase = corev1.PodSucceeded
	made := w.pod.CreationTimestamp.Time
	for name, c := range map[string]struct {
		mode corev1.PersistentVolumeMode
		end  time.Time
		want string
	}{
		"a device, meanwhile": {corev1.PersistentVolumeBlock, made.Add(time.Minute), "vm"},
		"a device, before":    {corev1.PersistentVolumeBlock, made.Add(-time.Minute), ""},
		"a device, never":     {corev1.PersistentVolumeBlock, time.Time{}, ""},
		"a file":              {corev1.PersistentVolumeFilesystem, made.Add(time.Minute), ""},
	} {
		w.origin.claim.Spec.VolumeMode = ptr.To(c.mode)
		vm := writerOf("golden", "vm")
		vm.Status.Phase = corev1.PodSucceeded
		if !c.end.IsZero() {
			vm.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(c.end)}}}}
		}
		user, err := among(t, vm).user(t.Context(), w, w.origin)
		if err != nil || user != c.want {
			t.Errorf("%s: %q (%v)", name, user, err)
		}
		w.origin.user = user
		if s := decide(w); (s.action == fillClaim) != (c.want == "") {
			t.Errorf("%s: %s", name, told(s))
		}
	}
}
