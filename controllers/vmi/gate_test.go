package vmi

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// gated returns a launcher pod that runs, as it is made, with these conditions.
func gated(t *testing.T, conditions ...corev1.PodCondition) *corev1.Pod {
	t.Helper()
	pod := Pod(load(t, "testdata/minimal"), testConfig)
	pod.UID, pod.Spec.NodeName = "pod-uid", "node1"
	pod.Status = podIn(corev1.PodRunning, running()).Status
	pod.Status.Conditions = conditions
	return pod
}

func podCondition(kind corev1.PodConditionType, status corev1.ConditionStatus) corev1.PodCondition {
	return corev1.PodCondition{Type: kind, Status: status}
}

func TestGateOfAPausedGuestIsClosed(t *testing.T) {
	is, isNot := podCondition(unpausedGate, corev1.ConditionTrue), podCondition(unpausedGate, corev1.ConditionFalse)
	old, deleted := gated(t), gated(t)
	old.Spec.ReadinessGates = nil
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for name, tt := range map[string]struct {
		phase  v1.VirtualMachineInstancePhase
		paused bool
		pod    *corev1.Pod
		want   string
	}{
		"not started yet":        {v1.Scheduled, false, gated(t), ""},
		"runs":                   {v1.Running, false, gated(t), "True/NotPaused"},
		"runs on":                {v1.Running, false, gated(t, is), ""},
		"paused from the start":  {v1.Running, true, gated(t), "False/Paused"},
		"is paused":              {v1.Running, true, gated(t, is), "False/Paused"},
		"stays paused":           {v1.Running, true, gated(t, isNot), ""},
		"goes on":                {v1.Running, false, gated(t, isNot), "True/NotPaused"},
		"a pod without the gate": {v1.Running, false, old, ""},
		"a pod that goes":        {v1.Running, true, deleted, ""},
		"has ended":              {v1.Failed, false, gated(t), ""},
	} {
		vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: tt.phase}}
		if tt.paused {
			vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionPaused, Status: metav1.ConditionTrue},
				metav1.Time{})
		}
		got := ""
		if c := unpaused(vmi, tt.pod, metav1.Unix(2000, 0)); c != nil {
			got = string(c.Status) + "/" + c.Reason
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestHowLongTheGateStaysClosed(t *testing.T) {
	since := func(phase v1.VirtualMachineInstancePhase, at int64) *v1.VirtualMachineInstance {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Status.SetPhase(v1.Scheduled, metav1.Unix(1000, 0))
		vmi.Status.SetPhase(phase, metav1.Unix(at, 0))
		return vmi
	}
	now := time.Unix(2000, 0)
	for name, tt := range map[string]struct {
		vmi  *v1.VirtualMachineInstance
		want time.Duration
	}{
		"runs since now":            {since(v1.Running, 2000), gateAfter},
		"runs for a second":         {since(v1.Running, 1999), gateAfter - time.Second},
		"runs for long":             {since(v1.Running, 1500), 0},
		"the node's clock is ahead": {since(v1.Running, 2001), 0},
		"does not run":              {since(v1.Scheduled, 2000), 0},
		"nobody knows since when":   {&v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running}}, 0},
	} {
		if got := booting(tt.vmi, now); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// TestGateOpensALittleAfterTheStart: the gate of a guest that has just begun to run is looked at again, and
// opened then.
func TestGateOpensALittleAfterTheStart(t *testing.T) {
	c, clock := newCluster(t, v1.Running, interceptor.Funcs{}, gated(t)),
		clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	c.Clock = clock
	vmi := c.get()
	vmi.Status.PhaseTransitionTimestamps = []v1.PhaseTransitionTimestamp{
		{Phase: v1.Running, PhaseTransitionTimestamp: metav1.NewTime(clock.Now())}}
	if err := c.client.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	gate := func() (open bool, again time.Duration) {
		t.Helper()
		result, err := c.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(vmi)})
		if err != nil {
			t.Fatal(err)
		}
		pods := &corev1.PodList{}
		if err := c.client.List(t.Context(), pods); err != nil || len(pods.Items) != 1 {
			t.Fatalf("%d pods: %v", len(pods.Items), err)
		}
		return unpaused(c.get(), &pods.Items[0], metav1.Time{}) == nil, result.RequeueAfter
	}
	if open, again := gate(); open || again <= 0 || again > gateAfter {
		t.Errorf("at once: open %v, looked at again after %v", open, again)
	}
	clock.SetTime(clock.Now().Add(gateAfter))
	if open, _ := gate(); !open {
		t.Error("the gate did not open")
	}
}

// TestGateIsWritten: the pod gets the condition, keeps the kubelet's, and is
// written again only when that changes.
func TestGateIsWritten(t *testing.T) {
	patches := 0
	faults := interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object,
		p client.Patch, opts ...client.SubResourcePatchOption) error {
		if _, isPod := o.(*corev1.Pod); isPod {
			patches++
		}
		return c.SubResource(sub).Patch(ctx, o, p, opts...)
	}}
	pod := gated(t, podCondition(corev1.PodReady, corev1.ConditionFalse))
	c := newCluster(t, v1.Running, faults, pod)
	step := func(want string, wantPatches int) {
		t.Helper()
		for range 2 {
			if err := c.reconcile(); err != nil {
				t.Fatal(err)
			}
		}
		now := &corev1.Pod{}
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(pod), now); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, c := range now.Status.Conditions {
			got += string(c.Type) + "=" + string(c.Status) + " "
		}
		if got != want || patches != wantPatches {
			t.Errorf("conditions %s(%d patches), want %s(%d)", got, patches, want, wantPatches)
		}
	}
	step("kubevirt.io/virtual-machine-unpaused=True Ready=False ", 1)
	vmi := c.get()
	vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionPaused, Status: metav1.ConditionTrue},
		metav1.Unix(1000, 0))
	if err := c.client.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	step("kubevirt.io/virtual-machine-unpaused=False Ready=False ", 2)
}

func TestObserveReadiness(t *testing.T) {
	ready, not := podCondition(corev1.ContainersReady, corev1.ConditionTrue),
		podCondition(corev1.ContainersReady, corev1.ConditionFalse)
	for name, tt := range map[string]struct {
		probe *v1.Probe
		old   string // Ready's reason
		pod   *corev1.Pod
		want  string
	}{
		"no probe":                     {nil, v1.ReasonGuestRunning, gated(t, not), "True/GuestRunning"},
		"answers":                      {&v1.Probe{}, v1.ReasonContainersNotReady, gated(t, ready), "True/GuestReady"},
		"goes on answering":            {&v1.Probe{}, v1.ReasonGuestReady, gated(t, ready), "True/GuestReady"},
		"has not answered yet":         {&v1.Probe{}, v1.ReasonContainersNotReady, gated(t, not), "False/ContainersNotReady"},
		"answers no more":              {&v1.Probe{}, v1.ReasonGuestReady, gated(t, not), "False/ContainersNotReady"},
		"the kubelet has said nothing": {&v1.Probe{}, v1.ReasonGuestReady, gated(t), "False/ContainersNotReady"},
		"virt-handler's own word":      {&v1.Probe{}, v1.ReasonGuestRunning, gated(t, not), "True/GuestRunning"},
		"paused, and answered before":  {&v1.Probe{}, v1.ReasonGuestNotRunning, gated(t, ready), "False/GuestNotRunning"},
	} {
		vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running}}
		vmi.Spec.ReadinessProbe = tt.probe
		status := metav1.ConditionFalse
		if tt.old == v1.ReasonGuestRunning || tt.old == v1.ReasonGuestReady {
			status = metav1.ConditionTrue
		}
		setReady(&vmi.Status, status, tt.old, "", metav1.Unix(1000, 0))
		observeReadiness(vmi, tt.pod, metav1.Unix(2000, 0))
		if c := vmi.Status.Condition(v1.ConditionReady); string(c.Status)+"/"+c.Reason != tt.want {
			t.Errorf("%s: %s/%s, want %s", name, c.Status, c.Reason, tt.want)
		}
	}
}
