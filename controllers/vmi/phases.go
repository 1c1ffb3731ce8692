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
}

var (
	// errSkipRest ends a list of steps, and is no failure.
	errSkipRest = errors.New("skip the steps that are left")
	// errSkipAll ends the turn, and is no failure. The status is not written.
	errSkipAll = errors.New("skip all that is left")
)

// step is one step of a turn. It returns after how long to look at the VMI again if nothing changes, or 0.
type step func(ctx context.Context, t *turn) (time.Duration, error)

// course is what is done for a VMI in a phase. A step that fails ends its list. The status is written all the same,
// and the steps after the write are not taken.
type course struct {
	before []step // the write of the status
	after  []step
}

// course returns the steps of a phase, in order.
func (r *Reconciler) course(p phase) course {
	settled := []step{
		// The pod becomes Ready after the VMI says that its guest runs, and not before.
		r.openGate,
		r.follow,
		// The labels come last: they can wait.
		r.label,
	}
	switch p {
	case removing:
		return course{before: []step{
			r.noteCompanions,
			r.noteEnd,
			// A pod that cannot be deleted stops the list: the steps above are taken all the same.
			r.removePods,
			// No pod stays because another's trouble cannot be read.
			r.explainRemoval,
		}, after: []step{
			// How the VMI ended must be in its status before the VMI goes: its VM reads that.
			r.dismiss,
		}}
	case over:
		return course{after: []step{r.forgetEnd, r.label}}
	case crossing:
		return course{before: []step{waitFor(betweenDelay)}}
	case unseen:
		return course{before: []step{waitFor(earlyDelay)}}
	case replacing:
		return course{before: []step{
			r.noteCompanions,
			// A pod that cannot be deleted stops the list: the step above is taken all the same.
			r.replace,
		}, after: settled}
	case following:
		return course{before: []step{
			r.noteCompanions,
			r.noteBindings,
			r.noteVolumes,
			// noteVolumes makes the list of volumes, to which this adds.
			r.noteMoves,
			// A VMI that ends keeps its guest's losses in its status, and notePod may end the VMI.
			r.noteLosses,
			// Whether the guest can move depends on its bindings, volumes and state, and on what it has lost.
			r.noteMigratable,
			r.notePod,
			// The steps from here on read more. If they fail, the steps above are taken all the same.
			// notePod has written the scheduler's complaint, to which this adds.
			r.explainScheduling,
			// notePod may have ended the VMI, which shares nothing then.
			r.noteSharedMAC,
			// notePod has written what stops the pod's containers. This is about what comes before them.
			r.explainSandbox,
			// Nothing changes of a pod that is stranded.
			r.awaitImages,
		}, after: settled}
	case ending:
		return course{before: []step{r.noteCompanions, r.endWithPod}}
	}
	return course{before: []step{
		r.noteCompanions,
		r.patiently(
			// Nothing is made for a VMI that is not valid, or not complete.
			r.admit,
			r.noteVolumes,
			// The claim for the state comes after all other claims, for one of which the VMI may wait in vain.
			r.makeState,
			r.chooseFrequency,
			r.noteBindings,
			// Whether the guest can move depends on all of the above. It is said also while the VMI waits.
			r.noteMigratable,
			r.waitForClaims,
			// Only a claim that is there can be filled.
			r.waitForDisks,
			// The status must have the frequency before a pod selects nodes by it: it cannot be found again.
			r.writeFrequency,
			// The VMI may have waited for long, and not be valid any more.
			r.checkAgain,
			// The status says nothing of a new pod before the scheduler has looked at it.
			r.createPod,
		),
	}, after: settled}
}

// patiently returns a step that takes others, and has what the cluster refuses tried again later.
func (r *Reconciler) patiently(steps ...step) step {
	return func(ctx context.Context, t *turn) (time.Duration, error) {
		wait, err := take(ctx, t, steps)
		again, err := r.patient(t.vmi, err)
		return kit.Sooner(wait, again), err
	}
}

// take takes steps until one fails. It returns the shortest wait that they return.
func take(ctx context.Context, t *turn, steps []step) (after time.Duration, err error) {
	for _, s := range steps {
		wait, err := s(ctx, t)
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
	return func(context.Context, *turn) (time.Duration, error) { return after, errSkipAll }
}
