package nodelabel

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeqemu/kubeqemu/internal/handlerlease"
)

// TestLeasesInTheCacheHaveNoHost: what virt-controller does not read takes no memory in its cache. All else stays.
func TestLeasesInTheCacheHaveNoHost(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l", ManagedFields: []metav1.ManagedFieldsEntry{{}},
		Annotations: map[string]string{handlerlease.HostKey: "{}", AcceleratorKey: "kvm"}}}
	for name, object := range map[string]any{"a Lease": lease, "something else": "a tombstone"} {
		if got, err := TrimLease(object); err != nil || got != object {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if len(lease.Annotations) != 1 || lease.Annotations[AcceleratorKey] != "kvm" || lease.ManagedFields != nil {
		t.Errorf("%+v", lease.ObjectMeta)
	}
}
