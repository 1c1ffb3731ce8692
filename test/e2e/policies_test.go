package e2e

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// namespacePolicies want limits of each pod, and give some that are below what a launcher pod requests. They want more
// requests than a container that hands out an image has.
const namespacePolicies = `
apiVersion: v1
kind: ResourceQuota
metadata: {name: all}
spec: {hard: {limits.cpu: "8", limits.memory: 4Gi, requests.cpu: "4", requests.memory: 4Gi, requests.ephemeral-storage: 1Gi, pods: "9"}}
---
apiVersion: v1
kind: LimitRange
metadata: {name: small}
spec: {limits: [{type: Container, default: {memory: 64Mi}, min: {memory: 16Mi, cpu: 5m}}]}
`

// TestGuestRunsUnderQuotasAndLimitRanges: in a namespace that wants limits of all pods. The name is as long as a name may be, and its guest, which has no
// ACPI, finds disk and card.
func TestGuestRunsUnderQuotasAndLimitRanges(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, ns, namespacePolicies)
	m := create(t, ns, tiny(strings.Repeat("long-name.", 25)+"end", bootsKernel, func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Features = &v1.Features{ACPI: v1.FeatureState{Enabled: ptr.To(false)}}
	}))
	m.await(v1.Running)
	for _, c := range m.pod().Spec.Containers {
		if limits := c.Resources.Limits; limits.Cpu().String() != "1" || limits.Memory().Cmp(*c.Resources.Requests.Memory()) != 0 {
			t.Errorf("container %s has the limits %v, and requests %v", c.Name, limits, c.Resources.Requests)
		}
	}
	shell := m.shell()
	for command, want := range map[string]string{"ls /sys/block | grep -c vda": "1", "ls /sys/class/net | grep -c eth0": "1", "ls -d /sys/firmware/acpi 2>/dev/null | wc -l": "0"} {
		if got := m.in(shell, command); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}
