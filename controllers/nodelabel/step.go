// Package nodelabel turns the Leases of the nodes' virt-handlers into labels
// of the nodes, which launcher pods and users' manifests select on.
package nodelabel

import (
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

const (
	// LeaseLabel and its value are on every virt-handler's Lease.
	LeaseLabel      = "kubevirt.io"
	LeaseLabelValue = "virt-handler"
	leasePrefix     = "virt-handler-"

	// Lifetime is how long virt-handler may not have renewed its Lease until
	// it is taken for gone; KubeVirt's value.
	Lifetime = 5 * time.Minute

	// AcceleratorKey is an annotation of Leases and a label of nodes: kvm,
	// tcg, or none.
	AcceleratorKey = "kubeqemu.io/accelerator"
	// ReasonKey is an annotation of Leases: why it is this accelerator.
	ReasonKey = "kubeqemu.io/accelerator-reason"
	// QEMUVersionKey is an annotation of Leases: the versions of the QEMUs on
	// the node as far as one was seen, separated by commas.
	QEMUVersionKey = "kubeqemu.io/qemu-version"
	// SchedulableLabel is "true" on nodes whose virt-handler is there; KubeVirt's.
	SchedulableLabel = "kubevirt.io/schedulable"
	// HeartbeatAnnotation of nodes is when virt-handler had last renewed its
	// Lease as the labels were written; KubeVirt's. It is not written for its
	// own sake, for every write of a node reaches all that watch nodes: the
	// Lease has the heartbeat.
	HeartbeatAnnotation = "kubevirt.io/heartbeat"
)

var accelerators = []string{"kvm", "tcg", "none"}

// LeaseName is the name of the Lease of a node's virt-handler.
func LeaseName(node string) string { return leasePrefix + node }

// nodeName is the node of a Lease, by its name: a policy holds each
// virt-handler to that of its own node.
func nodeName(lease string) (string, bool) { return strings.CutPrefix(lease, leasePrefix) }

// heard is a sign of life of a virt-handler.
type heard struct {
	renewed time.Time // what the Lease says, by the node's clock
	at      time.Time // when it was seen to say so, by ours
}

// listen takes a look at a Lease. That a Lease has changed is the sign, as
// with leader election: what its time says depends on the node's clock, and
// decides only where it is seen for the first time.
func listen(last heard, lease *coordinationv1.Lease, now time.Time) heard {
	if lease == nil || lease.Spec.RenewTime == nil {
		return last
	}
	renewed := lease.Spec.RenewTime.Time
	switch {
	case renewed.Equal(last.renewed) && last.at.After(now): // our clock was set back
		return heard{renewed: renewed, at: now}
	case renewed.Equal(last.renewed):
		return last
	case last.at.IsZero() && renewed.Before(now):
		return heard{renewed: renewed, at: renewed}
	}
	return heard{renewed: renewed, at: now}
}

// left is how long a virt-handler is still taken to be there; nothing or less
// if it is not.
func (h heard) left(now time.Time) time.Duration {
	if h.at.IsZero() {
		return 0
	}
	return Lifetime - now.Sub(h.at)
}

// labels are those that the node should have. A virt-handler that is gone
// leaves its accelerator behind: it is not known to have changed.
func labels(lease *coordinationv1.Lease, alive bool) map[string]string {
	want := map[string]string{SchedulableLabel: "false"}
	if alive {
		want[SchedulableLabel] = "true"
	}
	if lease != nil {
		// Of what a node says of itself, only what is known becomes a label.
		if a := lease.Annotations[AcceleratorKey]; slices.Contains(accelerators, a) {
			want[AcceleratorKey] = a
		}
	}
	return want
}
