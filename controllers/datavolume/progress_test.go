package datavolume

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func volume(phase, percent string, conditions ...any) *unstructured.Unstructured {
	status := map[string]any{"conditions": conditions}
	for name, value := range map[string]string{"phase": phase, "progress": percent} {
		if value != "" {
			status[name] = value
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{"status": status}}
}

func beingDeleted(u *unstructured.Unstructured) *unstructured.Unstructured {
	u.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1000, 0)})
	return u
}

func condition(kind, status, reason, message string) any {
	return map[string]any{"type": kind, "status": status, "reason": reason, "message": message}
}

func TestProgressByPhaseOfADataVolume(t *testing.T) {
	for want, volume := range map[string]*unstructured.Unstructured{
		"done":                              volume("Succeeded", "100.0%"),
		"waits: does not exist":             nil,
		"waits: is new":                     volume("", ""),
		"waits: is ImportInProgress, 12.3%": volume("ImportInProgress", "12.3%", condition("Running", "True", "Pod is running", "")),
		"waits: waits for its image: virtctl image-upload dv data":                                      volume("UploadReady", "N/A", condition("Running", "True", "Pod is running", "")),
		"waits: is UploadReady, 12.3%":                                                                  volume("UploadReady", "12.3%"),
		"failed: is UploadScheduled, N/A, and is tried again after a failure: Error, a backing file":    volume("UploadScheduled", "N/A", condition("Running", "False", "Error", "a backing file")),
		"unbound: waits for the first pod":                                                              volume("WaitForFirstConsumer", "N/A"),
		"failed: data failed":                                                                           volume("Failed", ""),
		"failed: data failed: Error, no such host":                                                      volume("Failed", "", condition("Running", "False", "Error", "no such host")),
		"failed: is ImportScheduled, N/A, and is tried again after a failure: ImagePullFailed, gone":    volume("ImportScheduled", "N/A", condition("Running", "False", "ImagePullFailed", "gone")),
		"failed: data is new, and is tried again after a failure: ErrClaimNotValid, no accessMode":      volume("", "", condition("Bound", "False", "ErrClaimNotValid", "no accessMode")),
		"failed: is ImportScheduled, and is tried again after a failure: ErrStartingPod":                volume("ImportScheduled", "", condition("Running", "False", "ErrStartingPod", "")),
		"failed: ErrExceededQuota":                                                                      volume("Pending", "", condition("Bound", "Unknown", "ErrExceededQuota", "")),
		"waits: is CloneInProgress, 12.3%":                                                              volume("CloneInProgress", "12.3%", condition("Running", "True", "Pod is running", "")),
		"waits: is Pending: StorageClassNotFound, PVC x names the StorageClass y, which does not exist": volume("Pending", "", condition("Bound", "False", ReasonNoClass, "PVC x names the StorageClass y, which does not exist")),
		"waits: is CloneScheduled, N/A: CloneSourceInUse, pod x":                                        volume("CloneScheduled", "N/A", condition("Running", "False", "CloneSourceInUse", "pod x")),
		"waits: is Pending, N/A: SnapshotNotReady, not ready":                                           volume("Pending", "N/A", condition("Running", "False", "SnapshotNotReady", "not ready")),
		"failed: CloneValidationFailed, too large":                                                      volume("CloneScheduled", "N/A", condition("Running", "False", "CloneValidationFailed", "too large")),
		"waits: is Bound":                              volume("Bound", "", condition("Bound", "True", "ErrExceededQuota", "")),
		"waits: is being deleted":                      beingDeleted(volume("Succeeded", "")),
		"waits: is Pending":                            volume("Pending", "", condition("Bound", "False", "Pending", "")),
		"waits: is ImportInProgress":                   volume("ImportInProgress", "", condition("Running", "False", "Completed", ""), "nonsense", nil),
		"waits: is " + strings.Repeat("x", 1024) + "…": volume(strings.Repeat("x", 4000), ""),
	} {
		p := Of("data", volume)
		got := "waits"
		switch {
		case p.Done:
			got = "done"
		case p.Failed:
			got = "failed"
		case p.Unbound:
			got = "unbound"
		}
		if kind, words, _ := strings.Cut(want, ": "); got != kind || !strings.Contains(p.Message, words) {
			t.Errorf("%s: %q, want %s", got, p.Message, want)
		}
	}
	if p := Of("data", volume("PendingPopulation", "")); !p.Done {
		t.Errorf("a claim that is filled for its first pod: %+v", p)
	}
}
