package vmi

import (
	"context"
	"errors"
	"time"

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

// step is one step of a turn. It returns after how long to look at the VMI again if nothing changes, or 0.
type step func(r *Reconciler, ctx context.Context, t *turn) (time.Duration, error)

// course is what is done for a VMI in a phase. A step that fails ends its list. The status is written all the same,
// and the steps after the write are not taken.
type course struct {
	before []step // the write of the status
	after  []step
}

// course returns the steps of a phase, in order.
func (p phase) course() course {
	switch p {
	case removing:
		return course{before: []step{
			(*Reconciler).noteEnd,
			// noteEnd has noted the VMI's own pod, to which this adds the others.
			(*Reconciler).noteCompanions,
			(*Reconciler).returnUnwatched,
			// What is above holds also if a pod cannot be deleted.
			(*Reconciler).removePods,
			// A node has trouble with the removal of a pod only once the pod is deleted.
			(*Reconciler).explainRemoval,
		}, after: []step{
			// How the VMI ended must be in its status before the VMI goes: its VM reads that.
			(*Reconciler).dismiss,
		}}
	case over:
		return course{after: []step{(*Reconciler).forgetEnd, (*Reconciler).label}}
	case crossing:
		return course{before: []step{waitFor(betweenDelay)}}
	case unseen:
		return course{before: []step{waitFor(earlyDelay)}}
	case replacing:
		return course{before: []step{
			(*Reconciler).noteCompanions,
			(*Reconciler).returnUnwatched,
			// What is above holds also if the pod cannot be deleted.
			(*Reconciler).replace,
		}, after: settled()}
	case following:
		return course{before: []step{
			(*Reconciler).returnUnwatched,
			(*Reconciler).noteBindings,
			(*Reconciler).noteVolumes,
			// noteVolumes makes the list of volumes, to which these two add.
			(*Reconciler).noteState,
			(*Reconciler).noteMoves,
			// Whether the guest can move depends on its bindings, volumes and state.
			(*Reconciler).notePod,
			// notePod has noted the VMI's own pod, to which this adds the others.
			(*Reconciler).noteCompanions,
			// What is above holds also if something below cannot be read.
			// notePod has written the scheduler's complaint, to which this adds.
			(*Reconciler).explainScheduling,
			// notePod may have ended the VMI, which shares nothing then.
			(*Reconciler).noteSharedMAC,
			// notePod has written what stops the pod's containers. This is about what comes before them.
			(*Reconciler).explainSandbox,
		}, after: settled()}
	case ending:
		return course{before: []step{
			(*Reconciler).noteCompanions,
			// A spec that is not valid is a better reason than a pod that is gone.
			(*Reconciler).admit,
			(*Reconciler).endWithPod,
		}}
	}
	return course{before: []step{
		(*Reconciler).noteCompanions,
		patiently(
			// Nothing is made for a VMI that is not valid, or not complete.
			(*Reconciler).admit,
			(*Reconciler).notePending,
			(*Reconciler).noteVolumes,
			// The claim for the state comes after all other claims, for one of which the VMI may wait in vain.
			(*Reconciler).makeState,
			(*Reconciler).chooseFrequency,
			(*Reconciler).noteBindings,
			// Whether the guest can move depends on all of the above. It is said also while the VMI waits.
			(*Reconciler).noteMigratable,
			(*Reconciler).waitForClaims,
			// Only a claim that is there can be filled.
			(*Reconciler).waitForDisks,
			// The status must have the frequency before a pod selects nodes by it: it cannot be found again.
			(*Reconciler).writeFrequency,
			// The VMI may have waited for long, and not be valid any more.
			(*Reconciler).checkAgain,
			(*Reconciler).createPod,
		),
		// The status says nothing of a new pod before the scheduler has looked at it.
		(*Reconciler).waitIfUnseen,
	}, after: settled()}
}

// settled returns the steps of a VMI that goes on, once its status is written.
func settled() []step {
	return []step{
		// The pod becomes Ready after the VMI says that its guest runs, and not before.
		(*Reconciler).openGate,
		(*Reconciler).follow,
		// The labels come last: they can wait.
		(*Reconciler).label,
	}
}

// patiently returns a step that takes others, and has what the cluster refuses tried again later.
func patiently(steps ...step) step {
	return func(r *Reconciler, ctx context.Context, t *turn) (time.Duration, error) {
		_, err := r.take(ctx, t, steps)
		return r.patient(t.vmi, err)
	}
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

// waitFor returns a step that ends the turn, and has the VMI looked at again after a time.
func waitFor(after time.Duration) step {
	return func(*Reconciler, context.Context, *turn) (time.Duration, error) { return after, errSkipAll }
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
