package vmi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const sandboxMessage = `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "%s": plugin type="multus" name="multus" failed (add): ` +
	`Multus: [tenant/pod/1]: cannot find a network-attachment-definition (lan) in namespace (tenant)`

// sandboxed returns a pod that was bound at a time, with the conditions that are given.
func sandboxed(phase corev1.PodPhase, conditions ...corev1.PodCondition) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "pod", UID: "1"}}
	pod.Status.Phase = phase
	pod.Status.Conditions = append(conditions,
		corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.Unix(1000, 0)})
	return pod
}

func sandboxEvent(name, uid string, at int64, message string) *corev1.Event {
	return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name}, Reason: v1.ReasonSandboxFailed,
		Message:        message,
		InvolvedObject: corev1.ObjectReference{UID: "1"}, LastTimestamp: metav1.Unix(at, 0)}
}

// TestMissingConfigMapIsInTheStatus: that a ConfigMap or a Secret is missing is in the status of a VMI that
// refers to one, until the node has mounted it.
func TestMissingConfigMapIsInTheStatus(t *testing.T) {
	const text = `MountVolume.SetUp failed for volume "config-a" : configmap "settings" not found`
	ready := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}
	for name, c := range map[string]struct {
		volume string
		pod    *corev1.Pod
		says   bool
	}{
		"a ConfigMap": {"{name: a, configMap: {name: settings}}", sandboxed(corev1.PodPending), true},
		"a cloud-init Secret": {"{name: a, cloudInitNoCloud: {secretRef: {name: settings}}}", sandboxed(corev1.PodPending),
			true},
		"it is mounted":          {"{name: a, configMap: {name: settings}}", sandboxed(corev1.PodPending, ready), false},
		"no object of the VMI's": {"{name: a, emptyDisk: {capacity: 1Mi}}", sandboxed(corev1.PodPending), true},
	} {
		event := sandboxEvent("a", "1", 1001, text)
		event.Reason = v1.ReasonMountFailed
		events := fake.NewClientBuilder().WithObjects(event).
			WithIndex(&corev1.Event{}, "involvedObject.uid",
				func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).Build()
		r := &Reconciler{Live: events, Clock: clocktesting.NewFakePassiveClock(time.Unix(1060, 0))}
		vmi := besideVMI(t, "{domain: {memory: {guest: 128Mi}}, volumes: ["+c.volume+"]}")
		vmi.CreationTimestamp = metav1.Unix(900, 0)
		for range 2 {
			if _, err := r.explainSandbox(context.Background(), on(vmi, c.pod)); err != nil {
				t.Fatal(err)
			}
		}
		got := vmi.Status.Condition(v1.ConditionSynchronized)
		if (got != nil) != c.says || c.says &&
			(got.Reason != v1.ReasonMountFailed ||
				got.Message != "the node cannot mount a volume of the pod, and tries again: "+text) {
			t.Errorf("%s: condition %+v", name, got)
		}
		if _, err := r.explainSandbox(context.Background(), on(vmi, sandboxed(corev1.PodRunning, ready))); err != nil ||
			vmi.Status.Condition(v1.ConditionSynchronized) != nil {
			t.Errorf("%s: the condition stays (%v)", name, err)
		}
	}
}

// TestSandboxThatFailsIsInTheStatus: that its node cannot connect the pod is in the status of a plain VMI too,
// if the node takes longer than a busy node.
func TestSandboxThatFailsIsInTheStatus(t *testing.T) {
	const text = `Failed to create pod sandbox: rpc error: code = Unknown desc = mkdir /var/log/pods/x: file name too long`
	events := fake.NewClientBuilder().WithObjects(sandboxEvent("a", "1", 1001, text)).
		WithIndex(&corev1.Event{}, "involvedObject.uid",
			func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).Build()
	vmi := besideVMI(t, "{domain: {memory: {guest: 128Mi}}}")
	vmi.CreationTimestamp = metav1.Unix(1000, 0)
	for age, says := range map[time.Duration]bool{14 * time.Second: false, 16 * time.Second: true} {
		vmi := vmi.DeepCopy()
		r := &Reconciler{Live: events, Clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0).Add(age))}
		if after, err := r.explainSandbox(t.Context(), on(vmi, sandboxed(corev1.PodPending))); err != nil || after <= 0 {
			t.Errorf("after %s: looks again in %s, %v", age, after, err)
		}
		got := vmi.Status.Condition(v1.ConditionSynchronized)
		if (got != nil) != says || says &&
			(got.Reason != v1.ReasonSandboxFailed || got.Message != "the node cannot set up the pod, and tries again: "+text) {
			t.Errorf("after %s: %+v", age, got)
		}
	}
}

// TestLatestTroubleIsSaid: what has gone by does not hide what is wrong now, and a message that names a volume
// is better than a later one that does not.
func TestLatestTroubleIsSaid(t *testing.T) {
	both := []trouble{{v1.ReasonMountFailed, "mount"}, {v1.ReasonSandboxFailed, "connect"}}
	event := func(reason string, at int64, message string) corev1.Event {
		e := sandboxEvent("a", "1", at, message)
		e.Reason = reason
		return *e
	}
	named, later := event(v1.ReasonMountFailed, 10, `MountVolume.SetUp failed for volume "a"`),
		event(v1.ReasonMountFailed, 20, "Unable to attach or mount volumes")
	for name, c := range map[string]struct {
		troubles  []trouble
		events    []corev1.Event
		of, wants string
	}{
		"nothing":                       {both, nil, "", ""},
		"other events":                  {both, []corev1.Event{event("Scheduled", 30, "bound")}, "", ""},
		"a trouble that it cannot have": {both[:1], []corev1.Event{event(v1.ReasonSandboxFailed, 30, "plugin")}, "", ""},
		"mounted, and not connected": {both, []corev1.Event{named, event(v1.ReasonSandboxFailed, 15, "plugin")},
			v1.ReasonSandboxFailed, "plugin"},
		"the last of two": {both,
			[]corev1.Event{event(v1.ReasonSandboxFailed, 15, "old"), event(v1.ReasonSandboxFailed, 16, "new"), named},
			v1.ReasonSandboxFailed, "new"},
		"not mounted any more": {both, []corev1.Event{event(v1.ReasonSandboxFailed, 5, "plugin"), later, named},
			v1.ReasonMountFailed, named.Message},
		"a message without a name": {both, []corev1.Event{later}, v1.ReasonMountFailed, later.Message},
	} {
		of, message := latest(c.troubles, c.events)
		if reason := ptr.Deref(of, trouble{}).reason; reason != c.of || message != c.wants {
			t.Errorf("%s: %q, %q", name, reason, message)
		}
	}
}

// TestSlowPodNetworkIsSaidAfterAMinute: a node that does not connect a pod, and does not say why, is told of
// after a minute, until it has.
func TestSlowPodNetworkIsSaidAfterAMinute(t *testing.T) {
	const spec = `{domain: {memory: {guest: 128Mi}, devices: {interfaces: [{name: lan, bridge: {}}]}}, networks: [{name: lan, multus: {networkName: other/lan}}]}`
	silent := fake.NewClientBuilder().
		WithIndex(&corev1.Event{}, "involvedObject.uid",
			func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).Build()
	vmi := besideVMI(t, spec)
	vmi.CreationTimestamp = metav1.Unix(1000, 0)
	for age, says := range map[time.Duration]bool{59 * time.Second: false, 61 * time.Second: true} {
		vmi := vmi.DeepCopy()
		r := &Reconciler{Live: silent, Clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0).Add(age))}
		if _, err := r.explainSandbox(context.Background(), on(vmi, sandboxed(corev1.PodPending))); err != nil {
			t.Fatal(err)
		}
		got := vmi.Status.Condition(v1.ConditionSynchronized)
		if (got != nil) != says || says &&
			(got.Reason != v1.ReasonSandboxSlow || !strings.Contains(got.Message, `"lan" (other/lan)`)) {
			t.Errorf("after %s: %+v", age, got)
		}
		ready := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}
		if _, err := r.explainSandbox(context.Background(), on(vmi, sandboxed(corev1.PodPending, ready))); err != nil ||
			vmi.Status.Condition(v1.ConditionSynchronized) != nil {
			t.Errorf("after %s, connected: %+v, %v", age, vmi.Status.Conditions, err)
		}
	}
}

// TestDeletedVMISaysWhyItsPodStays: a VMI that is deleted says why its node cannot disconnect its pod.
func TestDeletedVMISaysWhyItsPodStays(t *testing.T) {
	const spec = `{domain: {memory: {guest: 128Mi}, devices: {interfaces: [{name: lan, bridge: {}}]}}, networks: [{name: lan, multus: {networkName: lan}}]}`
	const said = `error killing pod: failed to "KillPodSandbox" for "1" with KillPodSandboxError: "rpc error: code = Unknown desc = failed to destroy network for sandbox \"2\": ` +
		`plugin type=\"multus\" name=\"multus\" failed (delete): the switch does not answer"`
	event := sandboxEvent("a", "1", 1001, said)
	event.Reason = v1.ReasonSandboxStays
	events := fake.NewClientBuilder().WithObjects(event).
		WithIndex(&corev1.Event{}, "involvedObject.uid",
			func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).Build()
	for over, again := range map[time.Duration]time.Duration{-10 * time.Second: 15 * time.Second,
		6 * time.Second: connectPatience, 400 * time.Second: 100 * time.Second, 10 * time.Hour: longestDelay} {
		r := &Reconciler{Live: events, Clock: clocktesting.NewFakePassiveClock(time.Unix(2000, 0).Add(over))}
		vmi := besideVMI(t, spec)
		pod := sandboxed(corev1.PodRunning)
		if after, err := r.explainRemoval(context.Background(), on(vmi, pod)); after != 0 || err != nil ||
			len(vmi.Status.Conditions) > 0 {
			t.Errorf("a pod that stays: %s, %v, %+v", after, err, vmi.Status.Conditions)
		}
		pod.DeletionTimestamp = ptr.To(metav1.Unix(2000, 0))
		after, err := r.explainRemoval(context.Background(), on(vmi, pod))
		if after != again || err != nil {
			t.Errorf("%s after its grace: again in %s, %v", over, after, err)
		}
		got := vmi.Status.Condition(v1.ConditionSynchronized)
		const want = `the node cannot remove the pod, and tries again: the switch does not answer". The VMI's networks of Multus are "lan" (tenant/lan)`
		if (got != nil) != (over > 0) || over > 0 && (got.Reason != v1.ReasonSandboxStays || got.Message != want) {
			t.Errorf("%s after its grace: %+v", over, got)
		}
	}
}

// TestHangingContainerIsNoNetworkTrouble: a pod that stays because a container of it does not end is no trouble
// of a network. The complaint stays the same, and is as old, each time the pod is looked at.
func TestHangingContainerIsNoNetworkTrouble(t *testing.T) {
	const spec = `{domain: {memory: {guest: 128Mi}, devices: {interfaces: [{name: lan, bridge: {}}]}}, networks: [{name: lan, multus: {networkName: lan}}]}`
	event := sandboxEvent("a", "1", 1001, `error killing pod: failed to "KillContainer" for "compute" with KillContainerError: "rpc error: code = DeadlineExceeded desc = context deadline exceeded"`)
	event.Reason = v1.ReasonSandboxStays
	events := fake.NewClientBuilder().WithObjects(event).
		WithIndex(&corev1.Event{}, "involvedObject.uid",
			func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).Build()
	vmi, pod := besideVMI(t, spec), sandboxed(corev1.PodRunning)
	pod.DeletionTimestamp = ptr.To(metav1.Unix(2000, 0))
	for over := 6 * time.Second; over < time.Minute; over += 10 * time.Second {
		r := &Reconciler{Live: events, Clock: clocktesting.NewFakePassiveClock(time.Unix(2000, 0).Add(over))}
		if _, err := r.noteEnd(context.Background(), on(vmi, pod)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.explainRemoval(context.Background(), on(vmi, pod)); err != nil {
			t.Fatal(err)
		}
		got := vmi.Status.Condition(v1.ConditionSynchronized)
		if got == nil || got.Reason != v1.ReasonSandboxStays || !strings.HasPrefix(got.Message, `the node cannot remove the pod, and tries again: error killing pod: failed to "KillContainer"`) ||
			strings.Contains(got.Message, "network") || got.LastTransitionTime.Unix() != 2006 {
			t.Errorf("%s after its grace: %+v", over, got)
		}
	}
}

// TestEventBeginsWithTheCause: an event has the cause, however many networks the VMI has.
func TestEventBeginsWithTheCause(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	for i := range 20 {
		name := fmt.Sprint(i) + strings.Repeat("n", 60)
		vmi.Spec.Networks = append(vmi.Spec.Networks,
			v1.Network{Name: name, Multus: &v1.MultusNetwork{NetworkName: strings.Repeat("d", 250)}})
	}
	events := fake.NewClientBuilder().WithObjects(sandboxEvent("a", "1", 1001,
		strings.Replace(sandboxMessage, "%s", "first", 1))).
		WithIndex(&corev1.Event{}, "involvedObject.uid",
			func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).Build()
	r := &Reconciler{Live: events, Clock: clocktesting.NewFakePassiveClock(time.Unix(1010, 0))}
	if _, err := r.explainSandbox(context.Background(), on(vmi, sandboxed(corev1.PodPending))); err != nil {
		t.Fatal(err)
	}
	got := vmi.Status.Condition(v1.ConditionSynchronized)
	if got == nil || strings.Index(got.Message, "cannot find a network-attachment-definition") > 300 ||
		!strings.HasSuffix(got.Message, "12 more") {
		t.Errorf("condition %+v", got)
	}
}

// TestStatusSaysWhyThePodHasNoNetwork: why the node cannot connect the pod is in the status of a VMI with a network of
// Multus, the same for all attempts, until the node has.
func TestStatusSaysWhyThePodHasNoNetwork(t *testing.T) {
	const multus = `{domain: {memory: {guest: 128Mi}, devices: {interfaces: [{name: lan, bridge: {}}]}}, networks: [{name: lan, multus: {networkName: lan}}]}`
	const plain = `{domain: {memory: {guest: 128Mi}, devices: {interfaces: [{name: default, masquerade: {}}]}}, networks: [{name: default, pod: {}}]}`
	ready := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}
	const why = `the node cannot set up the pod, and tries again: Multus: [tenant/pod/1]: cannot find a network-attachment-definition (lan) in namespace (tenant). The VMI's networks of Multus are "lan" (tenant/lan)`
	for name, c := range map[string]struct {
		spec  string
		pod   *corev1.Pod
		age   time.Duration
		told  bool // what the status said before
		want  string
		again time.Duration
	}{
		"too early": {spec: multus, pod: sandboxed(corev1.PodPending), age: 2 * time.Second,
			again: 3 * time.Second},
		"it cannot": {spec: multus, pod: sandboxed(corev1.PodPending), age: 6 * time.Second, want: why,
			again: connectPatience},
		"it still cannot": {spec: multus, pod: sandboxed(corev1.PodPending), age: 60 * time.Second, told: true,
			want: why, again: 40 * time.Second},
		"it has":  {spec: multus, pod: sandboxed(corev1.PodPending, ready), age: 60 * time.Second, told: true},
		"it runs": {spec: multus, pod: sandboxed(corev1.PodRunning, ready), age: 60 * time.Second, told: true},
		"no network of Multus": {spec: plain, pod: sandboxed(corev1.PodPending), age: 60 * time.Second,
			again: 40 * time.Second, want: strings.TrimSuffix(why, `. The VMI's networks of Multus are "lan" (tenant/lan)`)},
	} {
		t.Run(name, func(t *testing.T) {
			events := fake.NewClientBuilder().WithObjects(sandboxEvent("a", "1", 1001,
				strings.Replace(sandboxMessage, "%s", "first", 1)),
				sandboxEvent("b", "1", 1002, strings.Replace(sandboxMessage, "%s", "second", 1))).
				WithIndex(&corev1.Event{}, "involvedObject.uid",
					func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).Build()
			r := &Reconciler{Live: events, Clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0).Add(c.age))}
			vmi := besideVMI(t, c.spec)
			vmi.CreationTimestamp = metav1.Unix(900, 0)
			if c.told {
				vmi.Status.Complain(v1.ReasonSandboxFailed, why, r.now())
			}
			again, err := r.explainSandbox(context.Background(), on(vmi, c.pod))
			if name == "it cannot" {
				again = min(again, connectPatience) // it follows the VMI's age
			}
			if err != nil || again != c.again {
				t.Errorf("again in %s: %v", again, err)
			}
			got := vmi.Status.Condition(v1.ConditionSynchronized)
			if c.want == "" && got != nil ||
				c.want != "" && (got == nil || got.Message != c.want || got.Reason != v1.ReasonSandboxFailed) {
				t.Errorf("condition %+v", got)
			}
		})
	}
}
