package vmi

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestDedicatedCPUsMakeAGuaranteedPod: the kubelet gives CPUs to containers whose requests are their limits, in
// whole CPUs. Whatever the VMI and the cluster say of memory, the pod books all that the guest has.
func TestDedicatedCPUsMakeAGuaranteedPod(t *testing.T) {
	const gib, mib = 1 << 30, 1 << 20
	overhead := int64((64 + 2 + 2*3) * mib)
	half := &v1.KubeVirtConfiguration{DeveloperConfiguration: &v1.DeveloperConfiguration{MemoryOvercommit: 200}}
	for name, tt := range map[string]struct {
		change func(*v1.DomainSpec)
		config *v1.KubeVirtConfiguration
		cpus   int64
		memory int64
	}{
		"nothing said": {func(*v1.DomainSpec) {}, nil, 3, gib + overhead},
		"real-time":    {func(d *v1.DomainSpec) { d.CPU.Realtime = &v1.Realtime{} }, nil, 3, gib + overhead},
		"not isolated": {func(d *v1.DomainSpec) { d.CPU.IsolateEmulatorThread = false }, nil, 2, gib + overhead},
		"overcommit":   {func(*v1.DomainSpec) {}, half, 3, gib + overhead},
		"no overhead": {func(d *v1.DomainSpec) { d.Resources.OvercommitGuestOverhead = ptr.To(true) }, nil, 3,
			gib + overhead},
		"more requested": {func(d *v1.DomainSpec) { d.Resources.Requests = list("2Gi") }, nil, 3, 2*gib + overhead},
		"more allowed":   {func(d *v1.DomainSpec) { d.Resources.Limits = list("2Gi") }, nil, 3, 2*gib + overhead},
		"CPUs too": {func(d *v1.DomainSpec) {
			d.Resources.Limits = v1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
		},
			nil, 3, gib + overhead},
		"huge pages": {func(d *v1.DomainSpec) { d.Memory.Hugepages = &v1.Hugepages{PageSize: "2Mi"} }, nil, 3, overhead},
	} {
		vmi := load(t, "testdata/dedicated-cpus")
		tt.change(&vmi.Spec.Domain)
		config := testConfig
		config.Cluster = tt.config
		pod := Pod(vmi, config)
		r := pod.Spec.Containers[0].Resources
		for resourceName, want := range map[corev1.ResourceName]int64{corev1.ResourceCPU: tt.cpus,
			corev1.ResourceMemory: tt.memory} {
			request, limit := r.Requests[resourceName], r.Limits[resourceName]
			if !ptr.To(request).Equal(limit) || request.Value() != want || request.MilliValue()%1000 != 0 {
				t.Errorf("%s: %s of %s, at most %s, want %d", name, request.String(), resourceName, limit.String(), want)
			}
		}
		realtime := vmi.Spec.Domain.CPU.Realtime != nil
		if selects := pod.Spec.NodeSelector; selects[v1.CPUManagerLabel] != "true" ||
			(selects[v1.RealtimeLabel] == "true") != realtime {
			t.Errorf("%s: the pod selects nodes by %v", name, selects)
		}
	}
}
