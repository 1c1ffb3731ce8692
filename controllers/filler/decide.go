package filler

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// world is all that the next step of a DataVolume depends on.
type world struct {
	volume *cdi.DataVolume
	// claim of the DataVolume's name, and pod of the name of its importer pod; nil if there is none.
	claim *corev1.PersistentVolumeClaim
	pod   *corev1.Pod
	// firstConsumer: the claim is not bound, and its storage class waits for the first pod.
	firstConsumer bool
	// lacks says why the claim can get no new volume: it has no storage class. Empty if it has one.
	lacks string
	// progress is what the importer said last, or nil.
	progress *importer.Progress
	// sources are the source pods that were made for a DataVolume of this name, of whatever namespace.
	sources []*corev1.Pod
	// origin is what the disk is copied from, or nil if it is no copy.
	origin *origin
	// moved is how far a copy is that has a place, and when it moved last.
	moved move
	now   time.Time
}

// action is a change of another object than the DataVolume. A step has at most one: the change brings
// the reconciler back.
type action int

const (
	nothing action = iota
	makeClaim
	// adoptClaim makes the DataVolume the controller of a claim that is there, and keeps in the claim
	// that it is filled.
	adoptClaim
	// fillClaim keeps in the claim that it is filled.
	fillClaim
	makePod
	deletePod
	// makeSource makes the source pod of a copy.
	makeSource
	// deleteSourcePod deletes the pod drop.
	deleteSourcePod
	// markClaim tells uploading clients in the claim how far the importer pod is.
	markClaim
)

// step is what is done next, and what the status is until then.
type step struct {
	action action
	status cdi.DataVolumeStatus
	events []notice
	// restarts of a pod that is made.
	restarts int32
	// serving is the source pod of a copy that is needed, and drop one that is deleted.
	serving, drop *corev1.Pod
	// marks are the annotations that markClaim writes.
	marks map[string]string
	// after is when the DataVolume is looked at again, even if nothing changes. 0 is never.
	after time.Duration
	now   metav1.Time
	// was is the status before the step.
	was *cdi.DataVolumeStatus
}

// notice is an event about the DataVolume.
type notice struct {
	kind, reason, note string
}

// Reasons of conditions and events, CDI's where CDI has one. The reasons that begin with Err are
// failures to who waits for the DataVolume: see datavolume.Of.
const (
	reasonClaimNotValid   = "ErrClaimNotValid"
	reasonClaimLost       = "ErrClaimLost"
	reasonNotSupported    = "ErrNotSupported"
	reasonStartingPod     = "ErrStartingPod"
	reasonError           = "Error"
	reasonImagePullFailed = "ImagePullFailed"
	reasonUnschedulable   = "Unschedulable"
	reasonBound           = "Bound"
	reasonPending         = "Pending"
	reasonNotFound        = "NotFound"
	reasonPodRunning      = "Pod is running"
	reasonTransfer        = "TransferRunning"
	reasonCompleted       = "Completed"
	reasonAnew            = "ImportBeganAnew"
)

// recheck is the pause before a DataVolume is looked at again whose obstacle is nobody's to report.
const recheck = 30 * time.Second

// decide says what becomes of a DataVolume. It is pure.
func decide(w world) step {
	s := step{status: *w.volume.Status.DeepCopy(), was: &w.volume.Status, now: metav1.NewTime(w.now)}
	s.next(w)
	s.release(w)
	return s
}

func (s *step) next(w world) {
	switch {
	case s.status.Phase == cdi.Succeeded:
		s.clean(w)
		return
	case w.claim == nil || has(w.volume, w.claim) && !filledFor(w.volume, w.claim):
		if errs := w.volume.Spec.Validate(); len(errs) > 0 {
			s.refuse(w, errs)
			return
		}
	}
	switch {
	case w.claim == nil && annotated(w.volume, cdi.FillsAnnotation):
		s.bound(corev1.ConditionFalse, reasonNotFound, "the claim that asked for an upload is gone, and the DataVolume goes with it")
		s.phase(w, cdi.Pending)
	case w.claim == nil && annotated(w.volume, cdi.PrePopulatedAnnotation):
		s.bound(corev1.ConditionFalse, reasonNotFound, fmt.Sprintf("the claim is to be brought by others, as the annotation %s says", cdi.PrePopulatedAnnotation))
		s.phase(w, cdi.Pending)
		s.after = recheck
	case w.claim == nil:
		s.bound(corev1.ConditionFalse, reasonNotFound, "No PVC found")
		s.phase(w, cdi.Pending)
		if s.mayMakeClaim(w) {
			s.action = makeClaim
		}
	case w.claim.DeletionTimestamp != nil:
		s.claimGoes(w)
	case !has(w.volume, w.claim):
		s.foreign(w)
	default:
		s.status.ClaimName = w.claim.Name
		s.own(w)
	}
}

func owns(volume *cdi.DataVolume, object metav1.Object) bool {
	return owner.Controls(cdi.DataVolumeGroupVersionKind.GroupKind(), volume, object)
}

// has says whether a claim is the DataVolume's to fill.
func has(volume *cdi.DataVolume, claim *corev1.PersistentVolumeClaim) bool {
	return owns(volume, claim) || answers(volume, claim)
}

// answers says whether a DataVolume is there for an upload into a claim that is not its own. Users can make such a
// DataVolume too: with another source it would write to a claim what the claim's maker did not ask for.
func answers(volume *cdi.DataVolume, claim *corev1.PersistentVolumeClaim) bool {
	return uploads(volume) && cdi.Fills(volume, claim)
}

// filledFor says whether a claim has the DataVolume's content already, whatever the source is. A claim that is not the
// DataVolume's own may have been filled by CDI, or under another name.
func filledFor(volume *cdi.DataVolume, claim *corev1.PersistentVolumeClaim) bool {
	return claim.Annotations[cdi.PopulatedForAnnotation] == volume.Name || answers(volume, claim) && !asks(claim) && claim.DeletionTimestamp == nil
}

// goesWithClaim says whether the DataVolume is deleted with a claim. It must not become a claim's owner: the claim would
// go with it.
func goesWithClaim(volume *cdi.DataVolume) bool {
	return slices.ContainsFunc(volume.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "PersistentVolumeClaim" })
}

// halfFilled says whether this controller, or CDI, made a claim and did not come to its end. Its
// DataVolume was deleted without it.
func halfFilled(claim *corev1.PersistentVolumeClaim) bool {
	// A populated claim is bound once it has its content.
	populated := claim.Spec.DataSourceRef != nil && claim.Status.Phase == corev1.ClaimBound
	return annotated(claim, cdi.CreatedForAnnotation) && !annotated(claim, cdi.PopulatedForAnnotation) &&
		claim.Annotations[cdi.PodPhaseAnnotation] != string(corev1.PodSucceeded) && !populated
}

// annotated says whether an object has an annotation, of whatever value: CDI does not look at it.
func annotated(object metav1.Object, key string) bool {
	_, ok := object.GetAnnotations()[key]
	return ok
}

// clean removes the importer pod of a DataVolume that needs it no more.
func (s *step) clean(w world) {
	if w.pod != nil && owns(w.volume, w.pod) && w.pod.DeletionTimestamp == nil {
		s.action = deletePod
	}
}

// refuse says which fields keep the DataVolume from being filled.
func (s *step) refuse(w world, errs field.ErrorList) {
	message := datavolume.Short(errs.ToAggregate().Error())
	s.event(w, cdi.Bound, corev1.EventTypeWarning, reasonNotSupported, message)
	s.bound(corev1.ConditionFalse, reasonNotSupported, message)
	s.phase(w, cdi.Pending)
	s.clean(w)
}

// claimGoes waits until a claim that is being deleted is gone. The importer pod would keep it.
func (s *step) claimGoes(w world) {
	message := fmt.Sprintf("PVC %s is being deleted, and is made anew", w.claim.Name)
	if annotated(w.volume, cdi.FillsAnnotation) {
		message = fmt.Sprintf("PVC %s is being deleted, and the DataVolume goes with it", w.claim.Name)
	}
	s.bound(corev1.ConditionFalse, reasonPending, message)
	s.phase(w, cdi.Pending)
	s.after = recheck
	s.clean(w)
}

// foreign deals with a claim that the DataVolume does not control.
func (s *step) foreign(w world) {
	name := w.claim.Name
	c := metav1.GetControllerOfNoCopy(w.claim)
	adopted := strings.EqualFold(w.volume.Annotations[cdi.AdoptionAnnotation], "true") || filledFor(w.volume, w.claim)
	switch {
	case datavolume.Left(w.claim):
		s.bound(corev1.ConditionFalse, reasonPending, fmt.Sprintf("PVC %s is deleted with an earlier DataVolume of this name, and is made anew", name))
		s.after = recheck
	case c != nil:
		s.invalid(w, fmt.Sprintf("PVC %s belongs to %s %s: choose another name, or remove the DataVolume to use the claim as it is", name, c.Kind, c.Name))
	case halfFilled(w.claim):
		s.invalid(w, fmt.Sprintf("PVC %s was made for an earlier DataVolume, which did not fill it to the end: delete the claim, or choose another name", name))
	case goesWithClaim(w.volume):
		s.invalid(w, fmt.Sprintf("PVC %s is not, or no longer, the claim that asked for this upload: delete the DataVolume; the claim stays as it is", name))
	case !adopted:
		s.invalid(w, fmt.Sprintf("PVC %s is there already: choose another name, or set the annotation %s to \"true\" to take the claim over as it is", name, cdi.AdoptionAnnotation))
	default:
		s.action = adoptClaim
	}
	s.phase(w, cdi.Pending)
	if annotated(w.volume, cdi.FillsAnnotation) && s.action == nothing {
		s.clean(w) // the claim's user took the claim back, and the pod holds it
	}
}

func (s *step) invalid(w world, message string) {
	message = datavolume.Short(message)
	s.event(w, cdi.Bound, corev1.EventTypeWarning, reasonClaimNotValid, message)
	s.bound(corev1.ConditionFalse, reasonClaimNotValid, message)
	s.after = recheck
}

// own deals with the DataVolume's claim.
func (s *step) own(w world) {
	claim := w.claim
	if claim.Status.Phase == corev1.ClaimBound {
		s.bound(corev1.ConditionTrue, reasonBound, fmt.Sprintf("PVC %s Bound", claim.Name))
	} else {
		s.bound(corev1.ConditionFalse, reasonPending, fmt.Sprintf("PVC %s Pending", claim.Name))
	}
	if filledFor(w.volume, claim) {
		s.succeed(w)
		return
	}
	if w.lacks != "" {
		s.bound(corev1.ConditionFalse, datavolume.ReasonNoClass, w.lacks)
	}
	populated := storageFills(w)
	immediate := annotated(w.volume, cdi.ImmediateBindingAnnotation)
	switch {
	case claim.Status.Phase == corev1.ClaimLost:
		message := fmt.Sprintf("PVC %s lost", claim.Name)
		s.event(w, cdi.Bound, corev1.EventTypeWarning, reasonClaimLost, message)
		s.bound(corev1.ConditionFalse, reasonClaimLost, message)
		s.phase(w, cdi.Failed)
	case populated && claim.Status.Phase == corev1.ClaimBound:
		s.succeed(w)
	case populated && w.firstConsumer:
		s.phase(w, cdi.PendingPopulation)
	case claim.Status.Phase == corev1.ClaimBound, !populated && w.pod != nil, !populated && w.firstConsumer && immediate:
		s.fill(w)
	case w.firstConsumer:
		s.phase(w, cdi.WaitForFirstConsumer)
	case populated && w.copies():
		s.phase(w, cloningPhase(claim))
		s.after = recheck
	default:
		// A class may come, or its binding mode may not be known yet.
		s.phase(w, cdi.Pending)
		s.after = recheck
	}
}

// fill follows the importer pod of a claim.
func (s *step) fill(w world) {
	if w.copies() && !s.source(w) {
		return
	}
	pod := w.pod
	switch {
	case pod == nil && diskBytes(w.volume, w.claim) <= 0:
		s.stopped(w, reasonError, fmt.Sprintf("PVC %s is too small for a disk and its file system", w.claim.Name))
		s.phase(w, cdi.PVCBound)
	case pod == nil:
		s.restarts = s.status.RestartCount
		began := inProgress(s.status.Phase)
		if began { // somebody deleted the pod
			s.restarts = min(s.restarts+1, maxRestarts)
		}
		s.action = makePod
		if !began || uploads(w.volume) {
			s.phase(w, cdi.ImportScheduled)
		}
	case !owns(w.volume, pod):
		s.stopped(w, reasonStartingPod, fmt.Sprintf("a pod %s that is not this DataVolume's is in the way of its importer: delete it", pod.Name))
		s.phase(w, cdi.PVCBound)
		s.after = recheck
	case pod.DeletionTimestamp != nil:
		s.running(corev1.ConditionFalse, reasonPending, fmt.Sprintf("pod %s is being deleted, and is made anew", pod.Name))
		s.after = recheck
	case pod.Annotations[claimAnnotation] != string(w.claim.UID):
		s.running(corev1.ConditionFalse, reasonPending, fmt.Sprintf("pod %s is an earlier claim's, and is made anew", pod.Name))
		s.phase(w, cdi.ImportScheduled)
		s.action = deletePod
	default:
		s.followPod(w)
	}
}

// followPod takes over what the kubelet and the importer say.
func (s *step) followPod(w world) {
	defer s.mark(w)
	pod := w.pod
	s.status.RestartCount = max(s.status.RestartCount, restartsOf(pod))
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		s.complete(w)
		s.action = fillClaim
	case corev1.PodFailed:
		s.again(w)
	case corev1.PodRunning:
		s.phase(w, cdi.ImportInProgress)
		if reason, message := failure(pod); reason != "" {
			s.stopped(w, reason, message)
			return
		}
		s.advance(w)
	default:
		s.phase(w, cdi.ImportScheduled)
		if reason, message := obstacle(pod); reason == reasonImagePullFailed || reason == reasonStartingPod {
			s.stopped(w, reason, message)
		} else {
			s.running(corev1.ConditionFalse, reason, message)
		}
	}
}

// again makes a pod anew that a node has rejected or evicted, after a pause that grows.
func (s *step) again(w world) {
	_, message := failure(w.pod)
	if message == "" {
		message = strings.TrimPrefix(w.pod.Status.Reason+": "+w.pod.Status.Message, ": ")
	}
	s.stopped(w, reasonError, fmt.Sprintf("pod %s failed: %s", w.pod.Name, message))
	left := backoff(s.status.RestartCount) - w.now.Sub(endOf(w.pod, w.now))
	// This clock may have been set back since the pod ended.
	if left > 0 && left <= longestBackoff {
		s.after = left
		return
	}
	s.status.RestartCount = min(s.status.RestartCount+1, maxRestarts)
	s.phase(w, cdi.ImportScheduled)
	s.action = deletePod
}

// advance takes over the importer's progress. The percentage falls only if the import began anew.
func (s *step) advance(w world) {
	message := ""
	if old := s.status.Condition(cdi.Running); old != nil && old.Status == corev1.ConditionTrue {
		message = old.Message
	}
	anew := false
	if p := w.progress; p != nil && p.Anew > 0 {
		reason, what := anewOf(w.volume)
		told := datavolume.Short(fmt.Sprintf("%s (%d times since restart %d): %s", what, p.Anew, s.status.RestartCount, p.AnewReason))
		if anew = told != message; anew {
			message = told
			s.events = append(s.events, notice{corev1.EventTypeWarning, reason, told})
		}
	}
	s.running(corev1.ConditionTrue, reasonPodRunning, message)
	s.ready(corev1.ConditionFalse, reasonTransfer, "")
	if w.progress == nil {
		return
	}
	percent, known := w.progress.Percent()
	if before, counted := percentOf(s.status.Progress); known && (!counted || percent > before || anew) {
		s.status.Progress = cdi.DataVolumeProgress(fmt.Sprintf("%.2f%%", percent))
	} else if anew && !known && uploads(w.volume) {
		s.status.Progress = cdi.ProgressUnknown // nothing is sent now
	}
}

func percentOf(progress cdi.DataVolumeProgress) (percent float64, ok bool) {
	_, err := fmt.Sscanf(string(progress), "%f%%", &percent)
	return percent, err == nil
}

// succeed ends the import.
func (s *step) succeed(w world) {
	s.complete(w)
	s.ready(corev1.ConditionTrue, "", "")
	s.phase(w, cdi.Succeeded)
	s.status.Progress = cdi.ProgressDone
}

func (s *step) complete(w world) {
	message := "Import Complete"
	if w.copies() {
		message = "Clone Complete"
	}
	s.running(corev1.ConditionFalse, reasonCompleted, message)
}

// announcement is CDI's event of a phase that the DataVolume enters, or nothing.
func announcement(w world, phase cdi.DataVolumePhase) (reason, note string) {
	if w.copies() {
		return w.origin.announcement(w.volume, phase)
	}
	notes := map[cdi.DataVolumePhase]string{cdi.ImportScheduled: "Import into %s scheduled", cdi.ImportInProgress: "Import into %s in progress",
		cdi.UploadScheduled: "Upload into %s scheduled", cdi.UploadReady: "Upload into %s ready",
		cdi.Succeeded: "Successfully imported into PVC %s"}
	if note = notes[phase]; note == "" {
		return "", ""
	}
	if reason = string(phase); phase == cdi.Succeeded {
		reason = "ImportSucceeded"
	}
	return reason, fmt.Sprintf(note, w.volume.Name)
}

// phase changes the phase, with an event of the new phase.
func (s *step) phase(w world, phase cdi.DataVolumePhase) {
	phase = phaseOf(w, phase)
	if reason, note := announcement(w, phase); note != "" && w.volume.Status.Phase != phase {
		s.events = append(s.events, notice{corev1.EventTypeNormal, reason, note})
	}
	s.status.Phase = phase
	if s.status.Progress == "" {
		s.status.Progress = cdi.ProgressUnknown
	}
	for _, missing := range []cdi.DataVolumeConditionType{cdi.Ready, cdi.Running} {
		if s.status.Condition(missing) == nil {
			s.set(missing, corev1.ConditionFalse, "", "")
		}
	}
}

// stopped says why nothing is being imported.
func (s *step) stopped(w world, reason, message string) {
	message = datavolume.Short(message)
	s.event(w, cdi.Running, corev1.EventTypeWarning, reason, message)
	s.running(corev1.ConditionFalse, reason, message)
}

// event adds an event of a condition that is new.
func (s *step) event(w world, of cdi.DataVolumeConditionType, kind, reason, message string) {
	if old := w.volume.Status.Condition(of); old == nil || old.Reason != reason || old.Message != message {
		s.events = append(s.events, notice{kind, reason, message})
	}
}

func (s *step) bound(status corev1.ConditionStatus, reason, message string) {
	s.set(cdi.Bound, status, reason, message)
	if status != corev1.ConditionTrue {
		s.ready(corev1.ConditionFalse, "", "")
	}
}

func (s *step) running(status corev1.ConditionStatus, reason, message string) {
	s.set(cdi.Running, status, reason, message)
}

func (s *step) ready(status corev1.ConditionStatus, reason, message string) {
	s.set(cdi.Ready, status, reason, message)
}

// set sets a condition. Its times change by what it was before the step, even if it is set twice.
func (s *step) set(of cdi.DataVolumeConditionType, status corev1.ConditionStatus, reason, message string) {
	var one cdi.DataVolumeStatus
	if before := s.was.Condition(of); before != nil {
		one.Conditions = []cdi.DataVolumeCondition{*before}
	}
	one.SetCondition(cdi.DataVolumeCondition{Type: of, Status: status, Reason: reason, Message: message}, s.now)
	if c := s.status.Condition(of); c != nil {
		*c = one.Conditions[0]
	} else {
		s.status.Conditions = append(s.status.Conditions, one.Conditions[0])
	}
}
