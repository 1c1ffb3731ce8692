package node

import (
	"context"
	"fmt"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// act does what a step says, in this order.
func (r *Reconciler) act(ctx context.Context, w world, s *step) {
	if s.leaves && r.Departures != nil {
		// The launcher that a guest has left ends even if that of the other pod is not connected.
		r.Departures.StepLeft(w.vmi)
	}
	if !s.serves {
		return
	}
	// A guest that is to move begins to, which waits for nothing.
	r.depart(w.vmi, w.launcher)
	// QEMU comes before all that it is told. A start that fails is told in the status at once, even if others are waited
	// for.
	if err := r.begin(ctx, w, s.begin); err != nil {
		s.failure, s.tell, s.after = err, tellGuest, 0
	}
	if s.tell != tellGuest {
		return
	}
	// The guest's links, disks and the like follow its VMI. Each function stands alone, and tries again later what it
	// could not do.
	for _, follow := range []func(context.Context, *v1.VirtualMachineInstance, *sessions.Session) time.Duration{
		r.followSpec, // only begins jobs, and sees their results
		r.holdPings,  // last: only probes wait for it
	} {
		s.after = kit.Sooner(s.after, follow(ctx, w.vmi, w.launcher))
	}
}

// depart lets a guest leave, if its VMI says so.
func (r *Reconciler) depart(vmi *v1.VirtualMachineInstance, launcher *sessions.Session) {
	if r.Departures != nil {
		r.Departures.Step(vmi, launcher)
	}
}

// begin starts a guest, or lets a held guest run.
func (r *Reconciler) begin(ctx context.Context, w world, how beginning) error {
	switch how {
	case beginStart, beginHeld:
		return r.Starter.Start(ctx, w.vmi, w.launcher, how == beginHeld)
	case beginRelease:
		if err := w.launcher.Call(ctx, control.CommandUnpause, nil, nil); err != nil && heldBack(w.vmi, w.launcher.State()) {
			return fmt.Errorf("let the guest run: %w", err)
		}
	}
	return nil
}
