package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	now, err := m.instance()
	if err != nil {
		m.t.Fatal(err)
	}
	return now.UID
}

// is waits until kubectl shows the VM as this.
func (m vm) is(status v1.VirtualMachinePrintableStatus) {
	m.t.Helper()
	err := poll(func() error {
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
	var uid types.UID
	err := poll(func() error {
		now, err := m.instance()
		if err == nil && (now.UID == "" || now.UID == before || now.Status.Phase != v1.Running) {
			err = fmt.Errorf("VMI of VM %s is %q, %s, want another than %s that runs", m.name, now.UID, now.Status.Phase, before)
		}
		uid = now.UID
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.is(v1.VirtualMachineStatusRunning)
	return uid
}

// instance is the VM's VMI, or an empty one where there is none.
func (m vm) instance() (v1.VirtualMachineInstance, error) {
	now, err := getObject[v1.VirtualMachineInstance]("-n", m.namespace, "vmi", m.name)
	switch {
	case apierrors.IsNotFound(err):
		return v1.VirtualMachineInstance{}, nil
	case err != nil:
		return v1.VirtualMachineInstance{}, err
	}
	return *now, nil
}

// ends waits until the VM is stopped, with its VMI in a phase, or without one.
func (m vm) ends(phase v1.VirtualMachineInstancePhase) {
	m.t.Helper()
	m.is(v1.VirtualMachineStatusStopped)
	err := poll(func() error {
		now, err := m.instance()
		if err == nil && now.Status.Phase != phase {
			err = fmt.Errorf("VMI of VM %s is %q, want %q", m.name, now.Status.Phase, phase)
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
	out, status := m.shell().run("cat /sys/class/dmi/id/product_uuid /sys/class/dmi/id/product_serial /sys/class/net/eth0/address")
	if status != 0 || len(strings.Fields(out)) != 3 {
		m.t.Errorf("the guest of VM %s knows its machine by %q (%d)", m.name, out, status)
	}
	return out
}

// powerOff has the guest power itself off.
func (m vm) powerOff() { m.t.Helper(); m.shell().send("poweroff\n") }

// crash kills the VM's QEMU.
func (m vm) crash() { m.t.Helper(); signal(m.t, "KILL", m.qemu()) }

// step is something that happens to a VM, and what becomes of it by that.
type step struct {
	does func(vm)
	then outcome
}

// outcome of a step.
type outcome string

const (
	anew      outcome = "runs in another VMI than before"
	gone      outcome = "stopped, without a VMI"
	succeeded outcome = "stopped, its VMI Succeeded"
	failed    outcome = "stopped, its VMI Failed"
)

// What happens to a VM, beside powerOff and crash.
func created(vm)       {}
func asksStart(m vm)   { m.t.Helper(); m.asks(startIt) }
func asksStop(m vm)    { m.t.Helper(); m.asks(stopIt(m.uid())) }
func asksRestart(m vm) { m.t.Helper(); m.asks(stopIt(m.uid()), startIt) }
func halts(m vm)       { m.t.Helper(); m.patch(`{"spec":{"runStrategy":"Halted"}}`) }
func enables(m vm)     { m.t.Helper(); m.patch(`{"spec":{"runStrategy":"Always"}}`) }

// showsInOrder looks whether lines of a table come after each other; others may
// be between them.
func showsInOrder(s *transcript, lines ...string) {
	s.t.Helper()
	whole := `(?ms)^` + strings.Join(lines, `[^\n]*\n(.*\n)?`)
	if shown := s.all(); !regexp.MustCompile(whole).MatchString(shown) {
		s.t.Errorf("%s does not show, in this order, %q:\n%s", s.what, lines, shown)
	}
}

// lives takes a VM through steps; before is its VMI's UID until then.
func (m vm) lives(before types.UID, steps []step) types.UID {
	m.t.Helper()
	for _, s := range steps {
		begin := time.Now()
		s.does(m)
		switch s.then {
		case anew:
			before = m.runs(before)
		case gone:
			m.ends("")
		case succeeded:
			m.ends(v1.Succeeded)
		case failed:
			m.ends(v1.Failed)
		}
		m.t.Logf("%s, %.0f s later", s.then, time.Since(begin).Seconds())
	}
	return before
}

// livesLong looks besides whether the VM stays the same machine to its guest.
func (m vm) livesLong(steps []step) {
	m.t.Helper()
	uid := m.lives("", steps[:1])
	kubectl(m.t, "-n", m.namespace, "wait", "vm/"+m.name, "vmi/"+m.name, "--for=condition=Ready", "--timeout=600s")
	m.columns()
	m.follows()
	identity := m.identity()
	m.lives(uid, steps[1:])
	if now := m.identity(); now != identity {
		m.t.Errorf("the guest knows its machine by %q, and knew it by %q", now, identity)
	}
	m.awaitMachineEvents("SuccessfulCreate", "SuccessfulDelete", "SuccessfulCreate")
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

// follows: the descheduler's annotations in the template reach the running VMI and its pod, and go
// from both again. Others are for the next start.
func (m vm) follows() {
	m.t.Helper()
	const evict = "descheduler.alpha.kubernetes.io/evict"
	for _, value := range []string{`"true"`, "null"} {
		m.patch(`{"spec":{"template":{"metadata":{"annotations":{"` + evict + `":` + value + `,"e2e":"later"}}}}}`)
		if err := poll(func() error {
			for what, annotations := range map[string]map[string]string{"VMI": m.get().Annotations, "pod": m.pod().Annotations} {
				_, early := annotations["e2e"]
				if _, there := annotations[evict]; there != (value != "null") || early {
					return fmt.Errorf("the template has %s: %s, the %s has the annotations %v", evict, value, what, annotations)
				}
			}
			return nil
		}); err != nil {
			m.t.Error(err)
		}
	}
}

// awaitMachineEvents waits until the VM has these events, in this order.
func (m vm) awaitMachineEvents(reasons ...string) {
	m.t.Helper()
	err := poll(func() error {
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
	m := createVM(t, ns, "orphan", v1.RunStrategyAlways, bootsKernel)
	uid := m.runs("")
	manifest := manifestOf(t, "orphan", v1.RunStrategyAlways, bootsKernel)
	// The controllers may write between the two objects that are compared.
	if err := poll(func() error {
		out, err := output(manifest, "kubectl", "-n", ns, "diff", "-f", "-")
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	qemu := m.qemu()
	kubectl(t, "-n", ns, "delete", "vm", "orphan", "--cascade=orphan", "--timeout=600s")
	createVM(t, ns, "orphan", v1.RunStrategyAlways, bootsKernel)
	err := poll(func() error {
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

// TestDeafGuestsSuccessorWaits: while a guest takes the whole of its grace period, the next
// one does not start, whatever becomes of the owner of its pod, and its user may
// think otherwise of a restart.
func TestDeafGuestsSuccessorWaits(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	m := createVM(t, ns, "deaf", v1.RunStrategyAlways, grace(3*deafGrace), cloudInit(ignoreACPI))
	deaf := func(before types.UID) types.UID {
		uid := m.runs(before)
		m.log().shows(`tiny: eth0`)
		return uid
	}
	first := deaf("")
	kubectl(t, "-n", ns, "delete", "vmi", "deaf", "--cascade=orphan", "--wait=false")
	if err := poll(func() error {
		if m.uid() == first {
			return errors.New("the VMI is there")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if left := get[corev1.PodList](t, "-n", ns, "pods", "-l", v1.CreatedByLabel+"="+string(first)); len(left.Items) > 0 {
		t.Errorf("the VMI is gone, and its launcher pod is there: %+v", left.Items[0].ObjectMeta)
	}
	second := deaf(first)
	m.asks(stopIt(second), startIt)
	m.is(v1.VirtualMachineStatusStopping)
	kubectl(t, "-n", ns, "patch", "vm", "deaf", "--type=merge", "--patch", `{"spec":{"runStrategy":"Halted"}}`)
	if now := m.uid(); now != second {
		t.Fatalf("the VMI %s had ended before the VM was halted, and now is %q", second, now)
	}
	m.ends("")
	if now := m.machine(); now.Strategy() != v1.RunStrategyHalted || len(now.Status.StateChangeRequests) > 0 {
		t.Errorf("halted during a restart, its run strategy is %s, and it is asked %+v", now.Strategy(), now.Status.StateChangeRequests)
	}
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
	createVM(t, name, "vm", v1.RunStrategyAlways, bootsKernel).runs("")
	kubectl(t, "delete", "namespace", name, "--timeout=600s")
}
