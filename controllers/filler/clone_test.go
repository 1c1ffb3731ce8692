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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// copying is a world in the middle of a copy.
func copying(t *testing.T) world {
	t.Helper()
	w := usual(t)
	w.volume = volume(t, ofGolden)
	w.claim = bound(w.volume, "2Gi")
	w.origin = &origin{at: types.NamespacedName{Namespace: "golden", Name: "debian"}, claim: goldenClaim("1Gi")}
	source, err := sourcePodOf(w.volume, w.origin.claim, testConfig)
	if err != nil {
		t.Fatal(err)
	}
	source.UID, source.CreationTimestamp, source.Status = "uid-of-source", w.pod.CreationTimestamp, *w.pod.Status.DeepCopy()
	source.Status.PodIP = "10.0.0.7"
	w.origin.pods = []*corev1.Pod{source}
	status := w.pod.Status
	if w.pod, err = podOf(w.volume, w.claim, testConfig, 0); err != nil {
		t.Fatal(err)
	}
	w.pod.UID, w.pod.CreationTimestamp, w.pod.Status = "uid-of-pod", source.CreationTimestamp, status
	w.origin.bind(w.pod, source)
	return w
}

const (
	copyWaits  = "CloneScheduled N/A; bound True Bound; running False %s; ready False ; %s"
	copyRuns   = "CloneInProgress N/A; bound True Bound; running True Pod is running; ready False TransferRunning; nothing; event CloneInProgress"
	copyBegins = "CloneScheduled N/A; bound True Bound; running False ; ready False ; %s; event CloneScheduled"
)

func TestDecideCopies(t *testing.T) {
	none := func(w *world) { w.pod, w.origin.pods = nil, nil }
	noClaim := func(w *world) { none(w); w.claim = nil }
	for name, c := range map[string]struct {
		change func(*world)
		want   string
		says   string // in some condition or event
	}{
		"a new one": {noClaim, "Pending N/A; bound False NotFound; running False ; ready False ; make claim", ""},
		"a new one, without its source": {func(w *world) { noClaim(w); w.origin.claim = nil },
			"Pending N/A; bound False NotFound; running False CloneWithoutSource; ready False ; nothing; event CloneWithoutSource", "golden/debian doesn't exist"},
		"a new one of a source in use": {func(w *world) { noClaim(w); w.origin.user = "db-0" },
			"Pending N/A; bound False NotFound; running False ; ready False ; make claim", ""},
		"a new one of a source in use, which the storage clones": {func(w *world) { noClaim(w); w.origin.user, w.origin.cloned = "db-0", true },
			"Pending N/A; bound False NotFound; running False CloneSourceInUse; ready False ; nothing; event CloneSourceInUse", "Pod db-0 uses"},
		"the storage clones": {func(w *world) {
			none(w)
			w.claim.Spec.DataSource, w.claim.Status.Phase = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "debian"}, corev1.ClaimPending
		}, "CSICloneInProgress N/A; bound False Pending; running False ; ready False ; nothing; event CSICloneInProgress", ""},
		"the storage has cloned": {func(w *world) {
			none(w)
			w.claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "debian"}
		}, "Succeeded 100.0%; bound True Bound; running False Completed; ready True ; nothing; event CloneSucceeded", "Successfully cloned from golden/debian into ns/data"},
		"the storage clones for a pod": {func(w *world) {
			none(w)
			w.claim.Spec.DataSource, w.claim.Status.Phase = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "debian"}, corev1.ClaimPending
			w.firstConsumer = true
		}, "PendingPopulation N/A; bound False Pending; running False ; ready False ; nothing", ""},
		"waits for a pod": {func(w *world) { none(w); w.claim.Status.Phase, w.firstConsumer = corev1.ClaimPending, true },
			"WaitForFirstConsumer N/A; bound False Pending; running False ; ready False ; nothing", ""},
		"waits for a pod, and has a source pod": {func(w *world) { w.pod = nil; w.claim.Status.Phase, w.firstConsumer = corev1.ClaimPending, true },
			"WaitForFirstConsumer N/A; bound False Pending; running False ; ready False ; delete source", ""},
		"bound": {none, fmt.Sprintf(copyBegins, "make source"), "Cloning from golden/debian into ns/data scheduled"},
		"the source pod starts": {func(w *world) {
			w.pod, w.origin.pods[0].Status = nil, corev1.PodStatus{Phase: corev1.PodPending}
		}, fmt.Sprintf(copyWaits, "Pending", "nothing; event CloneScheduled"), "source pod golden/importer-source-uid-of-data"},
		"the source pod cannot be scheduled": {func(w *world) {
			w.pod, w.origin.pods[0].Status = nil, corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes"}}}
		}, fmt.Sprintf(copyWaits, "Unschedulable", "nothing; event CloneScheduled"), "0/1 nodes"},
		"the source pod runs": {func(w *world) { w.pod = nil }, fmt.Sprintf(copyBegins, "make pod"), ""},
		"runs":                {func(*world) {}, copyRuns, "Cloning from golden/debian into ns/data in progress"},
		"is half full": {func(w *world) { w.progress = &importer.Progress{Done: 1, Total: 2} },
			strings.Replace(copyRuns, "N/A", "50.00%", 1), ""},
		"the source pod crashes": {func(w *world) {
			w.origin.pods[0].Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: ended(1, "Error", "no disk.img")}
		}, "  ; bound True Bound; running False Error; ready none; nothing; event Error", "source pod golden/importer-source-uid-of-data: no disk.img"},
		"the source pod was evicted, and the importer waits": {func(w *world) { w.origin.pods[0].Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"} },
			"CloneScheduled N/A; bound True Bound; running False ImportBeganAnew; ready none; delete pod; event ImportBeganAnew", "lost its source pod"},
		"the source pod was evicted": {func(w *world) {
			w.pod, w.origin.pods[0].Status = nil, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "disk pressure"}
		}, fmt.Sprintf(copyWaits, "Error", "delete source; event Error; event CloneScheduled"), "Evicted: disk pressure"},
		"the source pod was evicted just now": {func(w *world) {
			w.pod, w.origin.pods[0].Status = nil, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
			w.origin.pods[0].CreationTimestamp = metav1.NewTime(now)
		}, "  ; bound True Bound; running False Error; ready none; nothing; event Error", "Evicted"},
		"the source pod is gone": {func(w *world) { w.origin.pods = nil },
			"CloneScheduled N/A; bound True Bound; running False ImportBeganAnew; ready none; delete pod; event ImportBeganAnew", ""},
		"the source pod goes": {func(w *world) { w.pod, w.origin.pods[0].DeletionTimestamp = nil, &metav1.Time{Time: now} },
			"  ; bound True Bound; running False Pending; ready none; nothing", "made anew"},
		"the importer is another source pod's": {func(w *world) { w.pod.Annotations[sourcePodAnnotation] = "earlier" },
			"CloneScheduled N/A; bound True Bound; running False ImportBeganAnew; ready none; delete pod; event ImportBeganAnew", ""},
		"another source claim": {func(w *world) { w.origin.claim.UID = "another" },
			"CloneScheduled N/A; bound True Bound; running False ImportBeganAnew; ready none; delete pod; event ImportBeganAnew", ""},
		"another source claim, after the importer": {func(w *world) { w.origin.claim.UID, w.pod = "another", nil },
			"  ; bound True Bound; running False Pending; ready none; delete source", "an earlier source's"},
		"another source claim, after the source pod": {func(w *world) {
			w.origin.claim.UID, w.pod, w.origin.pods[0].DeletionTimestamp = "another", nil, &metav1.Time{Time: now}
		}, "  ; bound True Bound; running False Pending; ready none; nothing", ""},
		"the DataSource leads elsewhere now": {func(w *world) { w.origin.at.Namespace, w.origin.claim.Namespace = "other", "other" },
			"CloneScheduled N/A; bound True Bound; running False ImportBeganAnew; ready none; delete pod; event ImportBeganAnew", ""},
		"the source is in use": {func(w *world) { none(w); w.origin.user = "db-0" },
			fmt.Sprintf(copyWaits, "CloneSourceInUse", "nothing; event CloneSourceInUse; event CloneScheduled"), "Pod db-0 uses the source PVC golden/debian"},
		"the source is used in the middle": {func(w *world) { w.origin.user, w.volume.Status.Progress = "db-0", "50.00%" },
			fmt.Sprintf(copyWaits, "CloneSourceInUse", "delete pod; event CloneSourceInUse; event CloneScheduled"), "Pod db-0 uses"},
		"the source is used, and the importer goes": {func(w *world) {
			w.origin.user, w.pod.DeletionTimestamp = "db-0", &metav1.Time{Time: now}
		}, fmt.Sprintf(copyWaits, "CloneSourceInUse", "delete source; event CloneSourceInUse; event CloneScheduled"), ""},
		"the source is used at the end": {func(w *world) { w.origin.user, w.pod.Status.Phase = "db-0", corev1.PodSucceeded },
			fmt.Sprintf(copyWaits, "CloneSourceInUse", "delete pod; event CloneSourceInUse; event CloneScheduled"), ""},
		"the source is not filled": {func(w *world) {
			none(w)
			w.origin.claim.Annotations = map[string]string{cdi.CreatedForAnnotation: "x"}
		}, fmt.Sprintf(copyWaits, "ImportPVCNotReady", "nothing; event ImportPVCNotReady; event CloneScheduled"), "not fully imported"},
		"the source is not bound": {func(w *world) { none(w); w.origin.claim.Status.Phase = corev1.ClaimPending },
			fmt.Sprintf(copyWaits, "ImportPVCNotReady", "nothing; event ImportPVCNotReady; event CloneScheduled"), "not bound"},
		"the source is being deleted": {func(w *world) { w.origin.claim.DeletionTimestamp = &metav1.Time{Time: now} },
			fmt.Sprintf(copyWaits, "CloneWithoutSource", "delete pod; event CloneWithoutSource; event CloneScheduled"), "being deleted"},
		"the source is larger": {func(w *world) {
			none(w)
			w.origin.claim.Spec.VolumeMode, w.origin.claim.Status.Capacity = ptr.To(corev1.PersistentVolumeBlock), goldenClaim("3Gi").Status.Capacity
		}, fmt.Sprintf(copyWaits, "CloneValidationFailed", "nothing; event CloneValidationFailed; event CloneScheduled"), "3221225472"},
		"nobody was asked": {func(w *world) {
			none(w)
			w.origin.trouble = notice{corev1.EventTypeWarning, reasonErrNotAuthorized, "nobody has asked"}
		}, fmt.Sprintf(copyWaits, "ErrNotAuthorized", "nothing; event ErrNotAuthorized; event CloneScheduled"), "nobody has asked"},
		"ended well": {func(w *world) { w.pod.Status.Phase = corev1.PodSucceeded },
			"  ; bound True Bound; running False Completed; ready none; fill claim", "Clone Complete"},
		"ended well, and the source is gone": {func(w *world) {
			w.pod.Status.Phase, w.origin.pods, w.origin.claim = corev1.PodSucceeded, nil, nil
		}, "  ; bound True Bound; running False Completed; ready none; fill claim", ""},
		"ended well, of another source": {func(w *world) { w.pod.Status.Phase, w.origin.claim.UID = corev1.PodSucceeded, "another" },
			"CloneScheduled N/A; bound True Bound; running False ImportBeganAnew; ready none; delete pod; event ImportBeganAnew", ""},
		"a pod that ended well copied nothing": {func(w *world) {
			w.pod.Status.Phase = corev1.PodSucceeded
			delete(w.pod.Annotations, sourceAnnotation)
			delete(w.pod.Annotations, sourcePodAnnotation)
		}, "CloneScheduled N/A; bound True Bound; running False ImportBeganAnew; ready none; delete pod; event ImportBeganAnew", ""},
		"is filled": {func(w *world) { w.volume.Status.Phase = cdi.Succeeded },
			"Succeeded ; bound none; running none; ready none; delete pod", ""},
		"is filled, and has a source pod": {func(w *world) { w.volume.Status.Phase, w.pod = cdi.Succeeded, nil },
			"Succeeded ; bound none; running none; ready none; delete source", ""},
		"an earlier DataVolume's source pod": {func(w *world) {
			w.origin.pods = append(w.origin.pods, w.origin.pods[0].DeepCopy())
			w.origin.pods[1].Labels[forLabel], w.origin.pods[1].Name = "earlier", sourcePodPrefix+"earlier"
		}, strings.Replace(copyRuns, "nothing", "delete source", 1), ""},
		"another's pod is in the way": {func(w *world) { w.pod.OwnerReferences, w.origin.pods = nil, nil },
			"PVCBound N/A; bound True Bound; running False ErrStartingPod; ready False ; nothing; event ErrStartingPod", "delete it"},
	} {
		t.Run(name, func(t *testing.T) {
			w := copying(t)
			c.change(&w)
			before := w.volume.DeepCopy()
			s := decide(w)
			if got := told(s); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(c.want), " ") {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if text := fmt.Sprint(s.status.Conditions, s.events); !strings.Contains(text, c.says) {
				t.Errorf("%s does not say %q", text, c.says)
			}
			if !equality.Semantic.DeepEqual(before, w.volume) {
				t.Error("the DataVolume was changed")
			}
			if s.action == deleteSourcePod && (s.drop == nil || s.drop == s.serving) {
				t.Errorf("%v is deleted", s.drop)
			}
			settled(t, w, s)
		})
	}
}

// TestPausesGrowWhileTheSourceIsInUse: a source in use is looked at again after a pause that grows.
func TestPausesGrowWhileTheSourceIsInUse(t *testing.T) {
	w := copying(t)
	w.origin.user = "db-0"
	last := time.Duration(0)
	for range 100 {
		s := decide(w)
		if s.after < max(last, firstPause) || s.after > longestPause {
			t.Fatalf("after %s the pause is %s", last, s.after)
		}
		last, w.volume.Status = s.after, s.status
		w.now = w.now.Add(s.after)
	}
	if last != longestPause {
		t.Errorf("the pause grows to %s", last)
	}
}

// TestWaitingCopyIsNoFailure: who waits for a DataVolume reads what a copy waits for, and that it is no failure.
func TestWaitingCopyIsNoFailure(t *testing.T) {
	for reason, failed := range map[string]bool{reasonCloneSourceInUse: false, reasonCloneWithoutSource: false, reasonSourceNotReady: false, reasonCloneStalled: false,
		reasonCloneInvalid: true, reasonErrNotAuthorized: true} {
		w := copying(t)
		w.origin.trouble = notice{corev1.EventTypeWarning, reason, "words"}
		w.volume.Status = decide(w).status
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w.volume)
		if err != nil {
			t.Fatal(err)
		}
		if p := datavolume.Of("data", &unstructured.Unstructured{Object: object}); p.Failed != failed || p.Done || !strings.Contains(p.Message, "words") {
			t.Errorf("%s: %+v", reason, p)
		}
	}
}

// TestCopyHasRoomForTheWholeDisk: the new claim has room for the whole disk, in every pair of modes.
func TestCopyHasRoomForTheWholeDisk(t *testing.T) {
	const gi = 1 << 30
	block := ptr.To(corev1.PersistentVolumeBlock)
	for name, c := range map[string]struct {
		spec   string
		from   *corev1.PersistentVolumeMode
		cloned bool
		want   int64
	}{
		"file to file":             {`{source: {pvc: {name: x}}, storage: {}}`, nil, false, gi},
		"block to block":           {`{source: {pvc: {name: x}}, storage: {volumeMode: Block}}`, block, false, 2 * gi},
		"block to file":            {`{source: {pvc: {name: x}}, storage: {}}`, block, false, withOverhead(2 * gi)},
		"file to block":            {`{source: {pvc: {name: x}}, storage: {volumeMode: Block}}`, nil, false, gi},
		"a size":                   {`{source: {pvc: {name: x}}, storage: {resources: {requests: {storage: 4Gi}}}}`, nil, false, withOverhead(4 * gi)},
		"cloned by the storage":    {`{source: {pvc: {name: x}}, storage: {resources: {requests: {storage: 4Gi}}}}`, nil, true, withOverhead(4 * gi)},
		"cloned, of a small size":  {`{source: {pvc: {name: x}}, storage: {resources: {requests: {storage: 1Mi}}}}`, nil, true, 2 * gi},
		"cloned, of no size":       {`{source: {pvc: {name: x}}, storage: {}}`, nil, true, 2 * gi},
		"cloned as the claim says": {`{source: {pvc: {name: x}}, pvc: {resources: {requests: {storage: 3Gi}}}}`, nil, true, 3 * gi},
	} {
		o := &origin{at: types.NamespacedName{Namespace: "ns", Name: "x"}, claim: goldenClaim("1Gi"), cloned: c.cloned}
		o.claim.Spec.VolumeMode, o.claim.Status.Capacity = c.from, goldenClaim("2Gi").Status.Capacity
		v := volume(t, c.spec)
		claim := claimOf(v)
		o.shape(claim)
		size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		if size.Value() != c.want || (claim.Spec.DataSource != nil) != c.cloned || c.cloned && *claim.Spec.StorageClassName != "fast" {
			t.Errorf("%s: %s, want %d bytes", name, claim.Spec.String(), c.want)
		}
		claim.Status.Capacity = claim.Spec.Resources.Requests
		if bytes := diskBytes(v, claim); c.from != nil && bytes < 2*gi || bytes <= 0 {
			t.Errorf("%s: the disk has %d bytes", name, bytes)
		}
	}
}

// TestCopyOfADeviceHasRoomInAFileSystem: a copy without a size, from a device into a file system, has room for the device.
func TestCopyOfADeviceHasRoomInAFileSystem(t *testing.T) {
	for _, bytes := range []int64{1 << 20, 64 << 20, 1 << 30, 1<<30 + 4096, 10<<30 + 512, 1e9, 5e9, 1e10, 123456789, 3 << 40, 1e12} {
		v := volume(t, `{source: {pvc: {name: debian, namespace: golden}}, storage: {}}`)
		for _, fromBlock := range []bool{true, false} {
			for _, toBlock := range []bool{true, false} {
				src := goldenClaim(fmt.Sprint(bytes))
				disk := bytes
				if fromBlock {
					src.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
				} else { // a DataVolume of so many bytes made the source
					disk = roundUp(bytes)
					q := *bytesPtr(withOverhead(disk))
					src.Spec.Resources.Requests[corev1.ResourceStorage], src.Status.Capacity = q, corev1.ResourceList{corev1.ResourceStorage: q}
				}
				if toBlock {
					v.Spec.Storage.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
				} else {
					v.Spec.Storage.VolumeMode = ptr.To(corev1.PersistentVolumeFilesystem)
				}
				claim := claimOf(v)
				o := &origin{claim: src}
				o.shape(claim)
				claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, claim.Spec.Resources.Requests
				if got := diskBytes(v, claim); got < disk {
					t.Errorf("block %v to block %v: a disk of %d bytes gets %d", fromBlock, toBlock, disk, got)
				}
			}
		}
	}
}

func bytesPtr(n int64) *quantity { q := bytesOf(n); return &q }

// TestCopyOfASourceInUseIsNotTakenWhileItsPodGoes: the importer pod was deleted because the source was in use at its
// end. It is not believed when the source is free again.
func TestCopyOfASourceInUseIsNotTakenWhileItsPodGoes(t *testing.T) {
	w := copying(t)
	w.pod.Status.Phase, w.origin.user = corev1.PodSucceeded, "db-0"
	if s := decide(w); s.action != deletePod {
		t.Fatalf("%s", told(s))
	}
	w.pod.DeletionTimestamp, w.origin.user = &metav1.Time{Time: now}, ""
	if s := decide(w); s.action == fillClaim || s.status.Phase == cdi.Succeeded {
		t.Errorf("%s", told(s))
	}
	w.origin.pods = nil // nor is another source pod made before it has gone
	if s := decide(w); s.action != nothing {
		t.Errorf("without its source pod: %s", told(s))
	}
}
