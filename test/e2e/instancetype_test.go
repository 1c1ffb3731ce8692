package e2e

import (
	"strings"
	"testing"
	"time"

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
		"grep -lx 0x25ab /sys/bus/pci/devices/*/device | wc -l":         "1", // the preset's watchdog
	} {
		if out, _ := shell.run(20*time.Second, command); strings.TrimSpace(out) != want {
			t.Errorf("%s printed %q, want %s", command, out, want)
		}
	}
	if a := v.get().Annotations; a["virtualmachineinstancepreset.kubevirt.io/dogged"] != "kubevirt.io/v1" {
		t.Errorf("annotations %v", a)
	}
	if notes := kubectl(t, "-n", ns, "get", "events", "--field-selector=reason=Override,involvedObject.name=sized", "-o", "jsonpath={.items[*].message}"); !strings.Contains(notes, `"cores":9} of VirtualMachineInstancePreset "dogged"`) {
		t.Errorf("events %q, want what the VM's own size overrides", notes)
	}
	kubectl(t, "-n", ns, "delete", "vm", "sized", "--timeout=180s")
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
