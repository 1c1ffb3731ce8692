package vmi

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// errSoon means that something cannot be made now, and that the next attempt may do. What had its name is gone, or a
// quota could not count it, because others used the quota at the same time. No event of the VMI's comes of that. The
// API server calls the latter a conflict, so its error is quoted and not wrapped: see kit.IgnoreConflict.
var errSoon = errors.New("it may be made soon")

// soonDelay is the wait after errSoon.
const soonDelay = time.Second

// patient turns a refusal of the API server (a quota, a policy, a missing priority class), or presets that
// cannot be read, into a later attempt. The VMI waits for somebody to change the cluster. An older VMI is tried
// less often, so that many such VMIs do not hold up others. An error that is no refusal stays an error, and is
// tried again soon.
func (r *Reconciler) patient(vmi *v1.VirtualMachineInstance, err error) (time.Duration, error) {
	const soonest = 5 * time.Second
	switch {
	case errors.Is(err, errSoon):
		return soonDelay, nil
	case errors.Is(err, errNoState), errors.Is(err, errNoResource), isRefusal(err), kit.PresetsUnread(err):
		return r.retryAfter(vmi, soonest), nil
	}
	return 0, err
}

// isRefusal reports whether the API server will not do something until somebody changes the cluster.
func isRefusal(err error) bool {
	return kit.IsRefusal(err) || apierrors.IsAlreadyExists(err)
}

// longestDelay bounds the time between two attempts.
const longestDelay = 5 * time.Minute

// retryAfter returns how long a VMI waits between two attempts: a quarter of its age, within bounds.
func (r *Reconciler) retryAfter(vmi *v1.VirtualMachineInstance, soonest time.Duration) time.Duration {
	return min(max(r.Clock.Since(vmi.CreationTimestamp.Time)/4, soonest), longestDelay)
}
