package filler

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// TestClaimAsksForUploadUntilFilled: a claim asks for an upload until it is filled, and only if nothing else fills it.
func TestClaimAsksForUploadUntilFilled(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.PersistentVolumeClaim)
		want   bool
	}{
		"made for an upload": {func(*corev1.PersistentVolumeClaim) {}, true},
		"made for no upload": {func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil }, false},
		"a DataVolume's": {func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = claimOf(volume(t, uploaded)).OwnerReferences
		}, false},
		"filled":            {func(c *corev1.PersistentVolumeClaim) { c.Annotations[cdi.PopulatedForAnnotation] = "data" }, false},
		"filled by CDI":     {func(c *corev1.PersistentVolumeClaim) { c.Annotations[cdi.PodPhaseAnnotation] = "Succeeded" }, false},
		"being deleted":     {func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, false},
		"its pod has begun": {func(c *corev1.PersistentVolumeClaim) { c.Annotations[cdi.PodPhaseAnnotation] = "Running" }, true},
	} {
		claim := askingClaim()
		c.change(claim)
		if got := asks(claim); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		v := volumeFor(claim)
		if fills := cdi.Fills(v, claim); fills != made(claim) {
			t.Errorf("%s: its DataVolume fills it: %v", name, fills)
		}
		if errs := v.Spec.Validate(); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

func askingClaim() *corev1.PersistentVolumeClaim {
	claim := goldenClaim("1Gi")
	claim.Name, claim.Namespace, claim.UID, claim.OwnerReferences = "data", "ns", "claim-uid", nil
	claim.Annotations = map[string]string{cdi.UploadTargetAnnotation: ""}
	return claim
}

// TestDataVolumeFillsOnlyItsOwnClaim: a DataVolume writes to no claim but the one that it was made for.
func TestDataVolumeFillsOnlyItsOwnClaim(t *testing.T) {
	w := uploading(t)
	w.claim = askingClaim()
	w.volume = volumeFor(w.claim)
	w.claim.Status.Phase, w.pod = corev1.ClaimBound, nil
	if s := decide(w); s.action != makePod || s.status.Phase != cdi.UploadScheduled {
		t.Errorf("%+v", s)
	}
	w.claim.UID = "another"
	if s := decide(w); s.action != nothing || !strings.Contains(s.status.Condition(cdi.Bound).Message, "asked for this upload") {
		t.Errorf("another claim of the name: %+v", s)
	}
	w.claim = nil
	if s := decide(w); s.action != nothing || !strings.Contains(s.status.Condition(cdi.Bound).Message, "goes with it") {
		t.Errorf("the claim is gone: %+v", s)
	}
}

// TestNamedClaimIsFilledOnlyByUpload: a DataVolume that names a claim writes to it only by an upload, and only if the claim is not filled.
func TestNamedClaimIsFilledOnlyByUpload(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   string
	}{
		"filled by CDI":             {func(w *world) { w.claim.Annotations[cdi.PodPhaseAnnotation] = "Succeeded" }, "Succeeded"},
		"filled under another name": {func(w *world) { w.claim.Annotations[cdi.PopulatedForAnnotation] = "earlier" }, "Succeeded"},
		"filled by another source":  {func(w *world) { w.volume.Spec.Source = volume(t, blank).Spec.Source }, "Pending"},
	} {
		w := uploading(t)
		w.claim = askingClaim()
		w.volume = volumeFor(w.claim)
		w.claim.Status.Phase, w.pod = corev1.ClaimBound, nil
		c.change(&w)
		if s := decide(w); s.action != nothing || string(s.status.Phase) != c.want {
			t.Errorf("%s: %s", name, told(s))
		}
	}
}

// TestFillingEndsWhenTheClaimIsAnothers: when a claim is not the DataVolume's to fill any more, the importer pod goes, and the claim does not
// become the DataVolume's: the DataVolume goes with a claim, and would take this one along.
func TestFillingEndsWhenTheClaimIsAnothers(t *testing.T) {
	w := uploading(t)
	w.claim = askingClaim()
	w.volume = volumeFor(w.claim)
	w.volume.UID = "uid-of-volume"
	w.claim.Status.Phase = corev1.ClaimBound
	w.pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(w.volume, cdi.DataVolumeGroupVersionKind)}
	delete(w.claim.Annotations, cdi.UploadTargetAnnotation)
	if s := decide(w); s.action != deletePod {
		t.Errorf("its importer pod stays: %s", told(s))
	}
	w.claim.UID, w.pod, w.claim.Annotations = "another", nil, map[string]string{cdi.PopulatedForAnnotation: "data"}
	if s := decide(w); s.action != nothing {
		t.Errorf("another claim of the name, which is filled: %s", told(s))
	}
}

// asked: a claim that asks for an upload gets a DataVolume, which is filled and does not own the claim.
func asked(p *plane) {
	ctx := context.Background()
	p.MustApply(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: bare, namespace: default, annotations: {cdi.kubevirt.io/storage.upload.target: ""}}
spec: {accessModes: [ReadWriteOnce], storageClassName: manual, resources: {requests: {storage: 64Mi}}}
`)
	v := there(p, "bare", &cdi.DataVolume{})
	claim := p.bind("bare")
	p.is("bare", cdi.UploadScheduled, "PVC bare Bound")
	p.pod("bare", corev1.PodRunning, running(), 0)
	p.importers.say(podName("bare"), importer.Progress{})
	p.is("bare", cdi.UploadReady, "Pod is running")
	p.marked("bare", "Running true")
	p.DeleteLater(&cdi.DataVolume{}, "bare") // it is made again, as the claim still asks
	p.Until(func() string { return string(there(p, "bare", &cdi.DataVolume{}).UID) }, func(uid string) bool { return uid != string(v.UID) })
	p.kill("default", podName("bare")) // no garbage collector runs here
	p.pod("bare", corev1.PodRunning, running(), 0)
	p.is("bare", cdi.UploadReady, "Pod is running")
	p.pod("bare", corev1.PodSucceeded, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}, 0)
	p.is("bare", cdi.Succeeded, "100.0%")
	p.marked("bare", "Succeeded false")
	if claim = get(p, "bare", claim); metav1.GetControllerOfNoCopy(claim) != nil || claim.Annotations[cdi.PopulatedForAnnotation] != "bare" {
		p.t.Errorf("%+v", claim.ObjectMeta)
	}
	p.Delete(&cdi.DataVolume{}, "bare")
	time.Sleep(time.Second) // a filled claim asks no more
	if err := p.Client.Get(ctx, client.ObjectKeyFromObject(claim), &cdi.DataVolume{}); !apierrors.IsNotFound(err) {
		p.t.Errorf("the DataVolume of a filled claim: %v", err)
	}
	p.DeleteLater(&corev1.PersistentVolumeClaim{}, "bare")
}
