package vmi

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestHugePagesAreBookedOnce: the guest's memory is booked as huge pages, and not as memory too.
func TestHugePagesAreBookedOnce(t *testing.T) {
	const gib, mib = 1 << 30, 1 << 20
	overhead := int64((64 + 4 + 3) * mib)
	for name, tt := range map[string]struct {
		resources v1.ResourceRequirements
		memory    int64
		limit     int64
		percent   int
	}{
		"overcommit":       {v1.ResourceRequirements{}, overhead, 0, 200},
		"undercommit":      {v1.ResourceRequirements{}, overhead, 0, 50},
		"nothing said":     {v1.ResourceRequirements{}, overhead, 0, 0},
		"less than memory": {v1.ResourceRequirements{Requests: list("1Gi")}, overhead, 0, 0},
		"more than memory": {v1.ResourceRequirements{Requests: list("3Gi"), Limits: list("4Gi")}, gib + overhead,
			2*gib + overhead, 0},
		"only a limit": {v1.ResourceRequirements{Limits: list("3Gi")}, gib + overhead, gib + overhead, 0},
		// The overhead is all of the pod's memory then: a pod without it would not start.
		"no overhead": {v1.ResourceRequirements{OvercommitGuestOverhead: ptr.To(true)}, overhead, 0, 0},
	} {
		vmi := load(t, "testdata/hugepages")
		vmi.Spec.Domain.Resources = tt.resources
		config := testConfig
		config.Cluster = &v1.KubeVirtConfiguration{DeveloperConfiguration: &v1.DeveloperConfiguration{MemoryOvercommit: tt.percent}}
		r := resources(vmi, config)
		huge := corev1.ResourceName("hugepages-2Mi")
		if request, limit := r.Requests[huge], r.Limits[huge]; request.Value() != 2*gib || limit.Value() != 2*gib {
			t.Errorf("%s: %s of huge pages, at most %s", name, request.String(), limit.String())
		}
		if request, limit := r.Requests[corev1.ResourceMemory],
			r.Limits[corev1.ResourceMemory]; request.Value() != tt.memory || limit.Value() != tt.limit {
			t.Errorf("%s: %d of memory, at most %d, want %d and %d", name, request.Value(), limit.Value(), tt.memory, tt.limit)
		}
	}
}

func list(memory string) v1.ResourceList {
	return v1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
}
