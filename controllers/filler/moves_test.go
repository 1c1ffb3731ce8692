package filler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// lasts returns how long a copy keeps its place whose importer says what said returns, and the step that takes it away.
func lasts(w *world, most time.Duration, said func(age time.Duration) *importer.Progress) (time.Duration, step) {
	var known moves
	for began := w.now; ; w.now = w.now.Add(time.Minute) {
		age := w.now.Sub(began)
		if said != nil {
			w.progress = said(age)
		}
		w.moved = known.note(*w)
		s := decide(*w)
		w.volume.Status = s.status
		if c := s.status.Condition(cdi.Running); c.Reason == reasonCloneStalled || age >= most {
			return age, s
		}
	}
}

// TestCopyThatStandsStillLosesItsPlace: whatever it waits for. Both its pods go, the DataVolume says why, and it asks
// for another place after a pause that grows.
func TestCopyThatStandsStillLosesItsPlace(t *testing.T) {
	pending := func(message string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: message}}}
	}
	noImage := corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: containerName, Image: "gone",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}}
	noDisk := corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		Name:  containerName,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}}}}
	noDisk.InitContainerStatuses = noImage.DeepCopy().ContainerStatuses
	noDisk.InitContainerStatuses[0].Name = importer.ImageName
	for name, c := range map[string]struct {
		change func(*world)
		says   string
	}{
		"no image that is handed out": {func(w *world) { w.pod.Status = noDisk },
			"ImagePullFailed, pull of image gone failed: no such image"},
		"the source pod fits on no node":   {func(w *world) { w.pod, w.origin.pods[0].Status = nil, pending("0/3 nodes") }, "Source pod golden/importer-source-uid-of-data: Unschedulable"},
		"the importer pod fits on no node": {func(w *world) { w.pod.Status = pending("0/3 nodes are arm64") }, "Importer pod ns/importer-data: Unschedulable, Importer pod cannot be scheduled: 0/3 nodes are arm64"},
		"no image":                         {func(w *world) { w.pod.Status = noImage }, "no such image"},
		"the importer pod does not come":   {func(w *world) { w.pod = nil }, "It has no importer pod"},
		"the importer pod crashes": {func(w *world) {
			w.pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: ended(1, "Error", "no space")}
		}, "Importer pod ns/importer-data: Error, no space"},
		"the claim is never bound": {func(w *world) {
			w.claim.Status.Phase, w.firstConsumer, w.pod.Status = corev1.ClaimPending, true, pending("unbound claim")
			w.volume.Annotations = map[string]string{cdi.ImmediateBindingAnnotation: ""}
		}, "unbound claim"},
		"the importer pod has succeeded, is deleted and does not go": {func(w *world) {
			w.pod.Status.Phase, w.pod.DeletionTimestamp = corev1.PodSucceeded, &metav1.Time{Time: now}
			w.pod.Finalizers = []string{"example.com/stays"}
		}, "Importer pod ns/importer-data is being deleted, and does not go"},
		"nothing is copied": {func(*world) {}, "Importer pod ns/importer-data runs, and had copied 0.0%"},
	} {
		t.Run(name, func(t *testing.T) {
			w := copying(t)
			c.change(&w)
			age, s := lasts(&w, time.Hour, nil)
			if age != stillFor {
				t.Fatalf("it loses its place after %s: %s", age, told(s))
			}
			if of := s.status.Condition(cdi.Running); !strings.Contains(of.Message, c.says) || len(s.events) == 0 || s.events[0].note != of.Message {
				t.Errorf("%q does not say %q; events %v", of.Message, c.says, s.events)
			}
			gone := w.pod == nil || w.pod.DeletionTimestamp != nil
			if want := map[bool]action{true: deleteSourcePod, false: deletePod}[gone]; s.action != want {
				t.Errorf("it goes on with %s", told(s))
			}
			settled(t, w, s)
			if w.pod = nil; decide(w).action != deleteSourcePod {
				t.Errorf("without an importer pod it goes on with %s", told(decide(w)))
			}
			w.origin.pods, w.moved = nil, move{}
			first := decide(w)
			if first.action != nothing || first.after != backoff(1) {
				t.Errorf("without its pods it goes on with %s after %s", told(first), first.after)
			}
			if w.now = w.now.Add(first.after); decide(w).action != makeSource {
				t.Errorf("after its pause it goes on with %s", told(decide(w)))
			}
		})
	}
}

// percent is what an importer says of so many percent.
func percent(p float64) *importer.Progress {
	return &importer.Progress{Done: int64(p * 1000), Total: 100_000}
}

// TestCopyThatMovesKeepsItsPlace: a copy keeps its place while it moves. It has longer at its end, and while nobody
// knows how far it is. It may begin anew three times. No report of an importer pod, forged or not, keeps a place for ever.
func TestCopyThatMovesKeepsItsPlace(t *testing.T) {
	const day = 24 * time.Hour
	type said = func(age time.Duration) *importer.Progress
	nothing := func(time.Duration) *importer.Progress { return nil }
	steps := func(age, every time.Duration) float64 { return float64(age / every) }
	for name, c := range map[string]struct {
		said   said
		want   time.Duration
		size   string
		before cdi.DataVolumeProgress
	}{
		"slowly":          {said: func(age time.Duration) *importer.Progress { return percent(0.15 * age.Minutes() / 10) }, want: 2 * day},
		"too slowly":      {said: func(age time.Duration) *importer.Progress { return percent(1 + 0.05*age.Minutes()/10) }, want: stillFor},
		"to a standstill": {said: func(age time.Duration) *importer.Progress { return percent(min(age.Minutes(), 20)) }, want: 20*time.Minute + stillFor},
		"to its end":      {said: func(age time.Duration) *importer.Progress { return percent(min(age.Minutes(), 99.9)) }, want: 99*time.Minute + endFor},
		"and is not heard": {said: func(age time.Duration) *importer.Progress {
			if age > 20*time.Minute {
				return nil
			}
			return percent(age.Minutes())
		}, want: 20*time.Minute + unheardFor + stillFor},
		"and is not heard after a restart of virt-controller": {said: nothing, before: "60.00%", want: unheardFor + stillFor},
		"never, of which the status says nonsense":            {said: nothing, before: "NaN%", want: stillFor},
		"anew after an eviction": {said: func(age time.Duration) *importer.Progress {
			if age > time.Hour {
				age -= time.Hour
			}
			return percent(min(age.Minutes(), 99.9))
		}, want: time.Hour + 99*time.Minute + endFor},
		"anew again and again": {said: func(age time.Duration) *importer.Progress {
			p := percent(float64(int(age.Minutes()) % 9))
			p.Anew = int(age.Minutes()) / 9
			return p
		}, want: 35*time.Minute + stillFor},
		"slowly to a huge disk":     {said: func(age time.Duration) *importer.Progress { return percent(0.02 * age.Minutes() / 10) }, size: "10Ti", want: 2 * day},
		"too slowly to a huge disk": {said: func(age time.Duration) *importer.Progress { return percent(1 + 0.005*age.Minutes()/10) }, size: "10Ti", want: stillFor},
		// Reports that a user in the importer pod may forge.
		"a little at its end, again and again": {said: func(age time.Duration) *importer.Progress {
			return percent(min(99+0.1*steps(age, 23*time.Hour), 100))
		}, want: endFor},
		"anew at its end": {said: func(age time.Duration) *importer.Progress {
			return percent(99.5 - 10*float64(int(steps(age, 5*time.Minute))%2))
		}, want: 30*time.Minute + endFor},
		"anew after its end, after a restart of virt-controller": {said: func(age time.Duration) *importer.Progress {
			if age < 5*time.Minute {
				return nil
			}
			return percent(20 + 0.15*age.Minutes()/10)
		}, before: "99.50%", want: 2 * day},
		"a little, and then says nothing for long": {said: func(age time.Duration) *importer.Progress {
			if age%(59*time.Minute) != 0 {
				return &importer.Progress{}
			}
			return percent(1 + 0.1*steps(age, 59*time.Minute))
		}, want: 59*time.Minute + time.Minute + stillFor},
		"as slowly as it may, and anew before its end": {said: func(age time.Duration) *importer.Progress {
			return percent(0.11 * float64(int(steps(age, 9*time.Minute))%890))
		}, want: placeFor},
		"as slowly as it may to a huge disk": {said: func(age time.Duration) *importer.Progress { return percent(0.015 * age.Minutes() / 10) },
			size: "10Ti", want: placeFor},
	} {
		t.Run(name, func(t *testing.T) {
			w := copying(t)
			if c.size != "" {
				w.claim = bound(w.volume, c.size)
				w.claim.UID = types.UID(w.pod.Annotations[claimAnnotation])
			}
			w.volume.Status.Progress = c.before
			most := 60 * day
			if c.want == 2*day {
				most = c.want
			}
			if age, s := lasts(&w, most, c.said); (age - c.want).Abs() > 2*time.Minute {
				t.Errorf("it keeps its place for %s, want %s: %s", age, c.want, told(s))
			}
		})
	}
}

// TestCopiesWithoutPlacesMayStandStill: a copy within a namespace keeps nobody from anything.
func TestCopiesWithoutPlacesMayStandStill(t *testing.T) {
	w := copying(t)
	w.volume.Namespace, w.claim.Namespace, w.pod.Namespace = "golden", "golden", "golden"
	if age, s := lasts(&w, 2*time.Hour, nil); age != 2*time.Hour {
		t.Errorf("it loses a place that it does not have after %s: %s", age, told(s))
	}
}

// TestNeighbourGetsAPlaceBesideCopiesThatNeverBegin: a tenant with many namespaces makes new DataVolumes as soon as
// others have lost their places, and is always the first to ask.
func TestNeighbourGetsAPlaceBesideCopiesThatNeverBegin(t *testing.T) {
	p, held, clock := &places{}, map[string]time.Time{}, now
	ask := func(namespace, name string) bool {
		var pods []corev1.Pod
		for one := range held {
			of, _, _ := strings.Cut(one, "/")
			pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "golden", Name: sourcePodPrefix + one, Labels: map[string]string{forLabel: one},
				Annotations: map[string]string{forAnnotation: of + "/x"}}})
		}
		volume := &cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name)}}
		if !p.take(volume, "golden", pods, clock) {
			return false
		}
		held[string(volume.UID)] = clock
		return true
	}
	for round := 0; clock.Sub(now) < 3*stillFor; round++ {
		for one, since := range held {
			if clock.Sub(since) >= stillFor {
				delete(held, one)
			}
		}
		for k := range 12 {
			for i := range placesFor {
				if !ask(fmt.Sprintf("tenant-%d", k), fmt.Sprintf("%d-%d", round, i)) {
					break
				}
			}
		}
		if round > 0 && ask("neighbour", "disk") {
			t.Logf("the neighbour has a place after %s", clock.Sub(now))
			if waited := clock.Sub(now); waited > stillFor+longestPause {
				t.Errorf("the neighbour waits for %s", waited)
			}
			return
		}
		clock = clock.Add(longestPause)
	}
	t.Error("the neighbour never gets a place")
}

// TestWhoWaitsIsWokenByAFreePlace: once a source pod of the namespace is gone, and not by a change of one.
func TestWhoWaitsIsWokenByAFreePlace(t *testing.T) {
	var pods []corev1.Pod
	for i := range placesFrom {
		uid := fmt.Sprintf("pod-%d", i)
		pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "golden", Name: sourcePodPrefix + uid, Labels: map[string]string{forLabel: uid},
			Annotations: map[string]string{forAnnotation: fmt.Sprintf("tenant-%d/x", i/placesFor)}}})
	}
	p := &places{}
	for i, namespace := range []string{"first", "second"} {
		if got := gets(p, namespace, 1, pods, now.Add(time.Duration(i)*time.Second)); got != 0 {
			t.Fatalf("%s gets %d places", namespace, got)
		}
	}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	h := wakesNext{handler.EnqueueRequestsFromMapFunc(byPod), p}
	h.Update(t.Context(), event.UpdateEvent{ObjectOld: &pods[0], ObjectNew: &pods[0]}, queue)
	other := pods[1].DeepCopy()
	other.Namespace = "another"
	h.Delete(t.Context(), event.DeleteEvent{Object: other}, queue)
	h.Delete(t.Context(), event.DeleteEvent{Object: &pods[0]}, queue)
	var woken []string
	for queue.Len() > 0 {
		one, _ := queue.Get()
		woken = append(woken, one.String())
	}
	slices.Sort(woken)
	if want := []string{"first/0", "second/0", "tenant-0/x"}; !slices.Equal(woken, want) {
		t.Errorf("woken: %v, want %v", woken, want)
	}
}

// TestSourcePodsThatNeverGoHoldNoPlace: a pod that is deleted on a node that is down stays for as long as the node is.
func TestSourcePodsThatNeverGoHoldNoPlace(t *testing.T) {
	var pods []corev1.Pod
	for i := range placesFor {
		uid := fmt.Sprintf("pod-%d", i)
		pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "golden", Name: sourcePodPrefix + uid, Labels: map[string]string{forLabel: uid},
			Annotations: map[string]string{forAnnotation: "other/x"}, DeletionTimestamp: &metav1.Time{Time: now.Add(time.Hour)},
			DeletionGracePeriodSeconds: ptr.To[int64](3600)}})
	}
	if got := gets(&places{}, "other", 10, pods, now.Add(goneAfter)); got != 0 {
		t.Errorf("%d at first", got)
	}
	if got := gets(&places{}, "other", 10, pods, now.Add(goneAfter+time.Second)); got != 10 {
		t.Errorf("%d at last", got)
	}
}

// TestReconcilerCountsHowLongACopyStandsStill: from its first look at the source pod, until the DataVolume is gone.
func TestReconcilerCountsHowLongACopyStandsStill(t *testing.T) {
	w := copying(t)
	w.pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	r := among(t, w.volume, w.claim, w.pod, w.origin.claim, w.origin.pods[0])
	if err := r.Client.Status().Update(t.Context(), w.volume); err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{0, stillFor / 2, stillFor} {
		r.Clock = clocktesting.NewFakePassiveClock(now.Add(after))
		seen, err := r.look(t.Context(), w.volume)
		if err != nil {
			t.Fatal(err)
		}
		if seen.origin.trouble.reason != "" || !seen.moved.at.Equal(now) || (seen.moved.lost(seen.now) != "") != (after == stillFor) {
			t.Errorf("after %s: %+v, trouble %+v", after, seen.moved, seen.origin.trouble)
		}
	}
	r.moves.forget(client.ObjectKeyFromObject(w.volume))
	if len(r.moves.by) != 0 {
		t.Errorf("it remembers %v", r.moves.by)
	}
}
