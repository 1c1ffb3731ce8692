// Package nodelabel turns the Leases of the nodes' virt-handlers into labels of the nodes, by
// which users' manifests select nodes.
package nodelabel

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/handlerlease"
)

const (
	// LeaseLabel and its value are on every virt-handler's Lease.
	LeaseLabel      = "kubevirt.io"
	LeaseLabelValue = "virt-handler"

	// Lifetime is how long after the last renewal of its Lease virt-handler counts as gone.
	// The value is KubeVirt's.
	Lifetime = 5 * time.Minute

	// AcceleratorKey is an annotation of Leases and a label of nodes: kvm,
	// tcg, or none.
	AcceleratorKey = "kubeqemu.io/accelerator"
	// CPUManagerKey is an annotation of Leases: "true" if the kubelet gives containers CPUs of their own, "false" if not.
	CPUManagerKey = "kubeqemu.io/cpu-manager"
	// RealtimeKey is an annotation of Leases: "true" if the node lets threads with the real-time scheduler run without end, "false" if not.
	RealtimeKey = "kubeqemu.io/realtime"
	// PasstKey is an annotation of Leases: "true" if passt can run on the node, "false" if not.
	PasstKey = "kubeqemu.io/passt"
	// ReasonKey is an annotation of Leases: the reason for the accelerator.
	ReasonKey = "kubeqemu.io/accelerator-reason"
	// QEMUVersionKey is an annotation of Leases: the versions of the connected launchers'
	// QEMUs, separated by commas.
	QEMUVersionKey = "kubeqemu.io/qemu-version"
	// HeartbeatAnnotation is KubeVirt's annotation of nodes: when virt-handler had last
	// renewed its Lease at the time of the last change of labels. It is written only together
	// with labels, because each write of a node reaches all watchers of nodes. The Lease has
	// the real heartbeat.
	HeartbeatAnnotation = "kubevirt.io/heartbeat"
)

var accelerators = []string{"kvm", "tcg", "none"}

// TrimLease returns a Lease as the cache keeps it: without the annotation that virt-controller does not read.
func TrimLease(object any) (any, error) {
	if lease, ok := object.(*coordinationv1.Lease); ok {
		delete(lease.Annotations, handlerlease.HostKey)
		lease.ManagedFields = nil
	}
	return object, nil
}

// heard is the last renewal of a Lease.
type heard struct {
	renewed time.Time // the Lease's time, by the node's clock
	at      time.Time // when we saw that time first, by our clock
}

// listen compares a Lease with its last renewal. As in leader election, only a change of the
// Lease counts as a renewal: the time in it depends on the node's clock. That time counts only
// when the Lease is seen for the first time.
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

// left is how much longer a virt-handler counts as alive. It is 0 or less for one that is
// gone.
func (h heard) left(now time.Time) time.Duration {
	if h.at.IsZero() {
		return 0
	}
	return Lifetime - now.Sub(h.at)
}

// labels are the labels that the node should have. When virt-handler is gone, the
// labels of the accelerator, the CPU manager, the scheduler and passt stay: nothing says that these have changed, and a kubelet that starts anew ends
// pods whose node selector its node no longer matches.
func labels(lease *coordinationv1.Lease, alive bool) map[string]string {
	want := map[string]string{v1.SchedulableLabel: "false"}
	if alive {
		want[v1.SchedulableLabel] = "true"
	}
	if lease != nil {
		// A node writes its Lease itself. Only known values become a label.
		if a := lease.Annotations[AcceleratorKey]; slices.Contains(accelerators, a) {
			want[AcceleratorKey] = a
		}
		if own := lease.Annotations[CPUManagerKey]; own == "true" || own == "false" {
			want[v1.CPUManagerLabel], want[v1.OldCPUManagerLabel] = own, own
		}
		if r := lease.Annotations[RealtimeKey]; r == "true" || r == "false" {
			want[v1.RealtimeLabel] = r
		}
		if p := lease.Annotations[PasstKey]; p == "true" || p == "false" {
			want[v1.PasstLabel] = p
		}
	}
	return want
}
