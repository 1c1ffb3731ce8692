package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// configure changes the cluster's configuration for the test. The second patch undoes it.
func configure(t *testing.T, patch, undo string) {
	t.Helper()
	change := func(patch string) error {
		_, err := output("", "kubectl", "-n", "kubevirt", "patch", "kubevirt", "kubevirt", "--type=merge", "--patch", `{"spec":{"configuration":`+patch+`}}`)
		return err
	}
	t.Cleanup(func() {
		if err := change(undo); err != nil {
			t.Error(err)
		}
	})
	if err := change(patch); err != nil {
		t.Fatal(err)
	}
}

// TestClusterDefaults: what the KubeVirt object says is what a VMI gets that says nothing itself,
// and what its pod and its guest get.
func TestClusterDefaults(t *testing.T) {
	configure(t, `{"cpuModel":"Nehalem","architectureConfiguration":{"amd64":{"machineType":"pc-q35-6.2","emulatedMachines":["pc-q35-6.*"]}},"network":{"defaultNetworkInterface":"masquerade"},
		"smbios":{"manufacturer":"Example, Ltd","product":"Edge","version":"2","sku":"E-2"},"virtualMachineOptions":{"disableFreePageReporting":{}},"evictionStrategy":"LiveMigrateIfPossible",
		"developerConfiguration":{"cpuAllocationRatio":50,"memoryOvercommit":200,"logVerbosity":{"virtLauncher":5}},"additionalGuestMemoryOverheadRatio":"1.5",
		"seccompConfiguration":{"virtualMachineInstanceProfile":{"customProfile":{"runtimeDefaultProfile":true}}}}`,
		`{"cpuModel":null,"architectureConfiguration":null,"network":null,"smbios":null,"virtualMachineOptions":null,"evictionStrategy":null,
		"developerConfiguration":{"cpuAllocationRatio":null,"memoryOvercommit":null,"logVerbosity":null},"additionalGuestMemoryOverheadRatio":null,"seccompConfiguration":null}`)
	ns := namespace(t)
	v := create(t, ns, tiny("plain", bootsKernel, func(s *v1.VirtualMachineInstanceSpec) {
		s.Networks, s.Domain.Devices.Interfaces = nil, nil
	}))
	vmi := v.await(v1.Running)
	domain := vmi.Spec.Domain
	if domain.CPU.Model != "Nehalem" || domain.Machine.Type != "pc-q35-6.2" || len(domain.Devices.Interfaces) != 1 || domain.Devices.Interfaces[0].Masquerade == nil ||
		vmi.Spec.EvictionStrategy == nil || *vmi.Spec.EvictionStrategy != v1.EvictionStrategyLiveMigrateIfPossible {
		t.Errorf("CPU %+v, machine %+v, interfaces %+v, eviction %v", domain.CPU, domain.Machine, domain.Devices.Interfaces, vmi.Spec.EvictionStrategy)
	}
	qemu := v.qemu().shell()
	for _, want := range []string{"Nehalem", "pc-q35-6.2", "manufacturer=Example,, Ltd,product=Edge,version=2,sku=E-2,family=KubeVirt"} {
		if !strings.Contains(qemu, want) {
			t.Errorf("QEMU has no %q: %s", want, qemu)
		}
	}
	if strings.Contains(qemu, "free-page-reporting") {
		t.Errorf("the guest reports free pages: %s", qemu)
	}
	requests := v.pod().Spec.Containers[0].Resources.Requests
	guest := domain.Memory.Guest.Value()
	if cpu := requests.Cpu().MilliValue(); cpu != 20*domain.CPU.VCPUs() {
		t.Errorf("the pod requests %dm CPU", cpu)
	}
	// 64 MiB besides the guest's memory are the least; emulation adds 160 MiB.
	if memory := requests.Memory().Value(); memory < guest/2+96<<20 || memory > guest/2+400<<20 {
		t.Errorf("the pod requests %d bytes; half of the guest's are %d", memory, guest/2)
	}
	if launcher := v.launcher().shell(); !strings.Contains(launcher, "--verbosity=5") {
		t.Errorf("virt-launcher: %s", launcher)
	}
	other := changed(t, "other", `domain: {machine: {type: pc-q35-7.2}}`)
	if _, err := output(string(other), "kubectl", "-n", ns, "create", "-f", "-"); err == nil || !strings.Contains(err.Error(), "spec.domain.machine.type") {
		t.Errorf("another machine type: %v, want a refusal of spec.domain.machine.type", err)
	}
}

// TestLogVerbosity: each component logs as much as the KubeVirt object says, while it runs.
func TestLogVerbosity(t *testing.T) {
	node := theNode(t).Name
	await := func(what string, since time.Time, lines map[string]string) {
		t.Helper()
		for component, want := range lines {
			err := poll(func() error {
				log := kubectl(t, "-n", "kubevirt", "logs", "-l", "kubevirt.io="+component, "--tail=-1", "--since-time="+since.UTC().Format(time.RFC3339))
				if !strings.Contains(log, want) {
					return fmt.Errorf("%s: the log of %s has no %q", what, component, want)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
	const undo = `{"developerConfiguration":{"logVerbosity":null}}`
	began := time.Now().Add(-time.Second)
	configure(t, `{"developerConfiguration":{"logVerbosity":{"virtAPI":3,"virtController":5,"virtHandler":5}}}`, undo)
	ns := namespace(t)
	create(t, ns, tiny("logged", bootsKernel, offline)).await(v1.Running)
	await("by component", began, map[string]string{"virt-api": `"to":3`})
	if _, err := output("{}", "kubectl", "replace", "--raw", subresources+"/namespaces/"+ns+"/virtualmachineinstances/logged/pause", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	await("by component", began, map[string]string{"virt-api": `"msg":"request"`, "virt-controller": `"msg":"Reconciling"`, "virt-handler": `"msg":"Reconciling"`})
	configure(t, `{"developerConfiguration":{"logVerbosity":{"virtAPI":null,"virtController":null,"virtHandler":null,"nodeVerbosity":{"`+node+`":6}}}}`, undo)
	changes := `"to":6`
	await("by node", began, map[string]string{"virt-api": changes, "virt-controller": changes, "virt-handler": changes})
}
