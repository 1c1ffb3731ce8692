package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// vm is a VirtualMachine on the cluster; its VMI has its name.
type vm struct{ vmi }

// manifestOf is a VM of the tiny guest.
func manifestOf(t *testing.T, name string, strategy v1.VirtualMachineRunStrategy, edits ...func(*v1.VirtualMachineInstanceSpec)) string {
	t.Helper()
	machine := &v1.VirtualMachine{
		TypeMeta:   metav1.TypeMeta{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.VirtualMachineSpec{RunStrategy: &strategy, Template: v1.VirtualMachineInstanceTemplateSpec{
			ObjectMeta: v1.TemplateMeta{Labels: map[string]string{"kubevirt.io/vm": name}}, Spec: tiny(name, edits...).Spec}},
	}
	text, err := json.Marshal(machine)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func createVM(t *testing.T, namespace, name string, strategy v1.VirtualMachineRunStrategy, edits ...func(*v1.VirtualMachineInstanceSpec)) vm {
	t.Helper()
	apply(t, namespace, manifestOf(t, name, strategy, edits...))
	return vm{vmi{t: t, namespace: namespace, name: name}}
}

func (m vm) machine() *v1.VirtualMachine {
	m.t.Helper()
	return get[v1.VirtualMachine](m.t, "-n", m.namespace, "vm", m.name)
}

// uid is that of the VM's VMI, or empty where there is none.
func (m vm) uid() types.UID {
	m.t.Helper()
	out, err := output("", "kubectl", "-n", m.namespace, "get", "vmi", m.name, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")
	if err != nil {
		m.t.Fatal(err)
	}
	return types.UID(out)
}

// is waits until kubectl shows the VM as this.
func (m vm) is(status v1.VirtualMachinePrintableStatus) {
	m.t.Helper()
	err := poll(120*time.Second, func() error {
		if now := m.machine().Status; now.PrintableStatus != status {
			return fmt.Errorf("VM %s is %s, want %s: %+v", m.name, now.PrintableStatus, status, now)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// runs waits until the VM runs, in another VMI than before, and returns its UID.
func (m vm) runs(before types.UID) types.UID {
	m.t.Helper()
	var uid string
	err := poll(120*time.Second, func() error {
		out, err := output("", "kubectl", "-n", m.namespace, "get", "vmi", m.name, "--ignore-not-found", "-o", "jsonpath={.metadata.uid} {.status.phase}")
		if err != nil {
			return err
		}
		var phase string
		uid, phase, _ = strings.Cut(out, " ")
		if uid == "" || types.UID(uid) == before || phase != string(v1.Running) {
			return fmt.Errorf("VMI of VM %s is %q, want another than %s that runs", m.name, out, before)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.is(v1.VirtualMachineStatusRunning)
	return types.UID(uid)
}

// ends waits until the VM is stopped, with its VMI in a phase, or without one.
func (m vm) ends(phase v1.VirtualMachineInstancePhase) {
	m.t.Helper()
	m.is(v1.VirtualMachineStatusStopped)
	err := poll(30*time.Second, func() error {
		out, err := output("", "kubectl", "-n", m.namespace, "get", "vmi", m.name, "--ignore-not-found", "-o", "jsonpath={.status.phase}")
		if err == nil && out != string(phase) {
			err = fmt.Errorf("VMI of VM %s is %q, want %q", m.name, out, phase)
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// asks patches requests into the VM's status, as virtctl does.
func (m vm) asks(requests ...v1.VirtualMachineStateChangeRequest) {
	m.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"stateChangeRequests": requests}})
	if err != nil {
		m.t.Fatal(err)
	}
	kubectl(m.t, "-n", m.namespace, "patch", "vm", m.name, "--subresource=status", "--type=merge", "--patch", string(patch))
}

var startIt = v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest}

func stopIt(uid types.UID) v1.VirtualMachineStateChangeRequest {
	return v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: &uid}
}

// identity is what the guest knows its machine by.
func (m vm) identity() string {
	m.t.Helper()
	out, status := m.shell().run(20*time.Second, "cat /sys/class/dmi/id/product_uuid /sys/class/dmi/id/product_serial /sys/class/net/eth0/address")
	if status != 0 || len(strings.Fields(out)) != 3 {
		m.t.Errorf("the guest of VM %s knows its machine by %q (%d)", m.name, out, status)
	}
	return out
}

// powerOff has the guest power itself off.
func (m vm) powerOff() { m.t.Helper(); m.shell().send("poweroff\n") }

// crash kills the VM's QEMU.
func (m vm) crash() { m.t.Helper(); signal(m.t, "KILL", m.qemu()) }

// TestRunStrategies: each run strategy does what KubeVirt's does, after the
// guest powered itself off, after its QEMU was killed, and when it is asked to
// stop.
func TestRunStrategies(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	lives := map[v1.VirtualMachineRunStrategy]func(vm){
		v1.RunStrategyAlways: livesAlways, v1.RunStrategyRerunOnFailure: rerunsOnFailure, v1.RunStrategyManual: livesManually, v1.RunStrategyOnce: livesOnce,
	}
	for strategy, life := range lives {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			m := createVM(t, ns, strings.ToLower(string(strategy)), strategy)
			life(m)
			cascade := "--cascade=background"
			if strategy == v1.RunStrategyAlways {
				cascade = "--cascade=foreground"
			}
			kubectl(t, "-n", ns, "delete", "vm", m.name, cascade, "--timeout=60s")
			if uid := m.uid(); uid != "" {
				t.Errorf("VM %s is gone, and its VMI %s is there", m.name, uid)
			}
		})
	}
}

func livesAlways(m vm) {
	first := m.runs("")
	m.columns()
	identity := m.identity()
	m.powerOff()
	second := m.runs(first)
	m.crash()
	third := m.runs(second)
	m.asks(stopIt(third))
	fourth := m.runs(third)
	if now := m.identity(); now != identity {
		m.t.Errorf("the guest knows its machine by %q, and knew it by %q", now, identity)
	}
	m.patch(`{"spec":{"runStrategy":"Halted"}}`)
	m.ends("")
	m.patch(`{"spec":{"runStrategy":"Always"}}`)
	m.runs(fourth)
	m.awaitMachineEvents("SuccessfulCreate", "SuccessfulDelete", "SuccessfulCreate")
}

func rerunsOnFailure(m vm) {
	first := m.runs("")
	m.crash()
	second := m.runs(first)
	m.powerOff()
	m.ends("")
	m.asks(startIt)
	third := m.runs(second)
	m.asks(stopIt(third))
	m.ends("")
}

func livesManually(m vm) {
	m.ends("")
	m.asks(startIt)
	first := m.runs("")
	m.asks(stopIt(first), startIt)
	second := m.runs(first)
	m.powerOff()
	m.ends(v1.Succeeded)
	m.asks(startIt)
	third := m.runs(second)
	m.crash()
	m.ends(v1.Failed)
	m.asks(stopIt(third))
	m.ends("")
}

func livesOnce(m vm) {
	m.runs("")
	m.crash()
	m.ends(v1.Failed)
}

func (m vm) patch(patch string) {
	m.t.Helper()
	kubectl(m.t, "-n", m.namespace, "patch", "vm", m.name, "--type=merge", "--patch", patch)
}

// columns looks at what kubectl shows of a VM that runs.
func (m vm) columns() {
	m.t.Helper()
	table := strings.Split(kubectl(m.t, "-n", m.namespace, "get", "vm", m.name), "\n")
	if have, want := strings.Fields(table[0]), []string{"NAME", "AGE", "STATUS", "READY"}; !slices.Equal(have, want) {
		m.t.Errorf("columns are %v, want %v", have, want)
	}
	if row := strings.Fields(table[1]); len(row) != 4 || row[0] != m.name || row[2] != "Running" || row[3] != "True" {
		m.t.Errorf("kubectl get vm shows %q", row)
	}
	if listed := kubectl(m.t, "-n", m.namespace, "get", "all"); !strings.Contains(listed, "virtualmachine.kubevirt.io/"+m.name) {
		m.t.Errorf("kubectl get all does not show it:\n%s", listed)
	}
}

// awaitMachineEvents waits until the VM has these events, in this order.
func (m vm) awaitMachineEvents(reasons ...string) {
	m.t.Helper()
	err := poll(15*time.Second, func() error {
		out, err := output("", "kubectl", "-n", m.namespace, "get", "events", "--sort-by=.eventTime",
			"--field-selector=involvedObject.kind=VirtualMachine,involvedObject.name="+m.name, "-o", "jsonpath={.items[*].reason}")
		missing := reasons
		for _, have := range strings.Fields(out) {
			if len(missing) > 0 && have == missing[0] {
				missing = missing[1:]
			}
		}
		if err == nil && len(missing) > 0 {
			err = fmt.Errorf("events of VM %s are %q, want %v in this order", m.name, out, reasons)
		}
		return err
	})
	if err != nil {
		m.t.Error(err)
	}
}

// TestOrphanedVM: a VM that is deleted without its VMI leaves it running, and a
// VM of its name lets that one alone until it is gone. What was applied is
// there as it was applied.
func TestOrphanedVM(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	m := createVM(t, ns, "orphan", v1.RunStrategyAlways)
	uid := m.runs("")
	manifest := manifestOf(t, "orphan", v1.RunStrategyAlways)
	if out, err := output(manifest, "kubectl", "-n", ns, "diff", "-f", "-"); err != nil {
		t.Errorf("kubectl diff: %v\n%s", err, out)
	}
	qemu := m.qemu()
	kubectl(t, "-n", ns, "delete", "vm", "orphan", "--cascade=orphan", "--timeout=60s")
	createVM(t, ns, "orphan", v1.RunStrategyAlways)
	err := poll(30*time.Second, func() error {
		if c := m.machine().Status.Condition(v1.ConditionFailure); c == nil || c.Reason != "FailedCreate" {
			return fmt.Errorf("condition Failure is %+v", c)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	left := m.get()
	if left.UID != uid || left.DeletionTimestamp != nil || len(left.OwnerReferences) != 0 || left.Status.Phase != v1.Running || m.qemu().Start != qemu.Start {
		t.Errorf("the VMI that was left is %+v", left)
	}
	m.delete()
	m.runs(uid)
}

// TestVMInNamespace: a namespace with a VM that always runs can be deleted.
func TestVMInNamespace(t *testing.T) {
	t.Parallel()
	name := fmt.Sprintf("vm-in-namespace-%05d", time.Now().UnixMicro()%100000)
	kubectl(t, "create", "namespace", name)
	t.Cleanup(func() {
		if t.Failed() {
			diagnose(t, name)
		}
	})
	createVM(t, name, "vm", v1.RunStrategyAlways).runs("")
	kubectl(t, "delete", "namespace", name, "--timeout=90s")
}
