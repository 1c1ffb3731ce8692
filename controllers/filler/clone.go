package filler

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
)

// Reasons of a copy that waits, CDI's where CDI has one.
const (
	reasonCloneSourceInUse   = "CloneSourceInUse"
	reasonCloneWithoutSource = "CloneWithoutSource"
	reasonCloneInvalid       = "CloneValidationFailed"
	reasonCloneManyPods      = "CloneSourceHasManyPods"
	reasonSourceNotReady     = "ImportPVCNotReady"
	reasonSnapshotNotReady   = "SnapshotNotReady"
	reasonErrNotAuthorized   = "ErrNotAuthorized"
	reasonCloneTurn          = "CloneWaitsForOthers"
	reasonCloneStalled       = "CloneStalled"
)

// firstPause and longestPause bound the pause before the source of a copy is looked at again.
const (
	firstPause   = 2 * time.Second
	longestPause = 30 * time.Second
)

// copies says whether importer and source pods copy another claim, or the storage does, or restores a snapshot.
func (w *world) copies() bool { return w.origin != nil }

// storageFills says whether the storage fills the DataVolume's claim.
func storageFills(w world) bool {
	return w.volume.Spec.Claim().Populated() || w.copies() && w.claim.Spec.DataSource != nil
}

// cloningPhase is the phase of a copy that the storage makes.
func cloningPhase(claim *corev1.PersistentVolumeClaim) cdi.DataVolumePhase {
	if claim.Spec.DataSource != nil && claim.Spec.DataSource.Kind == snapshotKind {
		return cdi.CloneFromSnapshotSourceInProgress
	}
	return cdi.CSICloneInProgress
}

// waits says why the claim cannot be copied now, or nothing.
func (o *origin) waits() notice {
	warning := func(reason, format string, args ...any) notice {
		return notice{corev1.EventTypeWarning, reason, fmt.Sprintf(format, args...)}
	}
	switch claim := o.claim; {
	case o.trouble.reason != "":
		return o.trouble
	case o.snapshot != nil:
		return notice{}
	case claim == nil:
		return warning(reasonCloneWithoutSource, "The source pvc %s doesn't exist", o.at)
	case claim.DeletionTimestamp != nil:
		return warning(reasonCloneWithoutSource, "The source pvc %s is being deleted", o.at)
	case claim.Status.Phase != corev1.ClaimBound:
		return warning(reasonSourceNotReady, "The source PVC %s is not bound", o.at)
	case halfFilled(claim):
		return warning(reasonSourceNotReady, "The source PVC %s is not fully imported", o.at)
	case o.unknown != "":
		return warning(reasonCloneManyPods, "It is not known whether a pod writes to the source PVC %s: %s", o.at, o.unknown)
	case o.user != "":
		return warning(reasonCloneSourceInUse, "Pod %s uses the source PVC %s, and may write to it", o.user, o.at)
	}
	return notice{}
}

// mayMakeClaim says whether the DataVolume's claim can be made. The source must be there, and filled. It may
// be in use, unless making the claim is the copy.
func (s *step) mayMakeClaim(w world) bool {
	if !w.copies() {
		return true
	}
	why := w.origin.waits()
	if why.reason == "" || why.reason == reasonCloneSourceInUse && !w.origin.cloned {
		return true
	}
	s.wait(w, why)
	s.phase(w, cdi.Pending)
	return false
}

// source deals with the source of a copy, and says whether the importer pod is to be made or followed.
// The two pods of a copy live and die together, so that no importer goes on with another source.
func (s *step) source(w world) bool {
	if w.copied() && w.origin.user == "" && w.origin.unknown == "" {
		s.serving = w.origin.pod(w.volume)
		return true
	}
	why := w.origin.waits()
	if why.reason == "" {
		if small := w.origin.tooSmall(diskBytes(w.volume, w.claim)); small != "" {
			why = notice{corev1.EventTypeWarning, reasonCloneInvalid, small}
		}
	}
	if why.reason != "" {
		s.wait(w, why)
		s.phase(w, cdi.ImportScheduled)
		return false
	}
	if w.pod != nil && !owns(w.volume, w.pod) {
		return true // fill says so
	}
	if s.rests(w) {
		s.phase(w, cdi.ImportScheduled)
		return false
	}
	s.after = useEvery
	return s.serve(w)
}

// copied says whether the importer pod has copied the claim that is the source now, or that was the source
// before it went. A pod that is being deleted may have been found to have copied a source in use. Something may keep it
// for ever, too, and then the copy loses its place as one that stands still.
func (w *world) copied() bool {
	o, pod := w.origin, w.pod
	return pod != nil && owns(w.volume, pod) && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodSucceeded &&
		pod.Annotations[claimAnnotation] == string(w.claim.UID) && pod.Annotations[sourceAnnotation] != "" &&
		(o.claim == nil || pod.Annotations[sourceAnnotation] == string(o.claim.UID))
}

// serve sees to it that the source pod runs, and says whether it does.
func (s *step) serve(w world) bool {
	pod, live := w.origin.pod(w.volume), w.pod != nil && w.pod.DeletionTimestamp == nil
	s.serving = pod
	switch {
	case live && (pod == nil || pod.DeletionTimestamp != nil || over(pod) || w.pod.Annotations[sourcePodAnnotation] != string(pod.UID)):
		s.stopped(w, reasonAnew, fmt.Sprintf("pod %s has lost its source pod, and is made anew", w.pod.Name))
		s.beginAnew()
		s.action = deletePod
	case pod == nil && len(w.origin.pods) > 0: // the new one may have the name of an earlier one
		s.running(corev1.ConditionFalse, reasonPending, fmt.Sprintf("source pod %s is an earlier source's, and is deleted", fullName(w.origin.pods[0])))
	case pod == nil && w.pod != nil && !live: // two importer pods of one name cannot be
		s.running(corev1.ConditionFalse, reasonPending, fmt.Sprintf("pod %s is being deleted, and is made anew", w.pod.Name))
		s.after = recheck
	case pod == nil:
		s.phase(w, cdi.ImportScheduled)
		s.action = makeSource
	case pod.DeletionTimestamp != nil:
		s.running(corev1.ConditionFalse, reasonPending, fmt.Sprintf("source pod %s is being deleted, and is made anew", pod.Name))
	case over(pod):
		s.serveAgain(w, pod)
	default:
		return s.serves(w, pod)
	}
	return false
}

// over says whether a pod has ended.
func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// serves says whether the importer can be made or followed, or else what the source pod waits for.
func (s *step) serves(w world, pod *corev1.Pod) bool {
	reason, message := failure(pod)
	if reason == "" && pod.Status.Phase != corev1.PodRunning {
		reason, message = obstacle(pod)
	}
	if reason == "" {
		return true
	}
	if message = strings.TrimSuffix(fmt.Sprintf("source pod %s: %s", fullName(pod), message), ": "); reason == reasonError || reason == reasonImagePullFailed || reason == reasonStartingPod {
		s.stopped(w, reason, message)
	} else {
		s.running(corev1.ConditionFalse, reason, datavolume.Short(message))
	}
	if w.pod == nil {
		s.phase(w, cdi.ImportScheduled)
	}
	return false
}

// fullName is a pod's name with its namespace.
func fullName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// serveAgain makes a source pod anew that a node has rejected or evicted, after a pause that grows.
func (s *step) serveAgain(w world, pod *corev1.Pod) {
	_, message := failure(pod)
	if message == "" {
		message = strings.Trim(pod.Status.Reason+": "+pod.Status.Message, ": ")
	}
	s.stopped(w, reasonError, strings.TrimSuffix(fmt.Sprintf("source pod %s ended: %s", fullName(pod), message), ": "))
	left := backoff(s.status.RestartCount) - w.now.Sub(endOf(pod, w.now))
	// This clock may have been set back since the pod ended.
	if left > 0 && left <= longestBackoff {
		s.after = left
		return
	}
	s.status.RestartCount = min(s.status.RestartCount+1, maxRestarts)
	s.phase(w, cdi.ImportScheduled)
	s.action, s.drop, s.serving = deleteSourcePod, pod, nil
}

// wait says why a copy waits. The copy begins anew afterwards.
func (s *step) wait(w world, why notice) {
	s.after = s.pause(w, why.reason)
	if s.stopped(w, why.reason, why.note); w.pod != nil || len(w.origin.pods) > 0 {
		s.beginAnew()
	}
	s.clean(w)
}

// pause returns how long a copy waits until its next attempt: the longer, the longer it has waited.
func (s *step) pause(w world, reason string) time.Duration {
	old := w.volume.Status.Condition(cdi.Running)
	if old == nil || old.Reason != reason {
		return firstPause
	}
	return min(max(w.now.Sub(old.LastHeartbeatTime.Time)/2, firstPause), longestPause)
}

// beginAnew forgets how much was copied.
func (s *step) beginAnew() {
	s.status.Phase = cdi.CloneScheduled
	s.status.Progress = cdi.ProgressUnknown
}

// release deletes a source pod that nobody needs, such as one of an earlier DataVolume of this name.
// Nothing else deletes it.
func (s *step) release(w world) {
	if s.action != nothing {
		return
	}
	pods := w.sources
	if w.copies() {
		pods = w.origin.pods
	}
	for _, pod := range pods {
		if pod != s.serving && pod.DeletionTimestamp == nil {
			s.action, s.drop = deleteSourcePod, pod
			return
		}
	}
}

// phaseOf is the phase of a copy that an import would be in.
func phaseOf(w world, phase cdi.DataVolumePhase) cdi.DataVolumePhase {
	switch {
	case w.copies() && phase == cdi.ImportScheduled:
		return cdi.CloneScheduled
	case w.copies() && phase == cdi.ImportInProgress:
		return cdi.CloneInProgress
	case uploads(w.volume) && phase == cdi.ImportInProgress && takes(w):
		// CDI has no phase of its own for an upload that is on its way, and clients know none.
		return cdi.UploadReady
	case uploads(w.volume) && (phase == cdi.ImportScheduled || phase == cdi.ImportInProgress):
		return cdi.UploadScheduled
	}
	return phase
}

// scheduled and inProgress say how far an import, a copy or an upload is.
func scheduled(p cdi.DataVolumePhase) bool {
	return p == cdi.ImportScheduled || p == cdi.CloneScheduled || p == cdi.UploadScheduled
}
func inProgress(p cdi.DataVolumePhase) bool {
	return p == cdi.ImportInProgress || p == cdi.CloneInProgress || p == cdi.UploadReady
}

// announcement is CDI's event of a phase that a copy enters, or nothing.
func (o *origin) announcement(volume *cdi.DataVolume, phase cdi.DataVolumePhase) (reason, note string) {
	of := map[cdi.DataVolumePhase]string{cdi.CloneScheduled: "Cloning from %s into %s/%s scheduled", cdi.CloneInProgress: "Cloning from %s into %s/%s in progress",
		cdi.CSICloneInProgress: "CSI Volume clone in progress (for pvc %s)", cdi.CloneFromSnapshotSourceInProgress: "Restoring snapshot %s in progress", cdi.Succeeded: "Successfully cloned from %s into %s/%s"}[phase]
	from := o.at.String()
	if ref := volume.Spec.SourceRef; o.at.Name == "" && ref != nil {
		from = fmt.Sprintf("DataSource %s/%s", cmp.Or(ptr.Deref(ref.Namespace, ""), volume.Namespace), ref.Name)
	}
	switch {
	case of == "":
		return "", ""
	case phase == cdi.CSICloneInProgress, phase == cdi.CloneFromSnapshotSourceInProgress:
		return string(phase), fmt.Sprintf(of, from)
	case phase == cdi.Succeeded:
		return "CloneSucceeded", fmt.Sprintf(of, from, volume.Namespace, volume.Name)
	}
	return string(phase), fmt.Sprintf(of, from, volume.Namespace, volume.Name)
}
