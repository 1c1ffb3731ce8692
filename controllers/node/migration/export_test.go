package migration

import (
	"context"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// The tests with whole virt-handlers see these. They are another package: a virt-handler imports this one.
const (
	DecisionPatience = decisionPatience
	RunPatience      = runPatience
	LauncherSlack    = launcherSlack
	PostCopyFactor   = postCopyFactor
)

var (
	ErrDecided   = errDecided
	AtMostClaims = atMostClaims
	MakeMoved    = makeMoved
)

// Idle reports whether no guest is on its way from here.
func (d *Departures) Idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.underway) == 0
}

// Begin writes that the copying of a guest begins.
func (d *Departures) Begin(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	return (&departure{of: d, vmi: vmi}).begin(ctx)
}

// Forget forgets the guests that were offered, as a restarted virt-handler does.
func (a *Arrivals) Forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.offered = nil
}
