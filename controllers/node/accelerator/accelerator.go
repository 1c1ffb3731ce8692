// Package accelerator decides whether KVM or emulation runs the guests' CPUs on a node. It
// decides by a check of KVM, and by the cluster's configuration.
package accelerator

import (
	"fmt"
	"sync"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Choice is what runs the guests' CPUs on a node, and why.
type Choice struct {
	// Accelerator is empty where the node cannot run guests; such a node has no slots.
	Accelerator qemuargs.Accelerator
	Reason      string
	// Slots is how many guests the node takes.
	Slots int
}

// MaxSlots is the number of slots of a node: the kubelet's default limit of pods on a node. The
// cluster's configuration may make it smaller.
const MaxSlots = v1.MaxInstancesPerNode

// String returns the accelerator's name on the Lease and in logs.
func (c Choice) String() string {
	if c.Accelerator == "" {
		return "none"
	}
	return string(c.Accelerator)
}

// choose takes KVM if KVM works, and else emulation if the cluster's configuration permits it.
// TCG is no isolation boundary, so a node must not choose it alone. While nothing is known of
// KVM, guests get neither: a guest keeps the accelerator that it started with.
func choose(kvm kvmcheck.Result, emulation bool) Choice {
	switch {
	case kvm.Verdict == kvmcheck.Works:
		return Choice{Accelerator: qemuargs.KVM, Reason: kvm.Reason}
	case kvm.Verdict == kvmcheck.Unknown:
		return Choice{Reason: "it is not known yet whether KVM works: " + kvm.Reason}
	case emulation:
		return Choice{Accelerator: qemuargs.TCG, Reason: "KVM is not used: " + kvm.Reason}
	}
	return Choice{Reason: fmt.Sprintf("KVM is not used: %s; and emulation is not permitted by configuration.developerConfiguration.useEmulation of the KubeVirt object", kvm.Reason)}
}

// Chooser holds the node's choice. The choice follows the verdict on KVM and the
// cluster's configuration.
type Chooser struct {
	mu        sync.Mutex
	kvm       kvmcheck.Result
	emulation bool
	slots     int
	choice    Choice
	changed   chan struct{}
	judged    chan struct{} // closed once KVM has a verdict
}

// New returns a Chooser without permission to emulate.
func New(kvm kvmcheck.Result) *Chooser {
	a := &Chooser{slots: MaxSlots, changed: make(chan struct{}), judged: make(chan struct{})}
	a.Judge(kvm)
	return a
}

// Judge takes a result about KVM, and returns whether it changes the choice. The verdict
// Unknown replaces no other verdict.
func (a *Chooser) Judge(kvm kvmcheck.Result) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if kvm.Verdict == kvmcheck.Unknown && a.kvm.Verdict != kvmcheck.Unknown {
		return false
	}
	if kvm.Verdict != kvmcheck.Unknown && a.kvm.Verdict == kvmcheck.Unknown {
		close(a.judged)
	}
	a.kvm = kvm
	return a.choose()
}

// Judged returns a channel that is closed once it is known whether KVM works.
func (a *Chooser) Judged() <-chan struct{} { return a.judged }

// PermitEmulation takes what the cluster's configuration says of emulation, and returns
// whether it changes the choice.
func (a *Chooser) PermitEmulation(permitted bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.emulation = permitted
	return a.choose()
}

// LimitSlots takes how many guests the node takes at most, and returns whether it changes the
// choice.
func (a *Chooser) LimitSlots(most int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.slots = min(most, MaxSlots)
	return a.choose()
}

func (a *Chooser) choose() bool {
	next := choose(a.kvm, a.emulation)
	if next.Accelerator != "" {
		next.Slots = a.slots
	}
	if next == a.choice {
		return false
	}
	a.choice = next
	close(a.changed)
	a.changed = make(chan struct{})
	return true
}

// Choice returns the choice, and a channel that is closed when the choice changes.
func (a *Chooser) Choice() (Choice, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.choice, a.changed
}
