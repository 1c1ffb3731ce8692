package filler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
	"github.com/kubeqemu/kubeqemu/internal/importer"
)

var now = time.Unix(10000, 0)

// usual is a world in the middle of an import.
func usual(t *testing.T) world {
	t.Helper()
	v := volume(t, blank)
	claim := bound(v, "2Gi")
	pod, err := podOf(v, claim, testConfig, 0)
	if err != nil {
		t.Fatal(err)
	}
	pod.UID, pod.CreationTimestamp = "uid-of-pod", metav1.NewTime(now.Add(-time.Minute))
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: containerName,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	return world{volume: v, claim: claim, pod: pod, now: now}
}

// told is one line of a step: the phase, the percentage, the conditions, the action and the events.
func told(s step) string {
	of := func(c *cdi.DataVolumeCondition) string {
		if c == nil {
			return "none"
		}
		return fmt.Sprintf("%s %s", c.Status, c.Reason)
	}
	line := fmt.Sprintf("%s %s; bound %s; running %s; ready %s; ", s.status.Phase, s.status.Progress,
		of(s.status.Condition(cdi.Bound)), of(s.status.Condition(cdi.Running)), of(s.status.Condition(cdi.Ready)))
	line += [...]string{"nothing", "make claim", "adopt claim", "fill claim", "make pod", "delete pod", "make source", "delete source", "mark claim"}[s.action]
	for _, e := range s.events {
		line += "; event " + e.reason
	}
	return line
}

func ended(code int32, reason, message string) *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message, FinishedAt: metav1.NewTime(now.Add(-30 * time.Second))}
}

func TestDecide(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   string
		says   string // in some condition
	}{
		"a new one": {func(w *world) { w.claim, w.pod = nil, nil },
			"Pending N/A; bound False NotFound; running False ; ready False ; make claim", "No PVC found"},
		"others bring the claim": {func(w *world) {
			w.claim, w.pod = nil, nil
			w.volume.Annotations = map[string]string{cdi.PrePopulatedAnnotation: "data"}
		}, "Pending N/A; bound False NotFound; running False ; ready False ; nothing", "brought by others"},
		"not bound": {func(w *world) { w.claim.Status.Phase, w.pod = corev1.ClaimPending, nil },
			"Pending N/A; bound False Pending; running False ; ready False ; nothing", "PVC data Pending"},
		"no class": {func(w *world) {
			w.claim.Status.Phase, w.pod, w.lacks = corev1.ClaimPending, nil, "PVC data names the StorageClass none"
		},
			"Pending N/A; bound False StorageClassNotFound; running False ; ready False ; nothing", "the StorageClass none"},
		"waits for a pod": {func(w *world) { w.claim.Status.Phase, w.pod, w.firstConsumer = corev1.ClaimPending, nil, true },
			"WaitForFirstConsumer N/A; bound False Pending; running False ; ready False ; nothing", ""},
		"is to bind at once": {func(w *world) {
			w.claim.Status.Phase, w.pod, w.firstConsumer = corev1.ClaimPending, nil, true
			w.volume.Annotations = map[string]string{cdi.ImmediateBindingAnnotation: ""}
		}, "ImportScheduled N/A; bound False Pending; running False ; ready False ; make pod; event ImportScheduled", ""},
		"bound": {func(w *world) { w.pod = nil },
			"ImportScheduled N/A; bound True Bound; running False ; ready False ; make pod; event ImportScheduled", "PVC data Bound"},
		"the claim is lost": {func(w *world) { w.claim.Status.Phase, w.pod = corev1.ClaimLost, nil },
			"Failed N/A; bound False ErrClaimLost; running False ; ready False ; nothing; event ErrClaimLost", "PVC data lost"},
		"the claim goes": {func(w *world) { w.claim.DeletionTimestamp = &metav1.Time{Time: now} },
			"Pending N/A; bound False Pending; running False ; ready False ; delete pod", "being deleted"},
		"unschedulable": {func(w *world) {
			w.pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes"}}}
		}, "ImportScheduled N/A; bound True Bound; running False Unschedulable; ready False ; nothing; event ImportScheduled", "0/1 nodes"},
		"no image": {func(w *world) {
			w.pod.Status.Phase, w.pod.Status.ContainerStatuses[0].State = corev1.PodPending, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "gone"}}
		}, "ImportScheduled N/A; bound True Bound; running False ImagePullFailed; ready False ; nothing; event ImportScheduled; event ImagePullFailed", "gone"},
		"no Secret": {func(w *world) {
			w.pod.Status.Phase, w.pod.Status.ContainerStatuses[0].State = corev1.PodPending, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: "no secret"}}
		}, "ImportScheduled N/A; bound True Bound; running False ErrStartingPod; ready False ; nothing; event ImportScheduled; event ErrStartingPod", "no secret"},
		"runs": {func(*world) {},
			"ImportInProgress N/A; bound True Bound; running True Pod is running; ready False TransferRunning; nothing; event ImportInProgress", ""},
		"is half full": {func(w *world) { w.progress = &importer.Progress{Done: 1, Total: 3} },
			"ImportInProgress 33.33%; bound True Bound; running True Pod is running; ready False TransferRunning; nothing; event ImportInProgress", ""},
		"its total is not known": {func(w *world) { w.progress = &importer.Progress{Done: 1} },
			"ImportInProgress N/A; bound True Bound; running True Pod is running; ready False TransferRunning; nothing; event ImportInProgress", ""},
		"is more than full": {func(w *world) { w.progress = &importer.Progress{Done: 1 << 60, Total: 1} },
			"ImportInProgress 100.00%; bound True Bound; running True Pod is running; ready False TransferRunning; nothing; event ImportInProgress", ""},
		"has less than before": {func(w *world) {
			w.volume.Status.Progress, w.progress = "50.00%", &importer.Progress{Done: 1, Total: 3}
		}, "ImportInProgress 50.00%; bound True Bound; running True Pod is running; ready False TransferRunning; nothing; event ImportInProgress", ""},
		"began anew": {func(w *world) {
			w.volume.Status.Progress, w.progress = "50.00%", &importer.Progress{Done: 1, Total: 3, Anew: 1, AnewReason: "the file changed"}
		}, "ImportInProgress 33.33%; bound True Bound; running True Pod is running; ready False TransferRunning; nothing; event ImportInProgress; event ImportBeganAnew", "the file changed"},
		"crashed": {func(w *world) {
			c := &w.pod.Status.ContainerStatuses[0]
			c.State, c.RestartCount = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}, 4
			c.LastTerminationState.Terminated = ended(1, "Error", "no such host")
		}, "ImportInProgress N/A; bound True Bound; running False Error; ready False ; nothing; event ImportInProgress; event Error", "no such host"},
		"out of memory": {func(w *world) {
			w.pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: ended(137, "OOMKilled", "")}
		}, "ImportInProgress N/A; bound True Bound; running False Error; ready False ; nothing; event ImportInProgress; event Error", "OOMKilled"},
		"ended well": {func(w *world) { w.pod.Status.Phase = corev1.PodSucceeded },
			"  ; bound True Bound; running False Completed; ready none; fill claim", "Import Complete"},
		"the claim is filled": {func(w *world) {
			w.pod.Status.Phase, w.volume.Status.Phase = corev1.PodSucceeded, cdi.ImportInProgress
			w.claim.Annotations[cdi.PopulatedForAnnotation] = "data"
		}, "Succeeded 100.0%; bound True Bound; running False Completed; ready True ; nothing; event ImportSucceeded", ""},
		"the claim was adopted": {func(w *world) {
			w.volume.Spec, w.pod = cdi.DataVolumeSpec{}, nil
			w.claim.Annotations[cdi.PopulatedForAnnotation] = "data"
		}, "Succeeded 100.0%; bound True Bound; running False Completed; ready True ; nothing; event ImportSucceeded", ""},
		"is filled": {func(w *world) { w.volume.Status.Phase = cdi.Succeeded },
			"Succeeded ; bound none; running none; ready none; delete pod", ""},
		"is filled, and its claim is gone": {func(w *world) { w.volume.Status.Phase, w.claim, w.pod = cdi.Succeeded, nil, nil },
			"Succeeded ; bound none; running none; ready none; nothing", ""},
		"evicted": {func(w *world) {
			w.pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "disk pressure"}
		}, "ImportScheduled N/A; bound True Bound; running False Error; ready False ; delete pod; event Error; event ImportScheduled", "Evicted: disk pressure"},
		"evicted just now": {func(w *world) {
			w.pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
			w.pod.CreationTimestamp = metav1.NewTime(now)
		}, "  ; bound True Bound; running False Error; ready none; nothing; event Error", "Evicted"},
		"evicted in the future": {func(w *world) {
			w.pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
			w.pod.CreationTimestamp = metav1.NewTime(now.Add(time.Hour))
		}, "ImportScheduled N/A; bound True Bound; running False Error; ready False ; delete pod; event Error; event ImportScheduled", ""},
		"the pod goes": {func(w *world) { w.pod.DeletionTimestamp = &metav1.Time{Time: now} },
			"  ; bound True Bound; running False Pending; ready none; nothing", "made anew"},
		"another's pod": {func(w *world) { w.pod.OwnerReferences = nil },
			"PVCBound N/A; bound True Bound; running False ErrStartingPod; ready False ; nothing; event ErrStartingPod", "delete it"},
		"another's claim": {func(w *world) {
			w.claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "1", Controller: ptr.To(true)}}
			w.volume.Annotations = map[string]string{cdi.AdoptionAnnotation: "true"}
		}, "Pending N/A; bound False ErrClaimNotValid; running False ; ready False ; nothing; event ErrClaimNotValid", "StatefulSet db"},
		"nobody's claim": {func(w *world) { w.claim.OwnerReferences, w.claim.Annotations = nil, nil },
			"Pending N/A; bound False ErrClaimNotValid; running False ; ready False ; nothing; event ErrClaimNotValid", cdi.AdoptionAnnotation},
		"a claim that was not filled to the end": {func(w *world) {
			w.claim.OwnerReferences = nil
			w.volume.Annotations = map[string]string{cdi.AdoptionAnnotation: "true"}
		}, "Pending N/A; bound False ErrClaimNotValid; running False ; ready False ; nothing; event ErrClaimNotValid", "to the end"},
		"CDI's claim that was not filled to the end": {func(w *world) {
			w.claim.OwnerReferences, w.claim.Labels = nil, nil
			w.volume.Annotations = map[string]string{cdi.AdoptionAnnotation: "true"}
		}, "Pending N/A; bound False ErrClaimNotValid; running False ; ready False ; nothing; event ErrClaimNotValid", "to the end"},
		"CDI's claim to adopt": {func(w *world) {
			w.claim.OwnerReferences, w.claim.Labels = nil, nil
			w.claim.Annotations[cdi.PodPhaseAnnotation] = "Succeeded"
			w.volume.Annotations = map[string]string{cdi.AdoptionAnnotation: "true"}
		}, "Pending N/A; bound none; running False ; ready False ; adopt claim", ""},
		"another claim than the pod's": {func(w *world) { w.claim.UID, w.pod.Status.Phase = "another", corev1.PodSucceeded },
			"ImportScheduled N/A; bound True Bound; running False Pending; ready False ; delete pod; event ImportScheduled", "earlier claim's"},
		"a claim to adopt": {func(w *world) {
			w.claim.OwnerReferences, w.claim.Annotations = nil, nil
			w.volume.Annotations = map[string]string{cdi.AdoptionAnnotation: "true"}
		}, "Pending N/A; bound none; running False ; ready False ; adopt claim", ""},
		"a claim that is filled for it": {func(w *world) {
			w.claim.OwnerReferences, w.claim.Annotations = nil, map[string]string{cdi.PopulatedForAnnotation: "data"}
		}, "Pending N/A; bound none; running False ; ready False ; adopt claim", ""},
		"a claim that is filled for another": {func(w *world) {
			w.claim.OwnerReferences, w.claim.Annotations = nil, map[string]string{cdi.PopulatedForAnnotation: "other"}
		}, "Pending N/A; bound False ErrClaimNotValid; running False ; ready False ; nothing; event ErrClaimNotValid", ""},
		"an earlier one's claim": {func(w *world) { w.claim.OwnerReferences[0].UID = "earlier" },
			"Pending N/A; bound False Pending; running False ; ready False ; nothing", "earlier DataVolume"},
		"a source without a name": {func(w *world) {
			w.volume.Spec.Source, w.claim, w.pod = &cdi.DataVolumeSource{Snapshot: &cdi.DataVolumeSourceSnapshot{}}, nil, nil
		}, "Pending N/A; bound False ErrNotSupported; running False ; ready False ; nothing; event ErrNotSupported", "spec.source.snapshot"},
		"the storage fills it": {func(w *world) {
			w.volume.Spec.Source, w.pod = nil, nil
			w.volume.Spec.Storage.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
		}, "Succeeded 100.0%; bound True Bound; running False Completed; ready True ; nothing; event ImportSucceeded", ""},
		"the storage fills it for a pod": {func(w *world) {
			w.volume.Spec.Source, w.pod = nil, nil
			w.volume.Spec.Storage.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
			w.claim.Status.Phase, w.firstConsumer = corev1.ClaimPending, true
		}, "PendingPopulation N/A; bound False Pending; running False ; ready False ; nothing", ""},
		"too small": {func(w *world) {
			w.volume = volume(t, `{source: {blank: {}}, pvc: {resources: {requests: {storage: 1Mi}}}}`)
			w.claim, w.pod = bound(w.volume, "1Mi"), nil
		}, "PVCBound N/A; bound True Bound; running False Error; ready False ; nothing; event Error", "too small"},
	} {
		t.Run(name, func(t *testing.T) {
			w := usual(t)
			c.change(&w)
			before := w.volume.DeepCopy()
			s := decide(w)
			if got := told(s); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(c.want), " ") {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if text := fmt.Sprint(s.status.Conditions); !strings.Contains(text, c.says) {
				t.Errorf("%s does not say %q", text, c.says)
			}
			if !equality.Semantic.DeepEqual(before, w.volume) {
				t.Error("the DataVolume was changed")
			}
			settled(t, w, s)
		})
	}
}

// settled: with nothing changed, the same step comes again, and writes nothing and says nothing.
func settled(t *testing.T, w world, s step) {
	t.Helper()
	w.volume = w.volume.DeepCopy()
	w.volume.Status = s.status
	w.now = w.now.Add(time.Millisecond)
	if s.status.Phase == cdi.Succeeded {
		return
	}
	again := decide(w)
	if len(again.events) > 0 || !equality.Semantic.DeepEqual(again.status, s.status) && again.action != deletePod && again.action != deleteSourcePod {
		t.Errorf("the next step is %s\n%v\nafter\n%v", told(again), again.status, s.status)
	}
}

// TestStatusIsReadByWhoWaits: who waits for DataVolumes reads what is written.
func TestStatusIsReadByWhoWaits(t *testing.T) {
	w := usual(t)
	w.pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: ended(1, "Error", "404 Not Found")}
	w.volume.Status = decide(w).status
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w.volume)
	if err != nil {
		t.Fatal(err)
	}
	if p := datavolume.Of("data", &unstructured.Unstructured{Object: object}); !p.Failed || !strings.Contains(p.Message, "404 Not Found") {
		t.Errorf("%+v", p)
	}
}

// TestRestartsCountUpByOne: however often pods fail or vanish, the restarts count up by one each time.
func TestRestartsCountUpByOne(t *testing.T) {
	w := usual(t)
	for round := range int32(3) {
		w.volume.Status = decide(w).status // in progress
		w.pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
		w.now = w.now.Add(longestBackoff)
		s := decide(w)
		w.volume.Status = s.status
		if s.action != deletePod || s.status.RestartCount != round*2+1 {
			t.Fatalf("%s after %d restarts", told(s), s.status.RestartCount)
		}
		w.pod = nil
		if s = decide(w); s.action != makePod || s.restarts != round*2+1 {
			t.Fatalf("%s with %d restarts", told(s), s.restarts)
		}
		w.pod = usual(t).pod
		w.pod.Annotations[restartsAnnotation] = fmt.Sprint(s.restarts)
		w.volume.Status = decide(w).status
		w.pod = nil // somebody deleted it
		if s = decide(w); s.action != makePod || s.restarts != round*2+2 {
			t.Fatalf("%s with %d restarts", told(s), s.restarts)
		}
		w.pod = usual(t).pod
		w.pod.Annotations[restartsAnnotation] = fmt.Sprint(s.restarts)
		w.now = w.now.Add(time.Minute)
	}
}

func TestBackoff(t *testing.T) {
	last := time.Duration(0)
	for restarts := int32(-1); restarts < 40; restarts++ {
		pause := backoff(restarts)
		if pause < last || pause < firstBackoff || pause > longestBackoff {
			t.Errorf("after %d restarts: %s", restarts, pause)
		}
		last = pause
	}
}
