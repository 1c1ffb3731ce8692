package node

import (
	"context"
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/elevate"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// kernel notes what it is asked for.
type kernel struct {
	asked []string
	err   error
}

func (k *kernel) Realtime(_ context.Context, l elevate.Launcher, vcpus []int, hostCPUs int) error {
	k.asked = append(k.asked, fmt.Sprintf("realtime %d %s %v: %v of %d", l.PID, l.Pod.Name, l.Pods, vcpus, hostCPUs))
	return k.err
}

// TestRealtimeCPUsGetTheScheduler: the CPUs of the mask get the scheduler once the guest runs, a condition says how
// that went, and what may come true later is tried again.
func TestRealtimeCPUsGetTheScheduler(t *testing.T) {
	launcher := &sessions.Session{PID: 42, Pod: types.NamespacedName{Namespace: "default", Name: "launcher"}}
	launcher.SetState(control.StateReport{State: control.StateRunning})
	vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Scheduled, ActivePods: map[types.UID]string{"p": "here"}}}
	vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 4, Cores: 1, Threads: 1, IsolateEmulatorThread: true}
	k := &kernel{}
	r := &Reconciler{Kernel: k}
	r.speed(t.Context(), vmi, launcher, metav1.Unix(1, 0))
	vmi.Spec.Domain.CPU.Realtime = &v1.Realtime{Mask: "0-3,^1"}
	r.speed(t.Context(), vmi, launcher, metav1.Unix(1, 0))
	if len(k.asked) > 0 || len(vmi.Status.Conditions) > 0 {
		t.Fatalf("a guest that asks for nothing, or does not run: %q, %+v", k.asked, vmi.Status.Conditions)
	}
	vmi.Status.Phase = v1.Running
	for _, tt := range []struct {
		err    error
		status metav1.ConditionStatus
		again  bool
	}{
		{nil, metav1.ConditionTrue, false},
		{errors.New("not yet"), metav1.ConditionFalse, true},
		{fmt.Errorf("%w: never", elevate.ErrRefused), metav1.ConditionFalse, false},
	} {
		k.asked, k.err = nil, tt.err
		again := r.speed(t.Context(), vmi, launcher, metav1.Unix(1, 0))
		if want := "[realtime 42 launcher [p]: [0 2 3] of 5]"; fmt.Sprint(k.asked) != want {
			t.Errorf("asked for %v, want %s", k.asked, want)
		}
		if c := vmi.Status.Condition(v1.ConditionRealtime); c == nil || c.Status != tt.status || tt.err != nil && c.Message != tt.err.Error() || (again > 0) != tt.again {
			t.Errorf("%v: the condition is %+v, and the next try in %s", tt.err, c, again)
		}
	}
}

// TestReportNUMA: only a guest that sees nodes is told that its memory is not bound to them.
func TestReportNUMA(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running}}
	if reportNUMA(vmi, metav1.Unix(1, 0)); len(vmi.Status.Conditions) > 0 {
		t.Errorf("without nodes: %+v", vmi.Status.Conditions)
	}
	vmi.Spec.Domain.CPU = &v1.CPU{NUMA: &v1.NUMA{GuestMappingPassthrough: &v1.NUMAGuestMappingPassthrough{}}}
	reportNUMA(vmi, metav1.Unix(1, 0))
	if c := vmi.Status.Condition(v1.ConditionNUMAMemoryUnbound); c == nil || c.Status != metav1.ConditionTrue || c.Reason != v1.ReasonFirstTouch {
		t.Errorf("the condition is %+v", c)
	}
}
