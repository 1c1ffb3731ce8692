package vm

import (
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// saying gives a VMI conditions, and returns the VMI.
func saying(vmi *v1.VirtualMachineInstance,
	conditions ...v1.VirtualMachineInstanceCondition) *v1.VirtualMachineInstance {
	vmi.Status.Conditions = conditions
	return vmi
}

func isTrueFor(kind v1.ConditionType, reason string) v1.VirtualMachineInstanceCondition {
	return v1.VirtualMachineInstanceCondition{Type: kind, Status: metav1.ConditionTrue, Reason: reason,
		LastTransitionTime: metav1.Unix(10, 0)}
}

func isFalseFor(kind v1.ConditionType, reason string) v1.VirtualMachineInstanceCondition {
	return v1.VirtualMachineInstanceCondition{Type: kind, Status: metav1.ConditionFalse, Reason: reason,
		LastTransitionTime: metav1.Unix(10, 0)}
}

// moving gives a VMI the status of a guest that is being copied to another node, and returns the VMI.
func moving(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{StartTimestamp: &metav1.Time{Time: now}}
	return vmi
}

// TestPrintableStatusInKubeVirtsOrder: of the states that apply, the first in KubeVirt's order wins.
func TestPrintableStatusInKubeVirtsOrder(t *testing.T) {
	gone := func(vm *v1.VirtualMachine) *v1.VirtualMachine {
		vm.DeletionTimestamp = ptr.To(metav1.NewTime(now))
		return vm
	}
	always := machine(v1.RunStrategyAlways)
	failed := plan{startFailure: &v1.VirtualMachineStartFailure{ConsecutiveFailCount: 1}}
	everything := []v1.VirtualMachineInstanceCondition{isTrueFor(v1.ConditionPaused, "PausedByUser"),
		isFalseFor(v1.ConditionSynchronized, "FailedPvcNotFound"),
		isFalseFor(v1.ConditionPodScheduled, "Unschedulable"), isTrueFor("Provisioning", "")}
	for _, c := range []struct {
		want v1.VirtualMachinePrintableStatus
		vm   *v1.VirtualMachine
		vmi  *v1.VirtualMachineInstance
		p    plan
		why  *failure
	}{
		{"Terminating", gone(machine(v1.RunStrategyAlways)), deleting(run(v1.Running)), plan{}, nil},
		{"Terminating", gone(machine(v1.RunStrategyAlways)), nil, plan{}, nil},
		{"Stopping", always, deleting(saying(run(v1.Running), everything...)), plan{}, nil},
		{"Stopping", always, run(v1.Running), plan{action: stop}, nil},
		{"Stopping", always, deleting(run(v1.Pending)), failed, nil},
		{"Migrating", always, moving(saying(run(v1.Running), everything...)), plan{}, nil},
		{"Paused", always, saying(run(v1.Running), everything...), plan{}, nil},
		{"Running", always, saying(run(v1.Running), everything[1:]...), failed, nil},
		{"ErrorPvcNotFound", always, saying(run(v1.Pending), everything[1:]...), failed, nil},
		{"ErrorUnschedulable", always, saying(run(v1.Scheduling), everything[2:]...), failed, nil},
		{"Provisioning", always, saying(run(v1.Pending), everything[3:]...), plan{}, nil},
		{"WaitingForVolumeBinding", always, saying(run(v1.Pending), isFalseFor(v1.ConditionSynchronized, "PVCNotReady")),
			plan{}, nil},
		{"ErrImagePull", always, saying(run(v1.Scheduling), isFalseFor(v1.ConditionSynchronized, "ErrImagePull")), plan{},
			nil},
		{"ImagePullBackOff", always, saying(run(v1.Scheduling), isFalseFor(v1.ConditionSynchronized, "ImagePullBackOff")),
			plan{}, nil},
		{"Starting", always, saying(run(v1.Scheduling), isFalseFor(v1.ConditionSynchronized, "UnexpectedAdmissionError")),
			failed, nil},
		{"Starting", always, run(), failed, nil},
		{"Starting", always, run(v1.Scheduled), plan{}, nil},
		{"CrashLoopBackOff", always, nil, failed, nil},
		{"CrashLoopBackOff", always, run(v1.Failed), failed, nil},
		{"Stopped", always, run(v1.Running, v1.Failed), plan{action: stop}, nil},
		{"Stopped", always, nil, plan{}, nil},
		{"Unknown", always, run("Migrating"), plan{}, nil},
		{want: "WaitingForVolumeBinding", vm: always,
			vmi: saying(run(v1.Scheduling), isFalseFor(v1.ConditionSynchronized, v1.ReasonMountFailed))},
		{want: "ErrorUnschedulable", vm: always,
			vmi: saying(run(v1.Pending), isFalseFor(v1.ConditionSynchronized, v1.ReasonFailedCreate))},
		{want: "Stopped", vm: always, p: plan{action: start}, why: &failure{reason: v1.ReasonFailedCreate}},
		{want: "Stopped", vm: machine(v1.RunStrategyHalted), why: &failure{reason: v1.ReasonInvalidSpec}},
		{want: "DataVolumeError", vm: always, p: plan{action: start}, why: &failure{reason: v1.ReasonFailedDataVolumeCreate}},
		{want: "DataVolumeError", vm: machine(v1.RunStrategyHalted),
			why: &failure{reason: v1.ReasonUnauthorizedDataVolumeCreate}},
	} {
		if c.vmi != nil && c.want == "Unknown" {
			c.vmi.Status.Phase = "Strange"
		}
		if got := printable(c.vm, c.vmi, c.p, c.why); got != c.want {
			t.Errorf("%s, want %s: VMI %+v", got, c.want, c.vmi)
		}
	}
}

func TestConditionsOfAVM(t *testing.T) {
	type conditions = []v1.VirtualMachineInstanceCondition
	earlier, later := metav1.NewTime(now), metav1.NewTime(now.Add(time.Minute))
	kinds := func(list conditions) (out []string) {
		for _, c := range list {
			out = append(out, string(c.Type)+"="+string(c.Status)+"/"+c.Reason)
		}
		return out
	}
	vm := machine(v1.RunStrategyAlways)
	step := func(vmi *v1.VirtualMachineInstance, failed *failure, at metav1.Time, want ...string) {
		t.Helper()
		vm.Status = observe(vm, vmi, plan{live: vm.Live(vmi, nil)}, failed, at)
		if diff := cmp.Diff(want, kinds(vm.Status.Conditions)); diff != "" {
			t.Error(diff)
		}
	}
	step(nil, &failure{"FailedCreate", "no"}, earlier, "Ready=False/VMINotExists", "Failure=True/FailedCreate")
	step(nil, &failure{"FailedCreate", "still no"}, later, "Ready=False/VMINotExists", "Failure=True/FailedCreate")
	for _, c := range vm.Status.Conditions {
		if c.LastTransitionTime != earlier {
			t.Errorf("condition %s: transition at %s", c.Type, c.LastTransitionTime)
		}
	}
	if message := vm.Status.Condition(v1.ConditionFailure).Message; message != "still no" {
		t.Errorf("message %q", message)
	}
	vmi := run()
	step(vmi, nil, later, "Ready=False/VMIConditionMissing")
	saying(vmi, isTrueFor(v1.ConditionReady, "GuestRunning"), isTrueFor(v1.ConditionPaused, "PausedByUser"),
		isFalseFor(v1.ConditionLiveMigratable, "DisksNotLiveMigratable"))
	vmi.Spec.Hostname = "another"
	vmi.Annotations = map[string]string{v1.TemplatePartsAnnotation: `["hostname=another"]`, v1.VMGenerationAnnotation: "2"}
	step(vmi, nil, later, "Ready=True/GuestRunning", "Paused=True/PausedByUser",
		"LiveMigratable=False/DisksNotLiveMigratable", "RestartRequired=True/TemplateChanged")
	if s := vm.Status; !s.Ready || !s.Created || s.ObservedGeneration != 2 || s.DesiredGeneration != 3 ||
		s.Condition(v1.ConditionPaused).LastTransitionTime != metav1.Unix(10, 0) {
		t.Errorf("status %+v", s)
	}
	relabelled := vm.DeepCopy()
	relabelled.Spec.Template.ObjectMeta.Labels = map[string]string{"of": "before"}
	vmi.Annotations = map[string]string{v1.TemplatePartsAnnotation: relabelled.Parts().String(),
		v1.VMGenerationAnnotation: "2"}
	step(vmi, nil, later, "Ready=True/GuestRunning", "Paused=True/PausedByUser",
		"LiveMigratable=False/DisksNotLiveMigratable")
	if s := vm.Status; s.ObservedGeneration != 2 || s.DesiredGeneration != 3 {
		t.Errorf("after a change of the template's labels alone: status %+v", s)
	}
	step(deleting(vmi), nil, later, "Ready=True/GuestRunning", "Paused=True/PausedByUser",
		"LiveMigratable=False/DisksNotLiveMigratable")
	step(nil, nil, later, "Ready=False/VMINotExists")
	if s := vm.Status; s.Ready || s.Created || s.ObservedGeneration != 3 {
		t.Errorf("status %+v", s)
	}
}

// TestHostileNodeCannotForgeConditions: what a node writes into a VMI's conditions does not pass for the VM's
// own word. It does not make the VM's status one that cannot be written either.
func TestHostileNodeCannotForgeConditions(t *testing.T) {
	list := []v1.VirtualMachineInstanceCondition{isTrueFor(v1.ConditionFailure, "Lie"),
		isTrueFor(v1.ConditionRestartRequired, "Lie"),
		isTrueFor(v1.ConditionType(strings.Repeat("x", 1000)), ""), isTrueFor("Long", strings.Repeat("x", 1000)),
		isTrueFor(v1.ConditionReady, "GuestRunning")}
	list[4].Message = strings.Repeat("é", 1<<19)
	for i := range 1000 {
		list = append(list, isTrueFor(v1.ConditionType(strconv.Itoa(i)), ""))
	}
	vm := machine(v1.RunStrategyAlways)
	status := observe(vm, saying(run(v1.Running), list...), plan{}, &failure{"FailedDelete", "no"}, metav1.NewTime(now))
	seen := map[v1.ConditionType]string{}
	size := 0
	for _, c := range status.Conditions {
		if _, twice := seen[c.Type]; twice {
			t.Errorf("two conditions %s", c.Type)
		}
		seen[c.Type] = c.Reason
		size += len(c.Type) + len(c.Reason) + len(c.Message)
		if !utf8.ValidString(c.Message) {
			t.Errorf("the message of %s is no text", c.Type)
		}
	}
	if seen[v1.ConditionFailure] != "FailedDelete" || seen[v1.ConditionRestartRequired] != "" ||
		seen[v1.ConditionReady] != "GuestRunning" {
		t.Errorf("conditions: %v", seen)
	}
	if len(seen) > maxCopied+2 || size > 64<<10 {
		t.Errorf("%d conditions, %d bytes", len(seen), size)
	}
}

// TestFailureStaysUntilAGuestRuns: the reason why the last VMI failed stays in the VM's status until a guest
// runs, or until there is another reason.
func TestFailureStaysUntilAGuestRuns(t *testing.T) {
	const why = "network \"lan\": the MTU is 68"
	failing := saying(run(v1.Failed),
		v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: "StartFailed",
			Message: why})
	failing.UID = "failed"
	counted := plan{startFailure: &v1.VirtualMachineStartFailure{ConsecutiveFailCount: 1, LastFailedVMIUID: failing.UID}}
	vm := machine(v1.RunStrategyAlways)
	says := func(step string, vmi *v1.VirtualMachineInstance, p plan, failed *failure, reason, words string) {
		t.Helper()
		vm.Status = observe(vm, vmi, p, failed, metav1.Unix(10, 0))
		c := vm.Status.Condition(v1.ConditionFailure)
		if got := ptr.Deref(c, v1.VirtualMachineInstanceCondition{}); got.Reason != reason ||
			!strings.Contains(got.Message, words) || len(got.Message) > maxMessage+len("…") {
			t.Errorf("%s: %+v, want %s with %q", step, c, reason, words)
		}
	}
	says("failed", failing, counted, nil, v1.ReasonGuestNotStarted, why)
	says("gone", nil, counted, nil, v1.ReasonGuestNotStarted, why)
	next := run(v1.Scheduling)
	next.UID = "next"
	says("started anew", next, counted, nil, v1.ReasonGuestNotStarted, why)
	says("another reason", next, counted, &failure{"FailedCreate", "quota"}, "FailedCreate", "quota")
	says("the other reason ends", next, counted, nil, "", "")
	failing.Status.Conditions[0].Message = strings.Repeat("x", 2*maxMessage)
	says("failed with a long reason", failing, counted, nil, v1.ReasonGuestNotStarted, "xxx")
	says("runs", run(v1.Running), plan{}, nil, "", "")
	failing.Status.Conditions = nil
	says("failed without a word", failing, counted, nil, v1.ReasonGuestNotStarted, "before its guest ran")
}

// TestWhereTheGuestRuns: the VM's status says on which node its guest runs, and its first address. What a node writes
// there that is no address is left out.
func TestWhereTheGuestRuns(t *testing.T) {
	for name, c := range map[string]struct {
		phase v1.VirtualMachineInstancePhase
		node  string
		ips   []string
		want  *v1.GuestPlace
	}{
		"running":    {v1.Running, "a", []string{"10.0.0.1", "10.0.0.2"}, &v1.GuestPlace{NodeName: "a", IP: "10.0.0.1"}},
		"IPv6":       {v1.Running, "a", []string{"fd00::1"}, &v1.GuestPlace{NodeName: "a", IP: "fd00::1"}},
		"no address": {v1.Running, "a", nil, &v1.GuestPlace{NodeName: "a"}},
		"a lie":      {v1.Running, "a", []string{strings.Repeat("1", 1000)}, &v1.GuestPlace{NodeName: "a"}},
		"a zone": {v1.Running, "a", []string{"fe80::1%" + strings.Repeat("x", 100)},
			&v1.GuestPlace{NodeName: "a", IP: "fe80::1"}},
		"starting":   {v1.Scheduled, "a", []string{"10.0.0.1"}, nil},
		"ended":      {v1.Succeeded, "a", []string{"10.0.0.1"}, nil},
		"on no node": {v1.Running, "", []string{"10.0.0.1"}, nil},
	} {
		vmi := run()
		vmi.Status.Phase, vmi.Status.NodeName = c.phase, c.node
		for _, ip := range c.ips {
			vmi.Status.Interfaces = append(vmi.Status.Interfaces, v1.NetworkInterfaceStatus{IP: ip})
		}
		if got := placeOf(vmi); !cmp.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if got := placeOf(nil); got != nil {
		t.Errorf("without a VMI: %+v", got)
	}
}
