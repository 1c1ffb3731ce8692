package node

import (
	"fmt"
	"sync"

	"github.com/kubeqemu/kubeqemu/controllers/node/kvmcheck"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Choice is what runs the guests' CPUs on a node, and why.
type Choice struct {
	// Accelerator is empty where nothing does; such a node has no slots.
	Accelerator qemuargs.Accelerator
	Reason      string
}

// String is the accelerator's name on the Lease and in logs.
func (c Choice) String() string {
	if c.Accelerator == "" {
		return "none"
	}
	return string(c.Accelerator)
}

// choose takes KVM if it works, else emulation if the cluster's configuration
// permits it: TCG is no isolation boundary, so that is not the node's to say.
func choose(kvm kvmcheck.Result, emulation bool) Choice {
	switch {
	case kvm.Works:
		return Choice{qemuargs.KVM, kvm.Reason}
	case emulation:
		return Choice{qemuargs.TCG, "KVM is not used: " + kvm.Reason}
	}
	return Choice{"", fmt.Sprintf("KVM is not used: %s; and emulation is not permitted by configuration.developerConfiguration.useEmulation of the KubeVirt object", kvm.Reason)}
}

// Acceleration is the node's choice, which follows the cluster's configuration.
type Acceleration struct {
	kvm kvmcheck.Result

	mu      sync.Mutex
	choice  Choice
	changed chan struct{}
}

// NewAcceleration starts without permission to emulate.
func NewAcceleration(kvm kvmcheck.Result) *Acceleration {
	return &Acceleration{kvm: kvm, choice: choose(kvm, false), changed: make(chan struct{})}
}

// PermitEmulation says what the cluster's configuration says now, and returns
// whether that changes the choice.
func (a *Acceleration) PermitEmulation(permitted bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := choose(a.kvm, permitted)
	if next == a.choice {
		return false
	}
	a.choice = next
	close(a.changed)
	a.changed = make(chan struct{})
	return true
}

// Choice returns the choice, and a channel that is closed when there is another.
func (a *Acceleration) Choice() (Choice, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.choice, a.changed
}
