package filler

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/internal/importer"
)

const uploaded = `{source: {upload: {}}, storage: {resources: {requests: {storage: 1Gi}}}}`

// uploading is the world of an upload whose importer pod runs.
func uploading(t *testing.T) world {
	t.Helper()
	w := usual(t)
	w.volume = volume(t, uploaded)
	w.claim = bound(w.volume, "2Gi")
	return w
}

func marked(w *world, phase, ready string) {
	w.claim.Annotations[cdi.PodPhaseAnnotation], w.claim.Annotations[cdi.PodReadyAnnotation] = phase, ready
}

func TestDecideUpload(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   string
		marks  string // the claim's phase and readiness
	}{
		"bound": {func(w *world) { w.pod = nil },
			"UploadScheduled N/A; bound True Bound; running False ; ready False ; make pod; event UploadScheduled", ""},
		"the pod is to start": {func(w *world) { w.pod.Status.Phase = corev1.PodPending },
			"UploadScheduled N/A; bound True Bound; running False Pending; ready False ; mark claim; event UploadScheduled", "Pending false"},
		"the pod runs, and does not answer yet": {func(*world) {},
			"UploadScheduled N/A; bound True Bound; running True Pod is running; ready False TransferRunning; mark claim; event UploadScheduled", "Running false"},
		"the importer answers": {func(w *world) { w.progress = &importer.Progress{} },
			"UploadReady N/A; bound True Bound; running True Pod is running; ready False TransferRunning; mark claim; event UploadReady", "Running true"},
		"the claim says so": {func(w *world) { w.progress = &importer.Progress{}; marked(w, "Running", "true") },
			"UploadReady N/A; bound True Bound; running True Pod is running; ready False TransferRunning; nothing; event UploadReady", ""},
		"an image is on its way": {func(w *world) {
			w.volume.Status.Phase, w.progress = cdi.UploadReady, &importer.Progress{Done: 1, Total: 4}
			marked(w, "Running", "true")
		}, "UploadReady 25.00%; bound True Bound; running True Pod is running; ready False TransferRunning; nothing", ""},
		"it broke off": {func(w *world) {
			w.volume.Status.Phase, w.volume.Status.Progress = cdi.UploadReady, "25.00%"
			w.progress = &importer.Progress{Anew: 1, AnewReason: "the client is gone"}
			marked(w, "Running", "true")
		}, "UploadReady N/A; bound True Bound; running True Pod is running; ready False TransferRunning; nothing; event UploadFailed", ""},
		"another virt-controller has not asked yet": {func(w *world) {
			w.volume.Status.Phase, w.volume.Status.Progress = cdi.UploadReady, "25.00%"
			marked(w, "Running", "true")
		}, "UploadReady 25.00%; bound True Bound; running True Pod is running; ready False TransferRunning; nothing", ""},
		"the importer has started again": {func(w *world) {
			w.volume.Status.Phase, w.volume.Status.Progress = cdi.UploadReady, "25.00%"
			w.pod.Status.ContainerStatuses[0].RestartCount = 1
			marked(w, "Running", "true")
		}, "UploadScheduled 25.00%; bound True Bound; running True Pod is running; ready False TransferRunning; mark claim; event UploadScheduled", "Running false"},
		"the image was refused": {func(w *world) {
			w.volume.Status.Phase = cdi.UploadReady
			w.pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: ended(1, "Error", "the image has a backing file")}
			w.progress = &importer.Progress{}
			marked(w, "Running", "true")
		}, "UploadScheduled N/A; bound True Bound; running False Error; ready False ; mark claim; event UploadScheduled; event Error", "Running false"},
		"somebody deleted the pod": {func(w *world) { w.volume.Status.Phase, w.pod = cdi.UploadReady, nil },
			"UploadScheduled N/A; bound True Bound; running False ; ready False ; make pod; event UploadScheduled", ""},
		"ended well": {func(w *world) { w.pod.Status.Phase = corev1.PodSucceeded },
			"  ; bound True Bound; running False Completed; ready none; fill claim", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := uploading(t)
			c.change(&w)
			s := decide(w)
			if got := told(s); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(c.want), " ") {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if got := strings.TrimSpace(s.marks[cdi.PodPhaseAnnotation] + " " + s.marks[cdi.PodReadyAnnotation]); got != c.marks {
				t.Errorf("the claim is marked %q, want %q", got, c.marks)
			}
			settled(t, w, s)
		})
	}
}

// TestUploadClaimIsWhatVirtctlLooksFor: virtctl finds in the claim what it looks for, and nobody says that it is filled already.
func TestUploadClaimIsWhatVirtctlLooksFor(t *testing.T) {
	v := volume(t, uploaded)
	v.Annotations = map[string]string{cdi.PodPhaseAnnotation: "Succeeded", cdi.PodReadyAnnotation: "true"}
	annotations := claimOf(v).Annotations
	if _, ok := annotations[cdi.UploadTargetAnnotation]; !ok || annotations[cdi.PodPhaseAnnotation] != "" || annotations[cdi.PodReadyAnnotation] != "" {
		t.Errorf("%v", annotations)
	}
	w := uploading(t)
	if a := filled(w); a[cdi.PopulatedForAnnotation] != "data" || a[cdi.PodPhaseAnnotation] != "Succeeded" || a[cdi.PodReadyAnnotation] != "false" {
		t.Errorf("%v", a)
	}
	if a := filled(usual(t)); len(a) != 1 {
		t.Errorf("of another source: %v", a)
	}
}
