package kit

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// IgnoreConflict returns nil for the error of a write that came second: the first write makes an event. Other errors
// it returns as they are.
func IgnoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}

// PatchStatus writes an object's status, unless the object is no longer as it was before.
func PatchStatus(ctx context.Context, c client.Client, before, object client.Object) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := c.Status().Patch(ctx, object, patch); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

// Sooner returns the shorter of two waits. 0 is no wait.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
