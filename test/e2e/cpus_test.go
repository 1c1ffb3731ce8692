package e2e

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// cpu changes a VMI's CPU.
func cpu(model string, features ...v1.CPUFeature) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) { s.Domain.CPU = &v1.CPU{Model: model, Features: features} }
}

// obsolete changes which CPU models are obsolete. The patch is the value of the field.
func obsolete(t *testing.T, value string) {
	t.Helper()
	kubectl(t, "-n", "kubevirt", "patch", "kubevirt", "kubevirt", "--type=merge", "--patch", `{"spec":{"configuration":{"obsoleteCPUModels":`+value+`}}}`)
}

// awaitLabels waits until the node has the labels of the map's keys, or has not.
func awaitLabels(t *testing.T, want map[string]bool) {
	t.Helper()
	err := poll(func() error {
		labels := theNode(t).Labels
		for label, has := range want {
			if _, got := labels[label]; got != has {
				return fmt.Errorf("the node has the label %s: %t, want %t", label, got, has)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCPULabels: the node's labels say which CPUs it can give guests, and guests choose nodes by them. All guests of the test cluster are
// emulated: QEMU emulates Nehalem, and no AVX-512.
func TestCPULabels(t *testing.T) {
	if theNode(t).Labels[acceleratorLabel] == "kvm" {
		t.Fatal("KVM works here, and this test knows what QEMU emulates")
	}
	awaitLabels(t, map[string]bool{
		v1.CPUModelLabel + "Nehalem": true, v1.CPUModelLabel + "qemu64": false, v1.MigrationCPUModelLabel + "qemu64": true, v1.CPUModelLabel + "Skylake-Server": false,
		v1.CPUFeatureLabel + "aes": true, v1.CPUFeatureLabel + "avx512f": false, v1.CPUVendorLabel + "AMD": true, v1.HostCPUModelLabel + "Opteron_G2": true,
		v1.HostCPUFeatureLabel + "avx2": true, v1.HyperVLabel + "base": false, v1.TSCFrequencyLabel: false,
	})
	ns := namespace(t)
	named := create(t, ns, tiny("named", cpu("Nehalem", v1.CPUFeature{Name: "aes", Policy: v1.FeatureRequire})))
	own := create(t, ns, tiny("own"))
	model := create(t, ns, tiny("model", cpu("Skylake-Server")))
	feature := create(t, ns, tiny("feature", cpu("", v1.CPUFeature{Name: "avx512f"})))
	forbids := create(t, ns, tiny("forbids", cpu("", v1.CPUFeature{Name: "aes", Policy: v1.FeatureForbid})))
	old := create(t, ns, tiny("old", cpu("qemu64")))

	model.awaitCondition(v1.ConditionPodScheduled, "Unschedulable", "no node can give the guest the CPU model Skylake-Server (cpu-model.node.kubevirt.io/Skylake-Server)")
	feature.awaitCondition(v1.ConditionPodScheduled, "Unschedulable", "no node can give the guest the CPU feature avx512f")
	forbids.awaitCondition(v1.ConditionPodScheduled, "Unschedulable", "every node has, though the guest forbids it, the CPU feature aes")
	old.awaitCondition(v1.ConditionPodScheduled, "Unschedulable", "the CPU model qemu64 is obsolete (spec.configuration.obsoleteCPUModels of the KubeVirt object)")

	named.await(v1.Running)
	if info := named.runner()("cat /proc/cpuinfo"); !strings.Contains(info, "Core i7 9xx (Nehalem Class Core i7)") || !strings.Contains(info, " aes ") || strings.Contains(info, " avx2 ") {
		t.Errorf("the guest with Nehalem and aes has\n%s", info)
	}
	own.await(v1.Running)
	if info := own.runner()("cat /proc/cpuinfo"); !strings.Contains(info, "QEMU TCG CPU version 2.5+") || !strings.Contains(info, " avx2 ") {
		t.Errorf("the guest with host-model has\n%s", info)
	}

	// None is obsolete.
	t.Cleanup(func() { obsolete(t, "null") })
	obsolete(t, `{"phenom":false}`)
	awaitLabels(t, map[string]bool{v1.CPUModelLabel + "qemu64": true})
	old.await(v1.Running)
	for _, v := range []vmi{named, own, model, feature, forbids, old} {
		v.delete()
	}
}
