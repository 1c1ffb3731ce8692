package filler

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// report writes the condition of the KubeVirt in force. A nil verdict removes the condition.
func report(ctx context.Context, c client.Client, kv *v1.KubeVirt, known *verdict, now time.Time) error {
	before := kv.DeepCopy()
	if known == nil {
		kv.Status.RemoveCondition(v1.KubeVirtConditionDataVolumesFilled)
	} else {
		status := corev1.ConditionFalse
		if known.open {
			status = corev1.ConditionTrue
		}
		kv.Status.SetCondition(v1.KubeVirtCondition{Type: v1.KubeVirtConditionDataVolumesFilled, Status: status,
			Reason: known.reason, Message: known.message}, metav1.NewTime(now))
	}
	if equality.Semantic.DeepEqual(before.Status, kv.Status) {
		return nil
	}
	// The lock: a merge patch replaces all conditions, and other controllers write the others. After a
	// conflict the next look writes it.
	err := c.Status().Patch(ctx, kv, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}
