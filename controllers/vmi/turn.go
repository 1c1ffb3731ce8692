package vmi

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// turn is what the steps of one look at a VMI share. They change the status of world.vmi in memory.
type turn struct {
	world
	// before is the VMI as it was read.
	before *v1.VirtualMachineInstance
	// missing is the name of the first claim that does not exist, or "". noteVolumes finds it.
	missing string
	// chosen means that chooseFrequency has just chosen a frequency.
	chosen bool
}

var (
	// errSkipRest ends a list of steps, and is no failure.
	errSkipRest = errors.New("skip the steps that are left")
	// errSkipAll ends the turn, and is no failure. The status is not written.
	errSkipAll = errors.New("skip all that is left")
)

// look reads what the VMI's phase depends on.
func (r *Reconciler) look(ctx context.Context, vmi *v1.VirtualMachineInstance) (w world, err error) {
	w = world{vmi: vmi, now: r.Clock.Now()}
	if w.pod, w.watched, err = r.pod(ctx, vmi); err != nil {
		return w, err
	}
	if w.companions, err = r.companions(ctx, vmi); err != nil {
		return w, err
	}
	if w.stateGone, err = r.stateGone(ctx, vmi, w.pod); err != nil {
		return w, err
	}
	if last, known := r.ends.of(vmi); known {
		w.last = &last
	}
	return w, nil
}

// take takes steps until one fails. It returns the shortest wait that they return.
func (r *Reconciler) take(ctx context.Context, t *turn, steps []step) (after time.Duration, err error) {
	for _, s := range steps {
		wait, err := s(r, ctx, t)
		after = kit.Sooner(after, wait)
		if errors.Is(err, errSkipRest) {
			return after, nil
		}
		if err != nil {
			return after, err
		}
	}
	return after, nil
}

// write writes the status if it changed, and makes events of what is new in it.
func (r *Reconciler) write(ctx context.Context, t *turn) error {
	if equality.Semantic.DeepEqual(t.before.Status, t.vmi.Status) {
		return nil
	}
	if err := kit.PatchStatus(ctx, r.Client, t.before, t.vmi); err != nil {
		return err
	}
	r.writes.Note(t.before, t.vmi)
	r.announce(t.before, t.vmi)
	return nil
}

// unwatchedDelay is the time between two looks at a VMI whose pod's end makes no event for the
// VMI.
const unwatchedDelay = 2 * time.Second

// returnUnwatched returns when to look again at a VMI of which a pod's end makes no event.
func (r *Reconciler) returnUnwatched(_ context.Context, t *turn) (time.Duration, error) {
	if t.pod != nil && !t.watched || t.vmi.DeletionTimestamp != nil && len(t.companions) > 0 {
		return unwatchedDelay, nil
	}
	return 0, nil
}
