package node

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// wanted is what matters of a status: "Type=Status/Reason" per condition.
type wanted struct {
	phase      v1.VirtualMachineInstancePhase
	conditions []string
}

// TestDeletedVMIGetsNoComplaint: of a VMI that is deleted, virt-handler writes no complaint over virt-controller's.
func TestDeletedVMIGetsNoComplaint(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSynchronized, Status: metav1.ConditionFalse, Reason: v1.ReasonSandboxStays}, metav1.Unix(1000, 0))
	vmi.DeletionTimestamp = ptr.To(metav1.Unix(1000, 0))
	for _, want := range []string{v1.ReasonSandboxStays, v1.ReasonStartFailed} {
		startFailed(vmi, errors.New("no such link"), metav1.Unix(2000, 0))
		if got := vmi.Status.Condition(v1.ConditionSynchronized); got == nil || got.Reason != want {
			t.Errorf("%+v, want the reason %s", got, want)
		}
		vmi.DeletionTimestamp = nil
	}
}

func TestReportOfALauncher(t *testing.T) {
	then, now := metav1.Unix(1000, 0), metav1.Unix(2000, 0)
	startedAt := then.Time
	kvm := &qemuargs.Machine{Type: "pc-q35-7.2", Accelerator: qemuargs.KVM, NICs: []qemuargs.NIC{{Name: "default", MAC: "52:54:00:00:00:01", Queues: 2}}}
	tcg := &qemuargs.Machine{Type: "pc-q35-7.2", Accelerator: qemuargs.TCG}
	status := func(phase v1.VirtualMachineInstancePhase, conditions ...v1.ConditionType) v1.VirtualMachineInstanceStatus {
		s := v1.VirtualMachineInstanceStatus{Phase: phase}
		for _, c := range conditions {
			s.SetCondition(v1.VirtualMachineInstanceCondition{Type: c, Status: metav1.ConditionTrue, Reason: "Old"}, then)
		}
		return s
	}
	complains := func(reason string) v1.VirtualMachineInstanceStatus {
		s := status(v1.Scheduled)
		s.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSynchronized, Status: metav1.ConditionFalse, Reason: reason}, then)
		return s
	}
	started := func(s control.State, m *qemuargs.Machine) control.StateReport {
		return control.StateReport{State: s, Machine: m, StartedAt: &startedAt}
	}
	tests := []struct {
		name  string
		old   v1.VirtualMachineInstanceStatus
		state control.StateReport
		want  wanted
	}{
		{"waiting says nothing", status(v1.Scheduled), control.StateReport{State: control.StateWaiting}, wanted{v1.Scheduled, nil}},
		{"preparing says nothing", status(v1.Scheduled, v1.ConditionReady), control.StateReport{State: control.StatePreparing}, wanted{v1.Scheduled, []string{"Ready=True/Old"}}},
		{"a machine that has not run yet", status(v1.Scheduled), control.StateReport{State: control.StatePreparing, Machine: kvm}, wanted{v1.Scheduled, nil}},
		{"running", complains(v1.ReasonStartFailed), started(control.StateRunning, kvm), wanted{v1.Running, []string{"Ready=True/GuestRunning"}}},
		{"virt-controller's complaint stays", complains(v1.ReasonSandboxStays), started(control.StateRunning, kvm), wanted{v1.Running, []string{"Synchronized=False/FailedKillPod", "Ready=True/GuestRunning"}}},
		{"running, Scheduled was missed", status(v1.Scheduling), started(control.StateRunning, kvm), wanted{v1.Running, []string{"Ready=True/GuestRunning"}}},
		{"emulated", status(v1.Scheduled), started(control.StateRunning, tcg), wanted{v1.Running, []string{string(v1.ConditionSoftwareEmulation) + "=True/TCG", "Ready=True/GuestRunning"}}},
		{"paused", status(v1.Running, v1.ConditionReady), started(control.StatePaused, kvm), wanted{v1.Running, []string{"Ready=False/GuestNotRunning", "Paused=True/Paused"}}},
		{"goes on", status(v1.Running, v1.ConditionPaused), started(control.StateRunning, kvm), wanted{v1.Running, []string{"Ready=True/GuestRunning"}}},
		{"shutting down", status(v1.Running, v1.ConditionReady), started(control.StateShuttingDown, kvm), wanted{v1.Running, []string{"Ready=False/GuestShuttingDown"}}},
		{"exit is the controller's to tell", status(v1.Running, v1.ConditionReady), started(control.StateExited, kvm), wanted{v1.Running, []string{"Ready=True/Old"}}},
		{"failed before it ran, and kept", status(v1.Scheduled), control.StateReport{State: control.StateExited, Failure: "no such disk"}, wanted{v1.Scheduled, []string{"Ready=False/GuestFailed"}}},
		{"failed, and kept", status(v1.Running, v1.ConditionReady), control.StateReport{State: control.StateExited, Failure: "QEMU has ended", Machine: kvm}, wanted{v1.Running, []string{"Ready=False/GuestFailed"}}},
		{"a final phase stays", status(v1.Failed), started(control.StateRunning, kvm), wanted{v1.Failed, []string{"Ready=True/GuestRunning"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := &v1.VirtualMachineInstance{Status: *tt.old.DeepCopy()}
			report(got, tt.state, someNetwork(), now)
			have := wanted{phase: got.Status.Phase}
			for _, c := range got.Status.Conditions {
				have.conditions = append(have.conditions, string(c.Type)+"="+string(c.Status)+"/"+c.Reason)
			}
			if diff := cmp.Diff(tt.want, have, cmp.AllowUnexported(wanted{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			again := got.DeepCopy()
			report(again, tt.state, someNetwork(), metav1.NewTime(now.Add(time.Hour)))
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("the same report a second time changes the status:\n%s", diff)
			}
		})
	}
}

// TestReportWithReadinessProbe: of a guest that runs and has a readiness probe, virt-handler
// says only that it runs.
func TestReportWithReadinessProbe(t *testing.T) {
	startedAt := time.Unix(1000, 0)
	for old, want := range map[string]string{
		"":                             "False/ContainersNotReady",
		"GuestNotRunning":              "False/ContainersNotReady", // it was paused
		v1.ReasonLauncherNotResponding: "False/ContainersNotReady",
		v1.ReasonContainersNotReady:    "False/ContainersNotReady",
		v1.ReasonGuestReady:            "True/GuestReady",
		v1.ReasonGuestRunning:          "False/ContainersNotReady", // the VMI had no probe
	} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.ReadinessProbe = &v1.Probe{}
		if old != "" {
			status := metav1.ConditionFalse
			if old == v1.ReasonGuestReady || old == v1.ReasonGuestRunning {
				status = metav1.ConditionTrue
			}
			vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: status, Reason: old}, metav1.Unix(1000, 0))
		}
		report(vmi, control.StateReport{State: control.StateRunning, Machine: &qemuargs.Machine{}, StartedAt: &startedAt}, nil, metav1.Unix(2000, 0))
		if c := vmi.Status.Condition(v1.ConditionReady); string(c.Status)+"/"+c.Reason != want {
			t.Errorf("after %q: %s/%s, want %s", old, c.Status, c.Reason, want)
		}
	}
}

// TestSilentLauncherMakesVMINotReady: whoever does not answer, the VMI is not ready, and that is all.
func TestSilentLauncherMakesVMINotReady(t *testing.T) {
	then, now := metav1.Unix(1000, 0), metav1.Unix(2000, 0)
	startedAt := then.Time
	state := control.StateReport{State: control.StateRunning, Machine: &qemuargs.Machine{Type: "pc-q35-7.2"}, StartedAt: &startedAt}
	quiet := state
	quiet.QEMUSilent = true
	exited := quiet
	exited.State = control.StateExited
	tests := []struct {
		name     string
		state    control.StateReport
		launcher bool
		want     string
	}{
		{"both answer", state, false, "True/GuestRunning"},
		{"QEMU", quiet, false, "False/QEMUNotResponding"},
		{"launcher", state, true, "False/LauncherNotResponding"},
		{"both", quiet, true, "False/LauncherNotResponding"},
		{"QEMU that has ended", exited, false, "True/GuestRunning"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := &v1.VirtualMachineInstance{}
			report(before, state, nil, then)
			step := func(now metav1.Time) *v1.VirtualMachineInstance {
				after := before.DeepCopy()
				report(after, tt.state, nil, now)
				reportSilence(after, before, tt.state, tt.launcher, now)
				return after
			}
			after := step(now)
			ready := after.Status.Condition(v1.ConditionReady)
			if have := string(ready.Status) + "/" + ready.Reason; have != tt.want || after.Status.Phase != v1.Running {
				t.Errorf("%s and Ready %s, want %s", after.Status.Phase, have, tt.want)
			}
			if changed := ready.LastTransitionTime == now; changed != (ready.Status == metav1.ConditionFalse) {
				t.Errorf("transition at %v", ready.LastTransitionTime)
			}
			before = after
			if diff := cmp.Diff(after, step(metav1.NewTime(now.Add(time.Hour)))); diff != "" {
				t.Errorf("the same a second time changes the status:\n%s", diff)
			}
			report(after, state, nil, now)
			if ready := after.Status.Condition(v1.ConditionReady); ready.Status != metav1.ConditionTrue {
				t.Errorf("once they answer again: %+v", ready)
			}
		})
	}
	early := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Scheduled}}
	reportSilence(early, early.DeepCopy(), control.StateReport{State: control.StateWaiting}, true, now)
	if len(early.Status.Conditions) > 0 {
		t.Errorf("before the guest runs: %+v", early.Status.Conditions)
	}
}

func TestWhyAGuestIsPaused(t *testing.T) {
	for _, tt := range []struct {
		pause           *control.Pause
		reason, message string
	}{
		{nil, "Paused", "stopped"},
		{&control.Pause{Status: "paused"}, "PausedByUser", "paused by user"},
		{&control.Pause{Status: "io-error", Disk: "data", Operation: "write", Error: "No space left on device", NoSpace: true},
			"PausedIOError", `write disk "data": No space left on device (nospace)`},
		{&control.Pause{Status: "io-error", Disk: "data", Operation: "read", Error: "Input/output error"}, "PausedIOError", `read disk "data": Input/output error`},
		{&control.Pause{Status: "internal-error"}, "Paused", `run state is "internal-error"`},
		{&control.Pause{Status: "io-error", Disk: strings.Repeat("\xff\x00", 1<<19), Operation: "rm -rf", Error: strings.Repeat("é", 1<<19)}, "PausedIOError", "use disk"},
	} {
		c := paused(tt.pause)
		if c.Reason != tt.reason || !strings.Contains(c.Message, tt.message) || len(c.Message) > 1000 || !utf8.ValidString(c.Message) {
			t.Errorf("%.100v: %s: %.200q", tt.pause, c.Reason, c.Message)
		}
	}
}

// TestPauseIsToldOnce: a running guest's pauses and their ends are told once each.
func TestPauseIsToldOnce(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	r := &Reconciler{Events: recorder}
	startedAt := time.Unix(1000, 0)
	state := func(state control.State, status string) control.StateReport {
		s := control.StateReport{State: state, StartedAt: &startedAt, Machine: &qemuargs.Machine{Type: "pc-q35-7.2"}}
		if status != "" {
			s.Pause = &control.Pause{Status: status, Disk: "root", Operation: "write", Error: "EIO"}
		}
		return s
	}
	failed := state(control.StateExited, "")
	failed.Failure = "QEMUExited: it crashed"
	vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Scheduled}}
	const begun = "Normal Started VirtualMachineInstance started."
	const paused, unpaused = "Normal Paused VirtualMachineInstance paused", "Normal Unpaused VirtualMachineInstance unpaused"
	for _, step := range []struct {
		name  string
		state control.StateReport
		event string
	}{
		{"paused from the start", state(control.StatePaused, control.PausedByUser), begun},
		{"goes on", state(control.StateRunning, ""), unpaused},
		{"runs on", state(control.StateRunning, ""), ""},
		{"is paused", state(control.StatePaused, control.PausedByUser), paused},
		{"stays paused", state(control.StatePaused, control.PausedByUser), ""},
		{"goes on again", state(control.StateRunning, ""), unpaused},
		{"an I/O error", state(control.StatePaused, control.PausedIOError), "Warning IOerror "},
		{"the storage works again", state(control.StateRunning, ""), unpaused},
		{"QEMU's own", state(control.StatePaused, "internal-error"), "Warning Paused the guest's CPUs are stopped"},
		{"is to stop", state(control.StateShuttingDown, "internal-error"), "Normal ShuttingDown "},
		{"failed", failed, ""},
	} {
		before := vmi.DeepCopy()
		report(vmi, step.state, someNetwork(), metav1.Unix(2000, 0))
		r.announce(before, vmi, keepTerminating(before, vmi))
		said := ""
		select {
		case said = <-recorder.Events:
		default:
		}
		if len(recorder.Events) > 0 || step.event == "" && said != "" || !strings.HasPrefix(said, step.event) {
			t.Errorf("%s: %q, want %q", step.name, said, step.event)
		}
	}
}

// TestTerminatingPodStaysInReady: while a guest's pod is being deleted, the condition Ready says so, whatever the guest
// does. The message adds what the guest does. Each event of that is made once.
func TestTerminatingPodStaysInReady(t *testing.T) {
	startedAt := time.Unix(1000, 0)
	state := func(s control.State, silent bool) control.StateReport {
		return control.StateReport{State: s, Machine: &qemuargs.Machine{Type: "pc-q35-7.2", Accelerator: qemuargs.KVM}, StartedAt: &startedAt, QEMUSilent: silent}
	}
	recorder := events.NewFakeRecorder(10)
	r := &Reconciler{Events: recorder}
	vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running}}
	report(vmi, state(control.StateRunning, false), nil, metav1.Unix(1000, 0))
	deleted := v1.Terminating(vmi.Status.Condition(v1.ConditionReady))
	vmi.Status.SetCondition(deleted, metav1.Unix(1500, 0))
	for _, step := range []struct {
		state                control.StateReport
		event, message, what string
	}{
		{state(control.StateRunning, false), "", v1.MessageGuestRunning, "it runs on"},
		{state(control.StateShuttingDown, false), "Normal ShuttingDown Signaled Graceful Shutdown", "the guest was asked", "it shuts down"},
		{state(control.StateShuttingDown, false), "", "the guest was asked", "again"},
		{state(control.StateShuttingDown, true), "Warning QEMUNotResponding ", "QEMU does not answer", "its QEMU does not answer"},
		{state(control.StateShuttingDown, true), "", "QEMU does not answer", "still not"},
		{state(control.StateExited, false), "", "QEMU does not answer", "it has ended"},
	} {
		before := vmi.DeepCopy()
		report(vmi, step.state, nil, metav1.Unix(2000, 0))
		reportSilence(vmi, before, step.state, false, metav1.Unix(2000, 0))
		r.announce(before, vmi, keepTerminating(before, vmi))
		said := ""
		select {
		case said = <-recorder.Events:
		default:
		}
		if len(recorder.Events) > 0 || step.event == "" && said != "" || !strings.HasPrefix(said, step.event) {
			t.Errorf("%s: event %q, want %q", step.what, said, step.event)
		}
		c := vmi.Status.Condition(v1.ConditionReady)
		if c.Status != metav1.ConditionFalse || c.Reason != v1.ReasonPodTerminating || c.LastTransitionTime != metav1.Unix(1500, 0) || !strings.HasPrefix(c.Message, "the launcher pod is being deleted; "+step.message) {
			t.Errorf("%s: %+v", step.what, c)
		}
	}
}

// TestShutdownOfADeletedVMISaysDeleted: a guest that shuts down because its VMI is deleted has KubeVirt's event
// Deleted, and one whose pod alone is deleted has not.
func TestShutdownOfADeletedVMISaysDeleted(t *testing.T) {
	startedAt := time.Unix(1000, 0)
	for deleted, want := range map[bool][]string{true: {"Normal ShuttingDown Signaled Graceful Shutdown", "Normal Deleted Signaled Deletion"}, false: {"Normal ShuttingDown Signaled Graceful Shutdown"}} {
		recorder := events.NewFakeRecorder(10)
		r := &Reconciler{Events: recorder}
		vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running}}
		if deleted {
			vmi.DeletionTimestamp = &metav1.Time{Time: startedAt}
		}
		for range 2 { // it is said once
			before := vmi.DeepCopy()
			report(vmi, control.StateReport{State: control.StateShuttingDown, StartedAt: &startedAt, Machine: &qemuargs.Machine{Type: "pc-q35-7.2"}}, someNetwork(), metav1.Unix(2000, 0))
			r.announce(before, vmi, keepTerminating(before, vmi))
		}
		var said []string
		for len(recorder.Events) > 0 {
			said = append(said, <-recorder.Events)
		}
		if !slices.Equal(said, want) {
			t.Errorf("deleted %v: %q, want %q", deleted, said, want)
		}
	}
}

// TestBridgedGuestKeepsItsMAC: after a move the status has the guest's own address, and not that of the pod in which
// the guest is now.
func TestBridgedGuestKeepsItsMAC(t *testing.T) {
	startedAt := time.Unix(1000, 0)
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", Bridge: &v1.InterfaceBridge{}}}
	for _, pod := range []string{"52:54:00:00:00:01", "52:54:00:00:00:02"} {
		network := map[string]networkFacts{"default": {link: "eth0", nic: resolve.NIC{MAC: pod}}}
		report(vmi, control.StateReport{State: control.StateRunning, Machine: &qemuargs.Machine{Type: "pc-q35-7.2"}, StartedAt: &startedAt}, network, metav1.Unix(2000, 0))
		reportAgent(vmi, control.AgentReport{Connected: true, Interfaces: []control.GuestInterface{{Name: "enp1s0", MAC: "52:54:00:00:00:01"}}}, metav1.Unix(2000, 0))
		if got := vmi.Status.Interfaces; len(got) != 1 || got[0].MAC != "52:54:00:00:00:01" || got[0].InterfaceName != "enp1s0" {
			t.Errorf("in the pod with %s: %+v", pod, got)
		}
	}
}

// TestReportBelievesNoLauncher: what the VMI says itself is taken from there.
func TestReportBelievesNoLauncher(t *testing.T) {
	startedAt := time.Unix(1000, 0)
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", MacAddress: "52-54-00-00-00-01"}, {Name: "other", MacAddress: "52:54:00:00:00:02"}}
	lie := &qemuargs.Machine{Type: strings.Repeat("pc-q35-7.2", 100), NICs: []qemuargs.NIC{{Name: "lie", MAC: strings.Repeat("x", 1000), Queues: 1 << 30}}}
	report(vmi, control.StateReport{State: control.StateRunning, Machine: lie, StartedAt: &startedAt}, someNetwork(), metav1.Unix(2000, 0))
	want := []v1.NetworkInterfaceStatus{
		{Name: "default", MAC: "52:54:00:00:00:01", IP: "10.0.0.1", IPs: []string{"10.0.0.1", "fd00::1"}, PodInterfaceName: "eth0", InfoSource: "domain", QueueCount: 1},
		{Name: "other", MAC: "52:54:00:00:00:02", IP: "10.0.0.1", IPs: []string{"10.0.0.1", "fd00::1"}, PodInterfaceName: "eth0", InfoSource: "domain", QueueCount: 1},
	}
	if diff := cmp.Diff(want, vmi.Status.Interfaces); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if vmi.Status.Machine != nil {
		t.Errorf("machine type %q was believed", vmi.Status.Machine.Type)
	}
}

// someNetwork returns the network of an interface of every name that is used here.
func someNetwork() map[string]networkFacts {
	facts := networkFacts{link: v1.PodLink, ips: []string{"10.0.0.1", "fd00::1"}}
	return map[string]networkFacts{"default": facts, "other": facts}
}
