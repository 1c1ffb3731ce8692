package vmi

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// errVanished means that the pod that held the launcher pod's name is gone. It was not the
// VMI's, so its end made no event for the VMI.
var errVanished = errors.New("the pod that was in the way is gone")

// errContended means that a quota could not count a pod, because others used the quota at the same
// time. The API server calls it a conflict, but no object has changed whose event would come. So the
// API server's error is quoted and not wrapped: see kit.IgnoreConflict.
var errContended = errors.New("the quota is in use")

// vanishedDelay is the wait after errVanished and errContended, until the pod is created again.
const vanishedDelay = time.Second

// patient turns a refusal of the API server (a quota, a policy, a missing priority class), or presets that
// cannot be read, into a later attempt. The VMI waits for somebody to change the cluster. An older VMI is tried
// less often, so that many such VMIs do not hold up others. An error that is no refusal stays an error, and is
// tried again soon.
func (r *Reconciler) patient(vmi *v1.VirtualMachineInstance, err error) (time.Duration, error) {
	const soonest = 5 * time.Second
	switch {
	case errors.Is(err, errVanished), errors.Is(err, errContended):
		return vanishedDelay, nil
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
