package subresources

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
)

// said is a change or an error in one line.
func said(ch *change, err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return fmt.Sprintf("%d %s", status.Status().Code, status.Status().Message)
	}
	if err != nil {
		return err.Error()
	}
	text := ""
	if ch.spec != nil {
		spec, _ := json.Marshal(ch.spec)
		text = string(spec)
	}
	for _, r := range ch.requests {
		text += string(r.Action)
		if r.UID != nil {
			text += ":" + string(*r.UID)
		}
		if len(r.Data) > 0 {
			text += fmt.Sprint(r.Data)[len("map"):]
		}
		text += " "
	}
	if ch.grace != nil {
		text += fmt.Sprintf("grace=%d", *ch.grace)
	}
	return text
}

func machineOf(strategy v1.VirtualMachineRunStrategy, pending ...v1.StateChangeRequestAction) *v1.VirtualMachine {
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1.VirtualMachineSpec{RunStrategy: &strategy}}
	for _, p := range pending {
		r := v1.VirtualMachineStateChangeRequest{Action: p}
		if p == v1.StopRequest {
			r.UID = ptr.To(types.UID("u"))
		}
		vm.Status.StateChangeRequests = append(vm.Status.StateChangeRequests, r)
	}
	return vm
}

// instanceIn is a VMI in a phase; none has no VMI.
func instanceIn(phase v1.VirtualMachineInstancePhase) *v1.VirtualMachineInstance {
	if phase == "none" {
		return nil
	}
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u"}}
	vmi.Status.Phase = phase
	return vmi
}

const conflict = `409 Operation cannot be fulfilled on virtualmachine.kubevirt.io "a": `

// TestVerbsByRunStrategyAndVMI: what KubeVirt makes of each verb, by run strategy and VMI
// (pkg/virt-api/rest/lifecycle.go).
func TestVerbsByRunStrategyAndVMI(t *testing.T) {
	type strategies = v1.VirtualMachineRunStrategy
	start := func(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) string {
		return said(started(vm, vmi, &v1.StartOptions{}))
	}
	paused := func(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) string {
		return said(started(vm, vmi, &v1.StartOptions{Paused: true}))
	}
	stop := func(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) string {
		return said(stopped(vm, vmi, &v1.StopOptions{}))
	}
	stopIn := func(n int64) func(*v1.VirtualMachine, *v1.VirtualMachineInstance) string {
		return func(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) string {
			return said(stopped(vm, vmi, &v1.StopOptions{GracePeriod: ptr.To(n)}))
		}
	}
	restart := func(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) string {
		return said(restarted(vm, vmi, &v1.RestartOptions{}))
	}
	restartIn := func(n int64) func(*v1.VirtualMachine, *v1.VirtualMachineInstance) string {
		return func(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) string {
			return said(restarted(vm, vmi, &v1.RestartOptions{GracePeriodSeconds: ptr.To(n)}))
		}
	}
	always, halted, manual, rerun, once := v1.RunStrategyAlways, v1.RunStrategyHalted, v1.RunStrategyManual, v1.RunStrategyRerunOnFailure, v1.RunStrategyOnce
	for _, c := range []struct {
		name     string
		verb     func(*v1.VirtualMachine, *v1.VirtualMachineInstance) string
		strategy strategies
		phase    v1.VirtualMachineInstancePhase
		want     string
	}{
		{"start", start, halted, "none", `{"runStrategy":"Always"}`},
		{"start", start, halted, v1.Running, conflict + "VM is already running"},
		{"start", start, halted, v1.Scheduling, conflict + "VM is already running"},
		{"start paused", paused, halted, "none", "Start[paused:true] "},
		{"start", start, always, "none", conflict + "Always does not support manual start requests"},
		{"start", start, once, v1.Succeeded, conflict + "Once does not support manual start requests"},
		{"start", start, manual, "none", "Start "},
		{"start", start, manual, v1.Succeeded, "Stop:u Start "},
		{"start", start, manual, v1.Failed, "Stop:u Start "},
		{"start paused", paused, manual, v1.Failed, "Stop:u Start[paused:true] "},
		{"start", start, rerun, "none", "Start "},
		{"start", start, rerun, v1.Succeeded, "Stop:u Start "},
		{"start", start, rerun, v1.Failed, conflict + "RerunOnFailure does not support starting VM from failed state"},
		{"stop", stop, halted, "none", conflict + "VM is not running"},
		{"stop", stop, halted, v1.Running, conflict + "Halted only supports manual stop requests with a shorter graceperiod"},
		{"stop at once", stopIn(0), halted, v1.Running, "grace=0"},
		{"stop in longer", stopIn(40), halted, v1.Running, conflict + "Halted only supports manual stop requests with a shorter graceperiod"},
		{"stop", stop, always, v1.Running, `{"runStrategy":"Halted"}`},
		{"stop", stop, always, "none", `{"runStrategy":"Halted"}`},
		{"stop in 5 s", stopIn(5), always, v1.Running, `{"runStrategy":"Halted"}grace=5`},
		{"stop in 5 s", stopIn(5), always, "none", `{"runStrategy":"Halted"}`},
		{"stop in -1 s", stopIn(-1), always, v1.Running, "400 gracePeriod must not be negative"},
		{"stop", stop, once, v1.Running, `{"runStrategy":"Halted"}`},
		{"stop", stop, manual, v1.Running, "Stop:u "},
		{"stop", stop, manual, v1.Succeeded, conflict + "VM is not running"},
		{"stop", stop, rerun, "none", conflict + "VM is not running"},
		{"restart", restart, always, v1.Running, "Stop:u Start "},
		{"restart", restart, manual, v1.Running, "Stop:u Start "},
		{"restart", restart, manual, "none", conflict + "VM is not running"},
		{"restart", restart, halted, v1.Running, conflict + "RunStategy Halted does not support manual restart requests"},
		{"restart", restart, once, v1.Running, conflict + "RunStategy Once does not support manual restart requests"},
		{"restart at once", restartIn(0), rerun, v1.Running, "Stop:u Start grace=0"},
		{"restart in 5 s", restartIn(5), rerun, v1.Running, "400 Only gracePeriod=0 is supported for now"},
	} {
		if got := c.verb(machineOf(c.strategy), instanceIn(c.phase)); got != c.want {
			t.Errorf("%s of %s with VMI %s: %s, want %s", c.name, c.strategy, c.phase, got, c.want)
		}
	}
	// A paused guest is stopped and restarted like any other.
	pausedVMI := instanceIn(v1.Running)
	pausedVMI.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionPaused, Status: metav1.ConditionTrue, Reason: v1.ReasonPausedByUser}, metav1.Time{})
	for name, c := range map[string]struct{ got, want string }{
		"stop":         {stop(machineOf(always), pausedVMI), `{"runStrategy":"Halted"}`},
		"stop, manual": {stop(machineOf(manual), pausedVMI), "Stop:u "},
		"stop at once": {stopIn(0)(machineOf(rerun), pausedVMI), "Stop:u grace=0"},
		"restart":      {restart(machineOf(always), pausedVMI), "Stop:u Start "},
	} {
		if c.got != c.want {
			t.Errorf("%s of a paused VM: %s, want %s", name, c.got, c.want)
		}
	}
	// What was asked before is waited for, but by a stop.
	const underway = conflict + "unable to complete request: stop/start already underway"
	for name, got := range map[string]string{
		"restart": restart(machineOf(always, v1.StopRequest), instanceIn(v1.Running)),
		"start":   start(machineOf(manual, v1.StartRequest), nil),
	} {
		if got != underway {
			t.Errorf("%s twice: %s", name, got)
		}
	}
	// What is done does not count, though it is still there.
	if got := start(machineOf(rerun, v1.StopRequest), nil); got != "Start " {
		t.Errorf("start just after a stop: %s", got)
	}
	if got := restart(machineOf(always, v1.StartRequest), instanceIn(v1.Running)); got != "Stop:u Start " {
		t.Errorf("restart just after a start: %s", got)
	}
	if got := stop(machineOf(manual, v1.StopRequest, v1.StartRequest), instanceIn(v1.Running)); got != "Stop:u " {
		t.Errorf("stop in a restart: %s", got)
	}
	old := machineOf(halted)
	old.Spec.RunStrategy, old.Spec.Running = nil, ptr.To(false)
	if got := start(old, nil); got != `{"running":true}` {
		t.Errorf("start of a VM that is said by running: %s", got)
	}
}

// TestConsoleErrorsAreKubeVirts: a VMI that does not run yet, or has no such device, is a 400, as in KubeVirt. virtctl tries again after 400, so a VMI that has ended is
// none.
func TestConsoleErrorsAreKubeVirts(t *testing.T) {
	none := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.AutoattachSerialConsole, vmi.Spec.Domain.Devices.AutoattachGraphicsDevice = ptr.To(false), ptr.To(false)
	}
	for _, c := range []struct {
		phase  v1.VirtualMachineInstancePhase
		modify func(*v1.VirtualMachineInstance)
		code   int32
	}{
		{v1.Running, nil, 0}, {v1.Scheduling, nil, 400}, {v1.Scheduled, nil, 400}, {"", nil, 400}, {v1.Failed, nil, 409}, {v1.Succeeded, nil, 409},
		{v1.Running, none, 400}, {v1.Scheduling, none, 400},
	} {
		for _, operation := range []string{"console", "vnc"} {
			vmi := instanceIn(c.phase)
			if c.modify != nil {
				c.modify(vmi)
			}
			var code int32
			var status apierrors.APIStatus
			if err := attachable(vmi, operation); errors.As(err, &status) {
				code = status.Status().Code
			} else if err != nil {
				code = -1
			}
			if code != c.code {
				t.Errorf("%s of a VMI in phase %q: %d, want %d", operation, c.phase, code, c.code)
			}
		}
	}
}

// TestPauseIsRefusedWithLivenessProbe: a guest that the kubelet would kill while it is
// paused is not paused.
func TestPauseIsRefusedWithLivenessProbe(t *testing.T) {
	for name, tt := range map[string]struct {
		probe *v1.Probe
		code  int32
	}{
		"none":  {nil, 0},
		"agent": {&v1.Probe{Handler: v1.Handler{GuestAgentPing: &v1.GuestAgentPing{}}}, 0},
		"exec":  {&v1.Probe{Handler: v1.Handler{Exec: &corev1.ExecAction{}}}, 0},
		"http":  {&v1.Probe{Handler: v1.Handler{HTTPGet: &corev1.HTTPGetAction{}}}, 403},
		"tcp":   {&v1.Probe{Handler: v1.Handler{TCPSocket: &corev1.TCPSocketAction{}}}, 403},
	} {
		vmi := instanceIn(v1.Running)
		vmi.Spec.LivenessProbe = tt.probe
		var status apierrors.APIStatus
		err := operable(vmi, handlerapi.Pause)
		if (err == nil) != (tt.code == 0) || errors.As(err, &status) && status.Status().Code != tt.code {
			t.Errorf("%s: %v, want %d", name, err, tt.code)
		}
		if err := operable(vmi, handlerapi.Reset); err != nil {
			t.Errorf("%s: reset: %v", name, err)
		}
	}
}
