package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestInstancetype: the sample's guest has the size and the devices that are
// named beside it.
func TestInstancetype(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	kubectl(t, "-n", ns, "apply", "-f", "../../config/samples/vm-instancetype.yaml")
	// Its VMI comes a moment later.
	if err := poll(20*time.Second, func() error {
		_, err := output("", "kubectl", "-n", ns, "get", "vmi", "sized")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	v := vmi{t: t, namespace: ns, name: "sized"}
	v.await(v1.Running)
	shell := v.shell()
	for command, want := range map[string]string{
		"nproc":                           "2",
		"ls /sys/class/block | grep vda$": "vda",
		"cat /sys/devices/system/cpu/cpu1/topology/physical_package_id": "0", // a second core, not a second socket
	} {
		if out, _ := shell.run(20*time.Second, command); strings.TrimSpace(out) != want {
			t.Errorf("%s printed %q, want %s", command, out, want)
		}
	}
	kubectl(t, "-n", ns, "delete", "vm", "sized", "--timeout=180s")
}

// TestCommonInstancetypes: when the KubeVirt object asks for the well-known instancetypes and
// preferences, they are there, and guests run with them. What an administrator created stays.
func TestCommonInstancetypes(t *testing.T) {
	awaitCondition := func(reason string) {
		t.Helper()
		if err := poll(30*time.Second, func() error {
			conditions := get[v1.KubeVirt](t, "-n", "kubevirt", "kubevirt", "kubevirt").Status.Conditions
			if !slices.ContainsFunc(conditions, func(c v1.KubeVirtCondition) bool {
				return c.Type == v1.KubeVirtConditionCommonInstancetypesDeployed && c.Reason == reason
			}) {
				return fmt.Errorf("conditions %+v, want CommonInstancetypesDeployed with the reason %s", conditions, reason)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	const unset = `{"commonInstancetypesDeployment":null}`
	configure(t, `{"commonInstancetypesDeployment":{"enabled":true}}`, unset)
	awaitCondition(v1.ReasonInstancetypesDeployed)
	ns := namespace(t)
	requested := map[string]int64{}
	for size, preference := range map[string]string{"u1.nano": "alpine", "o1.nano": "cirros"} {
		name := strings.ReplaceAll(size, ".", "-")
		apply(t, ns, fmt.Sprintf("{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: %s}, spec: {runStrategy: Always, instancetype: {name: %s}, preference: {name: %s}, "+
			"template: {spec: {domain: {devices: {autoattachGraphicsDevice: false}}, terminationGracePeriodSeconds: 0, volumes: [{name: root, containerDisk: {image: %q}}]}}}}",
			name, size, preference, tinyImage))
		v := vmi{t: t, namespace: ns, name: name}
		if err := poll(20*time.Second, func() error {
			_, err := output("", "kubectl", "-n", ns, "get", "vmi", name)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		v.await(v1.Running)
		shell := v.shell()
		for command, want := range map[string]string{
			"ls /sys/class/block | grep vda$":                                     "vda", // the preference's bus
			"awk '/MemTotal/ {print ($2 > 400000 && $2 < 524288)}' /proc/meminfo": "1",
			"nproc": "1",
		} {
			if out, _ := shell.run(20*time.Second, command); strings.TrimSpace(out) != want {
				t.Errorf("%s: %s printed %q, want %s", size, command, out, want)
			}
		}
		requested[size] = v.pod().Spec.Containers[0].Resources.Requests.Memory().Value()
	}
	if less := requested["u1.nano"] - requested["o1.nano"]; less != 256<<20 {
		t.Errorf("the pod of o1.nano requests %d bytes less than that of u1.nano, want half of the guest's memory: %v", less, requested)
	}
	kubectl(t, "delete", "vmcf", "u1.micro")
	t.Cleanup(func() { kubectl(t, "delete", "vmcf", "u1.micro", "--ignore-not-found") })
	if _, err := output(`{apiVersion: instancetype.kubevirt.io/v1beta1, kind: VirtualMachineClusterInstancetype, metadata: {name: u1.micro}, spec: {cpu: {guest: 2}, memory: {guest: 1Gi}}}`,
		"kubectl", "create", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	configure(t, `{"commonInstancetypesDeployment":{"enabled":false}}`, unset)
	awaitCondition(v1.ReasonInstancetypesRemoved)
	if left := kubectl(t, "get", "vmcf,vmcp", "-l", "instancetype.kubevirt.io/vendor=kubevirt.io", "-o", "name"); left != "" {
		t.Errorf("after enabled: false there are still %s", left)
	}
	if cpus := kubectl(t, "get", "vmcf", "u1.micro", "-o", "jsonpath={.spec.cpu.guest}"); cpus != "2" {
		t.Errorf("the administrator's u1.micro has %s CPUs", cpus)
	}
}
