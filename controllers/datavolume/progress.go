// Package datavolume makes DataVolumes, which CDI or package filler fills, and tells how far they are. They are never watched:
// the cluster may get or lose CDI's kinds at any time.
package datavolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// ErrNoCDI means that the cluster lacks CDI's kinds.
var ErrNoCDI = errors.New("CDI is not installed: the cluster has no DataVolumes (cdi.kubevirt.io/v1beta1); install CDI, or have Kubeqemu fill DataVolumes (config/datavolumes)")

// Get reads a DataVolume. It returns nil if there is none of that name, and ErrNoCDI if there can
// be none.
func Get(ctx context.Context, live client.Reader, key types.NamespacedName) (*unstructured.Unstructured, error) {
	return get(ctx, live, "DataVolume", key)
}

func get(ctx context.Context, live client.Reader, kind string, key types.NamespacedName) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(v1.DataVolumeGroupVersionKind.GroupVersion().WithKind(kind))
	err := live.Get(ctx, key, object)
	switch {
	case meta.IsNoMatchError(err):
		return nil, ErrNoCDI
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get %s %s: %w", kind, key.Name, err)
	}
	return object, nil
}

// State is what is known of the disk of a name: its DataVolume, or without one, the claim of that
// name. A DataVolume may have a megabyte, so only this is kept of it.
type State struct {
	// Volume is the DataVolume's metadata, or nil.
	Volume *metav1.ObjectMeta
	// Progress is the DataVolume's.
	Progress Progress
	// Claim is the claim's metadata, or nil. With a DataVolume, nobody asks for the claim.
	Claim *metav1.ObjectMeta
	// NoCDI means that there can be no DataVolume.
	NoCDI bool
}

// collectedAnnotation of a claim says that CDI deleted the claim's DataVolume after it filled the
// claim. CDI before 1.61 does so by default.
const collectedAnnotation = "cdi.kubevirt.io/garbageCollected"

// Collected says whether the claim needs no DataVolume any more.
func (s *State) Collected() bool {
	return s.Claim != nil && s.Claim.Annotations[collectedAnnotation] == "true"
}

// Named is a DataVolume of which only the name is set.
func Named(key types.NamespacedName) *unstructured.Unstructured {
	volume := &unstructured.Unstructured{}
	volume.SetGroupVersionKind(v1.DataVolumeGroupVersionKind)
	volume.SetNamespace(key.Namespace)
	volume.SetName(key.Name)
	return volume
}

// Look reads the state of a disk.
func Look(ctx context.Context, live client.Reader, key types.NamespacedName) (State, error) {
	volume, err := Get(ctx, live, key)
	noCDI := errors.Is(err, ErrNoCDI)
	if err != nil && !noCDI {
		return State{}, err
	}
	if volume != nil {
		return State{Progress: Of(key.Name, volume), Volume: &metav1.ObjectMeta{Name: key.Name, UID: volume.GetUID(),
			OwnerReferences: volume.GetOwnerReferences(), DeletionTimestamp: volume.GetDeletionTimestamp()}}, nil
	}
	claim := &metav1.PartialObjectMetadata{}
	claim.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	switch err := live.Get(ctx, key, claim); {
	case apierrors.IsNotFound(err):
		return State{NoCDI: noCDI}, nil
	case err != nil:
		return State{}, fmt.Errorf("get PersistentVolumeClaim %s: %w", key.Name, err)
	}
	return State{Claim: &claim.ObjectMeta, NoCDI: noCDI}, nil
}

// Nobody tells when a DataVolume changes. So what waits for a DataVolume looks again after a pause.
const (
	SoonestLook = 5 * time.Second
	latestLook  = time.Minute
)

// Pause is the pause of what has waited for a DataVolume: a tenth of the time waited, within bounds.
func Pause(waited time.Duration) time.Duration {
	return min(max(waited/10, SoonestLook), latestLook)
}

// Progress is how far a DataVolume is.
type Progress struct {
	// Done means that the claim's disk may be used.
	Done bool
	// Failed means that the claim could not be filled. Unless the DataVolume's phase is Failed, it is
	// tried again.
	Failed bool
	// Unbound means that a pod must use the claim before it is filled.
	Unbound bool
	Message string
}

// Of returns the progress of a DataVolume. A nil volume does not exist. It is pure.
func Of(name string, volume *unstructured.Unstructured) Progress {
	if volume == nil {
		return Progress{Message: fmt.Sprintf("DataVolume %s, which owns the claim, does not exist, and nobody can say whether the claim is filled", name)}
	}
	if volume.GetDeletionTimestamp() != nil {
		return Progress{Message: fmt.Sprintf("DataVolume %s is being deleted", name)}
	}
	phase, _, _ := unstructured.NestedString(volume.Object, "status", "phase")
	percent, _, _ := unstructured.NestedString(volume.Object, "status", "progress")
	switch phase {
	// PendingPopulation: the volume is filled for its first pod, whose start waits for that.
	case "Succeeded", "PendingPopulation":
		return Progress{Done: true}
	case "WaitForFirstConsumer":
		return Progress{Unbound: true, Message: fmt.Sprintf("DataVolume %s waits for the first pod of its claim", name)}
	}
	why := trouble(volume)
	switch {
	// Nobody has begun to send the image, or it broke off.
	case phase == "UploadReady" && why == "" && (percent == "" || percent == "N/A"):
		return Progress{Message: fmt.Sprintf("DataVolume %s waits for its image: virtctl image-upload dv %s --no-create", name, name)}
	case phase == "Failed" && why == "":
		return Progress{Failed: true, Message: fmt.Sprintf("DataVolume %s failed", name)}
	case phase == "Failed":
		return Progress{Failed: true, Message: fmt.Sprintf("DataVolume %s failed: %s", name, why)}
	case phase == "":
		phase = "new"
	}
	if percent != "" {
		phase += ", " + Short(percent)
	}
	if why != "" {
		return Progress{Failed: true, Message: fmt.Sprintf("DataVolume %s is %s, and is tried again after a failure: %s", name, Short(phase), why)}
	}
	message := fmt.Sprintf("DataVolume %s is %s", name, Short(phase))
	if why := waiting(volume); why != "" {
		message += ": " + why
	}
	return Progress{Message: message}
}

// ReasonNoClass of the condition Bound says that the claim's StorageClass does not exist, or that it names none and there is no default.
const ReasonNoClass = "StorageClassNotFound"

// waiting is what a copy, or a claim, waits for, in words, or empty.
func waiting(volume *unstructured.Unstructured) string {
	return first(volume, func(kind, status, reason string) bool {
		if kind == "Bound" && status != "True" && reason == ReasonNoClass {
			return true
		}
		return kind == "Running" && status == "False" && slices.Contains([]string{
			"CloneSourceInUse", "CloneWithoutSource", "CloneSourceHasManyPods", "CloneWaitsForOthers", "CloneStalled",
			"ImportPVCNotReady", "SnapshotNotReady"}, reason)
	})
}

// trouble is why a DataVolume is not being filled, or empty.
func trouble(volume *unstructured.Unstructured) string {
	return first(volume, func(kind, status, reason string) bool {
		// Error, ErrStartingPod, ErrExceededQuota, ErrClaimNotValid and their like.
		broken := strings.HasPrefix(reason, "Err") || reason == "ImagePullFailed" || reason == "CloneValidationFailed"
		return broken && (kind == "Running" && status == "False" || kind == "Bound" && status != "True")
	})
}

// first is the reason and the message of the first condition that is meant, or empty.
func first(volume *unstructured.Unstructured, meant func(kind, status, reason string) bool) string {
	conditions, _, _ := unstructured.NestedSlice(volume.Object, "status", "conditions")
	for _, c := range conditions {
		c, _ := c.(map[string]any)
		reason, _ := c["reason"].(string)
		message, _ := c["message"].(string)
		kind, _ := c["type"].(string)
		status, _ := c["status"].(string)
		if meant(kind, status, reason) {
			return Short(strings.TrimSuffix(reason+", "+message, ", "))
		}
	}
	return ""
}

// Short bounds another program's text.
func Short(text string) string {
	const most = 1 << 10
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
