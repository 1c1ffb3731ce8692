package filler

import (
	corev1 "k8s.io/api/core/v1"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
)

// An upload is a source that a client brings. virtctl image-upload waits for the phase UploadReady, or
// for the claim's annotation cdi.PodReadyAnnotation. Then it sends the image to virt-api (package
// apiserver/upload), which passes it on to the importer. At last virtctl waits until the claim's
// annotation cdi.PodPhaseAnnotation is Succeeded.

// uploads says whether a client brings the DataVolume's content.
func uploads(volume *cdi.DataVolume) bool {
	return volume.Spec.Source != nil && volume.Spec.Source.Upload != nil
}

// reasonBrokenOff is the event of an upload whose client went away, or whose image was refused.
const reasonBrokenOff = "UploadFailed"

// takes says whether the importer takes an image: it answers. An importer that has answered before, and
// has not started again since, only has not been asked again, such as after a start of virt-controller.
func takes(w world) bool {
	if w.pod == nil || w.pod.Status.Phase != corev1.PodRunning {
		return false
	}
	if c := containerOf(w.pod); c == nil || c.State.Running == nil {
		return false
	}
	before := &w.volume.Status
	return w.progress != nil || before.Phase == cdi.UploadReady && before.RestartCount >= restartsOf(w.pod)
}

// anewOf is the reason of the event, and the words, for an import that began anew.
func anewOf(volume *cdi.DataVolume) (reason, what string) {
	if uploads(volume) {
		return reasonBrokenOff, "The upload broke off"
	}
	return reasonAnew, "The import began anew"
}

// forUpload marks the claim of an upload that is made. Without the mark, virtctl refuses to send the image again
// into a claim that is there.
func forUpload(volume *cdi.DataVolume, annotations map[string]string) {
	for _, key := range []string{cdi.PodPhaseAnnotation, cdi.PodReadyAnnotation} {
		delete(annotations, key) // this controller says so of a claim
	}
	if uploads(volume) {
		annotations[cdi.UploadTargetAnnotation] = ""
	}
}

// mark has the claim of an upload say how far the importer pod is, unless there is something else to do.
func (s *step) mark(w world) {
	if !uploads(w.volume) || s.action != nothing || w.pod == nil {
		return
	}
	ready := "false"
	if s.status.Phase == cdi.UploadReady {
		ready = "true"
	}
	want := map[string]string{cdi.PodPhaseAnnotation: string(w.pod.Status.Phase), cdi.PodReadyAnnotation: ready}
	for key, value := range want {
		if w.claim.Annotations[key] != value {
			s.action, s.marks = markClaim, want
			return
		}
	}
}
