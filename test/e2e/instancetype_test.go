package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// dogged is a preset that the sample's VM takes its watchdog from, but not its CPUs.
const dogged = `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstancePreset
metadata: {name: dogged}
spec:
  selector: {matchLabels: {kubevirt.io/vm: sized}}
  domain: {cpu: {cores: 9}, devices: {watchdog: {name: dog, i6300esb: {action: reset}}}}
`

// TestInstancetype: the sample's guest has the size and the devices that are
// named beside it, and what a preset adds.
func TestInstancetype(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, ns, dogged)
	kubectl(t, "-n", ns, "apply", "-f", "../../config/samples/vm-instancetype.yaml")
	contradicted(t, ns)
	// Its VMI comes a moment later.
	if err := poll(func() error {
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
		"grep -lx 0x25ab /sys/bus/pci/devices/*/device | wc -l":         "1", // the preset's watchdog
	} {
		if out, _ := shell.run(command); strings.TrimSpace(out) != want {
			t.Errorf("%s printed %q, want %s", command, out, want)
		}
	}
	if a := v.get().Annotations; a["virtualmachinepreset.kubevirt.io/dogged"] != "kubevirt.io/v1" {
		t.Errorf("annotations %v", a)
	}
	if notes := kubectl(t, "-n", ns, "get", "events", "--field-selector=reason=Override,involvedObject.name=sized", "-o", "jsonpath={.items[*].message}"); !strings.Contains(notes, `"cores":9} of VirtualMachineInstancePreset "dogged"`) {
		t.Errorf("events %q, want what the VM's own size overrides", notes)
	}
	kubectl(t, "-n", ns, "delete", "vm", "sized", "--timeout=600s")
}

// TestCommonInstancetypes: when the KubeVirt object asks for the well-known instancetypes and
// preferences, they are there, and guests run with them. What an administrator created stays.
func TestCommonInstancetypes(t *testing.T) {
	t.Parallel()
	awaitCondition := func(reason string) {
		t.Helper()
		if err := poll(func() error {
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
			"template: {spec: {domain: {devices: {autoattachGraphicsDevice: false}, firmware: {kernelBoot: %s}}, terminationGracePeriodSeconds: 0, volumes: [{name: root, containerDisk: {image: %q}}]}}}}",
			name, size, preference, tinyKernel, tinyImage))
		v := vmi{t: t, namespace: ns, name: name}
		if err := poll(func() error {
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
			if out, _ := shell.run(command); strings.TrimSpace(out) != want {
				t.Errorf("%s: %s printed %q, want %s", size, command, out, want)
			}
		}
		requested[size] = v.pod().Spec.Containers[0].Resources.Requests.Memory().Value()
	}
	// A percentage of bytes is rounded.
	if less := requested["u1.nano"] - requested["o1.nano"]; less < 256<<20 || less > 256<<20+100 {
		t.Errorf("the pod of o1.nano requests %d bytes less than that of u1.nano, want half of the guest's memory: %v", less, requested)
	}
	kubectl(t, "delete", "vmcf", "u1.micro")
	t.Cleanup(func() { kubectl(t, "delete", "vmcf", "u1.micro", "--ignore-not-found") })
	if _, err := output(`
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachineClusterInstancetype
metadata: {name: u1.micro}
spec: {cpu: {guest: 2}, memory: {guest: 1Gi}}
`, "kubectl", "create", "-f", "-"); err != nil {
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

// contradicted: a VMI that is applied together with presets that contradict each other fails, and
// says so. With one of them it has its memory from that preset.
func contradicted(t *testing.T, ns string) {
	t.Helper()
	small := func(name, memory string) string {
		return "---\napiVersion: kubevirt.io/v1\nkind: VirtualMachineInstancePreset\nmetadata: {name: " + name + "}\nspec: {selector: {matchLabels: {size: small}}, domain: {memory: {guest: " + memory + "}}}\n"
	}
	object := func(name string) string {
		return "---\napiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: " + name + ", labels: {size: small}}\n" +
			"spec: {nodeSelector: {no: such}, domain: {devices: {}}}\n"
	}
	apply(t, ns, small("small", "64Mi")+object("filled"))
	v := vmi{t: t, namespace: ns, name: "filled"}
	if now := v.await(v1.Scheduling); now.Spec.Domain.Memory.Guest.String() != "64Mi" {
		t.Errorf("memory %v", now.Spec.Domain.Memory)
	}
	v.delete()
	apply(t, ns, small("large", "1Gi")+object("contradicted"))
	v.name = "contradicted"
	failed := v.await(v1.Failed)
	if c := failed.Status.Condition(v1.ConditionSynchronized); failed.Status.Reason != v1.ReasonPresetFailed || c == nil || !strings.Contains(c.Message, `"large" and "small" both select this object`) {
		t.Errorf("status %+v", failed.Status)
	}
	v.delete()
	if _, err := output("---\n"+strings.Replace(small("bad", "64Mi"), "domain: {", "domain: {devices: {disks: [{name: a}]}, ", 1), "kubectl", "-n", ns, "apply", "-f", "-"); err == nil || !strings.Contains(err.Error(), "spec.domain.devices.disks") {
		t.Errorf("a preset with disks: %v", err)
	}
	if out := kubectl(t, "-n", ns, "get", "vmipreset", "-o", "name"); strings.Count(out, "\n") != 3 {
		t.Errorf("presets %s", out)
	}
}
