// Package group is what ReplicaSets and pools share: how their status is summarized, which
// events announce it, and when they are reconciled again.
package group

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Object is a ReplicaSet or a pool.
type Object interface {
	client.Object
	ReplicaStatus() *v1.ReplicaStatus
}

// Failure is the first failure of a reconcile.
type Failure struct {
	// Reason is the reason of the condition ReplicaFailure, FailedCreate say.
	Reason string
	Err    error
	// After is the wait until the next attempt, if somebody has to change something first.
	After time.Duration
}

// meanwhile says whether the API server refused a write because another writer was first. That
// is no failure, but the plan is not carried out.
func (f *Failure) meanwhile() bool {
	return f != nil && (apierrors.IsConflict(f.Err) || apierrors.IsAlreadyExists(f.Err))
}

// Found is the result of a reconcile.
type Found struct {
	// Selector is the selector as a text.
	Selector        string
	Replicas, Ready int32
	// Paused says what a reconcile leaves undone while spec.paused is set; "" if it is not
	// set.
	Paused string
	Failed *Failure // nil if nothing failed
	// Again is when to reconcile again without an event; 0 for never.
	Again time.Duration
}

// summarize brings a status up to date. It is pure.
func (f Found) summarize(status *v1.ReplicaStatus, now metav1.Time) {
	status.Replicas, status.ReadyReplicas, status.LabelSelector = f.Replicas, f.Ready, f.Selector
	if f.Paused != "" {
		status.SetCondition(v1.ReplicaPaused, v1.ReasonPaused, f.Paused, now)
	} else {
		status.RemoveCondition(v1.ReplicaPaused)
	}
	if f.Failed != nil {
		status.SetCondition(v1.ReplicaFailure, f.Failed.Reason, f.Failed.Err.Error(), now)
	} else {
		status.RemoveCondition(v1.ReplicaFailure)
	}
}

// Reporter writes a Found into an object's status.
type Reporter struct {
	Client client.Client
	Events events.EventRecorder
	// Resumed is the reason of the event that spec.paused is no longer set. KubeVirt has a
	// different one for each kind.
	Resumed string
}

// Report brings the status of an object up to date, and writes it once if it changed. The
// result says when to reconcile again: soon, if another writer was first. A failure is
// returned, for a retry with back-off. An invalid spec returns no error: only a change of the
// spec helps.
func (r Reporter) Report(ctx context.Context, object Object, found Found, now metav1.Time) (ctrl.Result, error) {
	if found.Failed.meanwhile() {
		found.Failed, found.Again = nil, time.Second
	}
	before := object.DeepCopyObject().(Object)
	found.summarize(object.ReplicaStatus(), now)
	if err := r.write(ctx, before, object); err != nil {
		return ctrl.Result{}, err
	}
	if failed := found.Failed; failed != nil && failed.Reason != v1.ReasonInvalidSpec {
		r.Events.Eventf(object, nil, corev1.EventTypeWarning, failed.Reason, strings.TrimPrefix(failed.Reason, "Failed"), "%s", failed.Err.Error())
		if failed.After > 0 {
			return ctrl.Result{RequeueAfter: failed.After}, nil
		}
		return ctrl.Result{}, failed.Err
	}
	return ctrl.Result{RequeueAfter: found.Again}, nil
}

// write writes the status if it changed, and makes events of what is new in it.
func (r Reporter) write(ctx context.Context, before, object Object) error {
	if equality.Semantic.DeepEqual(before.ReplicaStatus(), object.ReplicaStatus()) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, object, patch); err != nil {
		if apierrors.IsConflict(err) {
			return nil // another writer was first; its write makes an event
		}
		return client.IgnoreNotFound(err)
	}
	r.announce(before.ReplicaStatus(), object)
	return nil
}

func (r Reporter) announce(before *v1.ReplicaStatus, object Object) {
	status := object.ReplicaStatus()
	was, is := before.Condition(v1.ReplicaPaused), status.Condition(v1.ReplicaPaused)
	switch {
	case was == nil && is != nil:
		r.Events.Eventf(object, nil, corev1.EventTypeNormal, "SuccessfulPaused", "Pause", "Paused")
	case was != nil && is == nil:
		r.Events.Eventf(object, nil, corev1.EventTypeNormal, r.Resumed, "Resume", "Resumed")
	}
	was, is = before.Condition(v1.ReplicaFailure), status.Condition(v1.ReplicaFailure)
	if is != nil && is.Reason == v1.ReasonInvalidSpec && (was == nil || was.Message != is.Message) {
		r.Events.Eventf(object, nil, corev1.EventTypeWarning, v1.ReasonInvalidSpec, "Validate", "%s", is.Message)
	}
}

// Invalid is the result for an invalid spec. Nothing is done, but the existing members are
// counted. The status keeps its selector, because the spec's selector may be the invalid part.
func Invalid(object Object, replicas, ready int32, paused string, err error) Found {
	return Found{Selector: object.ReplicaStatus().LabelSelector, Replicas: replicas, Ready: ready, Paused: paused,
		Failed: &Failure{Reason: v1.ReasonInvalidSpec, Err: err}}
}
