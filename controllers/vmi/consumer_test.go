package vmi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

// TestConsumerGolden: a consumer has the launcher pod's placement, resources and claims, and nothing
// else of the launcher pod.
func TestConsumerGolden(t *testing.T) {
	for _, name := range []string{"claims", "placement", "probes-network"} {
		got, err := yaml.Marshal(Consumer(load(t, "testdata/"+name), testConfig))
		if err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, "testdata/"+name+"/consumer.golden.yaml", string(got))
	}
}

// filling returns a cluster whose VMI has a claim that a DataVolume fills.
func filling(t *testing.T, faults interceptor.Funcs) *cluster {
	t.Helper()
	claim := claimOf("data", nil)
	claim.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume", Name: "data", UID: "volume", Controller: ptr.To(true)}}
	c := newCluster(t, v1.Pending, faults, claim, dataVolume("WaitForFirstConsumer", "N/A"))
	vmi := c.get()
	vmi.Spec.Volumes = []v1.Volume{{Name: "root", DataVolume: &v1.DataVolumeSource{Name: "data"}}}
	if err := c.client.Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) pod(name string) *corev1.Pod {
	c.t.Helper()
	pod := &corev1.Pod{}
	if err := c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "default", Name: name}, pod); err != nil {
		c.t.Fatal(err)
	}
	return pod
}

func (c *cluster) becomes(pod *corev1.Pod, phase corev1.PodPhase, conditions ...corev1.PodCondition) {
	c.t.Helper()
	if err := c.client.Update(c.t.Context(), pod); err != nil {
		c.t.Fatal(err)
	}
	pod.Status = corev1.PodStatus{Phase: phase, Conditions: conditions}
	if err := c.client.Status().Update(c.t.Context(), pod); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) provisioning() string {
	c.t.Helper()
	condition := c.get().Status.Condition(v1.ConditionProvisioning)
	if condition == nil {
		return ""
	}
	return condition.Message
}

// TestUnboundClaimGetsAConsumer: a claim that binds at its first pod gets one, and the launcher pod is made once
// the claim is filled.
func TestUnboundClaimGetsAConsumer(t *testing.T) {
	c := filling(t, interceptor.Funcs{})
	name := ConsumerName(c.vmi)
	says := func(words string) {
		t.Helper()
		if after := c.later(); after != 5*time.Second {
			t.Errorf("looked at again after %s", after)
		}
		if got := c.provisioning(); !strings.Contains(got, words) {
			t.Errorf("Provisioning says %q, want %q", got, words)
		}
	}
	says("DataVolume data waits for the first pod of its claim: consumer " + name + " is made")
	pod := c.pod(name)
	if !owns(c.get(), pod) || pod.Labels[v1.AppLabel] != "virt-consumer" ||
		nameOfVMI(pod) != "" && pod.Labels[v1.AppLabel] == "virt-launcher" {
		t.Errorf("the consumer is %+v", pod.ObjectMeta)
	}
	unschedulable := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
		Message: "0/1 nodes"}
	c.becomes(pod, corev1.PodPending, unschedulable)
	says("is Pending")
	if status := c.status(); !strings.Contains(status, "PodScheduled=False/Unschedulable") {
		t.Errorf("status %s", status)
	}
	pod.CreationTimestamp = metav1.NewTime(c.Clock.Now())
	c.becomes(pod, corev1.PodSucceeded)
	says("is Succeeded")
	if status := c.status(); strings.Contains(status, "PodScheduled") || c.pods() != 1 {
		t.Errorf("status %s, %d pods", status, c.pods())
	}
	c.becomes(pod, corev1.PodPending, unschedulable) // as it is seen if CDI is quick
	says("is Pending")
	for _, step := range []struct {
		phase    string
		consumer bool
		pods     int
	}{{"ImportInProgress", false, 0}, {"Succeeded", false, 1}} {
		next := dataVolume(step.phase, "")
		next.SetResourceVersion("")
		if err := errors.Join(c.client.Delete(t.Context(), dataVolume("", "")), c.client.Create(t.Context(), next)); err != nil {
			t.Fatal(err)
		}
		c.later()
		err := c.client.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{})
		if apierrors.IsNotFound(err) == step.consumer || c.pods() != step.pods {
			t.Errorf("%s: the consumer: %v, %d pods: %s", step.phase, err, c.pods(), c.status())
		}
		if status := c.status(); strings.Contains(status, "PodScheduled") {
			t.Errorf("%s: of the consumer is left: %s", step.phase, status)
		}
	}
	c.pod(v1.LauncherPodName(c.vmi.Name, c.vmi.UID, v1.FirstPod))
}

// TestConsumerInVainIsMadeAnewLater: a consumer after which the claim is not bound is made anew, but not at once.
func TestConsumerInVainIsMadeAnewLater(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		c := filling(t, interceptor.Funcs{})
		c.later()
		pod := c.pod(ConsumerName(c.vmi))
		c.becomes(pod, phase)
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: ContainerName, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(c.Clock.Now())}}}}
		if err := c.client.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			after time.Duration
			pods  int
			says  string
		}{{consumerTime - time.Second, 1, fmt.Sprintf("is %s", phase)}, {10 * time.Second, 0, "ended in vain"},
			{0, 1, "is made"}} {
			clock := c.Clock.(*clocktesting.FakePassiveClock)
			clock.SetTime(clock.Now().Add(step.after))
			c.later()
			if got := c.provisioning(); c.pods() != step.pods || !strings.Contains(got, step.says) {
				t.Errorf("%d pods, want %d; Provisioning says %q, want %q", c.pods(), step.pods, got, step.says)
			}
		}
	}
}

// TestConsumerGoesWithoutItsDataVolume: the consumer goes even if CDI deletes the DataVolume at once.
func TestConsumerGoesWithoutItsDataVolume(t *testing.T) {
	c := filling(t, interceptor.Funcs{})
	c.later()
	claim := &corev1.PersistentVolumeClaim{}
	if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "data"}, claim); err != nil {
		t.Fatal(err)
	}
	claim.OwnerReferences = nil
	if err := errors.Join(c.client.Update(t.Context(), claim),
		c.client.Delete(t.Context(), dataVolume("", ""))); err != nil {
		t.Fatal(err)
	}
	c.later()
	c.pod(v1.LauncherPodName(c.vmi.Name, c.vmi.UID, v1.FirstPod))
	if c.pods() != 1 || c.provisioning() != "" {
		t.Errorf("%d pods, Provisioning says %q", c.pods(), c.provisioning())
	}
}

// TestConsumerThatEndedInTheFuture: a consumer that ended in the future, by its node's clock, is made anew too.
func TestConsumerThatEndedInTheFuture(t *testing.T) {
	c := filling(t, interceptor.Funcs{})
	c.later()
	pod := c.pod(ConsumerName(c.vmi))
	pod.CreationTimestamp = metav1.NewTime(c.Clock.Now().Add(time.Hour))
	c.becomes(pod, corev1.PodSucceeded)
	if c.later(); c.pods() != 0 {
		t.Errorf("%d pods", c.pods())
	}
}

// TestRefusedConsumerIsSaidAndRetried: what keeps a consumer from being made is said, and tried again less and less
// often. Once the consumer is made, it is said no more.
func TestRefusedConsumerIsSaidAndRetried(t *testing.T) {
	err := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", errors.New("exceeded quota"))
	c := filling(t, interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch, o client.Object,
		opts ...client.CreateOption) error {
		if err != nil {
			return err
		}
		return w.Create(ctx, o, opts...)
	}})
	if after := c.later(); after < 5*time.Second || after > 5*time.Minute {
		t.Errorf("looked at again after %s", after)
	}
	if s := c.get().Status.Condition(v1.ConditionSynchronized); s == nil || s.Reason != v1.ReasonFailedCreate ||
		!strings.Contains(s.Message, "exceeded quota") {
		t.Errorf("condition %+v", s)
	}
	// A quota that others use at the same time: no event comes, so it must be tried again soon.
	err = apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "q", errors.New("in use"))
	for range 2 {
		if after := c.later(); after != soonDelay {
			t.Errorf("looked at again after %s", after)
		}
	}
	err = nil
	c.later()
	if s := c.get().Status.Condition(v1.ConditionSynchronized); s != nil || c.pods() != 1 {
		t.Errorf("condition %+v, %d pods", s, c.pods())
	}
}

// TestRefusalOfConsumerEndsWithTheImport: what was said of a consumer that could not be made ends with the import.
func TestRefusalOfConsumerEndsWithTheImport(t *testing.T) {
	c := filling(t, interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch, o client.Object,
		opts ...client.CreateOption) error {
		if _, ok := o.(*corev1.Pod); ok {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", errors.New("exceeded quota"))
		}
		return w.Create(ctx, o, opts...)
	}})
	c.later()
	next := dataVolume("ImportInProgress", "")
	if err := errors.Join(c.client.Delete(t.Context(), dataVolume("", "")), c.client.Create(t.Context(), next)); err != nil {
		t.Fatal(err)
	}
	c.later()
	if s := c.get().Status.Condition(v1.ConditionSynchronized); s != nil {
		t.Errorf("condition %+v", s)
	}
}

// TestVMIWaitsAfterRejectionAndQuota: a launcher pod was rejected, then a disk was filled again, then a quota
// was in use. The VMI goes on waiting for its next launcher pod.
func TestVMIWaitsAfterRejectionAndQuota(t *testing.T) {
	var fault error
	c := filling(t, interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch, o client.Object,
		opts ...client.CreateOption) error {
		if _, ok := o.(*corev1.Pod); ok && fault != nil {
			return fault
		}
		return w.Create(ctx, o, opts...)
	}})
	vmi := c.get()
	vmi.Status.Phase = v1.Scheduling
	vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{
		{Type: v1.ConditionProvisioning, Status: metav1.ConditionTrue, Reason: v1.ReasonDataVolumeNotReady}}
	if err := c.client.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.client.Delete(t.Context(), dataVolume("", "")),
		c.client.Create(t.Context(), dataVolume("Succeeded", ""))); err != nil {
		t.Fatal(err)
	}
	fault = apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "q", errors.New("in use"))
	for range 2 {
		if after := c.later(); after != soonDelay {
			t.Errorf("looked at again after %s", after)
		}
	}
	fault = nil
	c.later()
	if got := c.get(); got.IsFinal() || c.pods() != 1 || c.provisioning() != "" {
		t.Errorf("%d pods: %s", c.pods(), c.status())
	}
}

// TestEndOfAPodByAWrongClock: a pod ends at its node's time only if that lies between the pod's making and now,
// because the clock of a node may be behind or ahead.
func TestEndOfAPodByAWrongClock(t *testing.T) {
	made := time.Unix(1000, 0)
	for after, want := range map[time.Duration]time.Duration{time.Second: time.Second, -time.Hour: 0, time.Hour: 0} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(made)}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: ContainerName, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(made.Add(after))}}}}
		if got := endOf(pod, made.Add(time.Minute)); !got.Equal(made.Add(want)) {
			t.Errorf("%s: %s, want %s", after, got.Sub(made), want)
		}
	}
}

// TestPodWithTheConsumersNameIsLeftAlone: a pod of somebody else with the consumer's name is left alone.
func TestPodWithTheConsumersNameIsLeftAlone(t *testing.T) {
	c := filling(t, interceptor.Funcs{})
	foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: ConsumerName(c.vmi)}}
	if err := c.client.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	c.later()
	if got := c.provisioning(); c.pods() != 1 || !strings.Contains(got, "in the way") {
		t.Errorf("%d pods, Provisioning says %q", c.pods(), got)
	}
	next := dataVolume("Succeeded", "")
	if err := errors.Join(c.client.Delete(t.Context(), dataVolume("", "")), c.client.Create(t.Context(), next)); err != nil {
		t.Fatal(err)
	}
	c.later()
	c.pod(foreign.Name)
}

// TestFailureIsSaidBeforeAnUnboundClaim: a failure is said first, then a claim that is not bound.
func TestFailureIsSaidBeforeAnUnboundClaim(t *testing.T) {
	done, waits, unbound, failed := datavolume.Progress{Done: true}, datavolume.Progress{Message: "waits"},
		datavolume.Progress{Unbound: true, Message: "unbound"}, datavolume.Progress{Failed: true, Message: "failed"}
	for _, c := range []struct {
		of   []datavolume.Progress
		want string
	}{
		{nil, ""}, {[]datavolume.Progress{done, done}, ""},
		{[]datavolume.Progress{done, waits, {Message: "later"}}, "waits"},
		{[]datavolume.Progress{waits, unbound, done}, "unbound"},
		{[]datavolume.Progress{unbound, {Unbound: true, Message: "later"}, waits}, "unbound"},
		{[]datavolume.Progress{unbound, failed, {Failed: true, Message: "later"}}, "failed"},
	} {
		got := ""
		if p := next(c.of); p != nil {
			got = p.Message
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.of, got, c.want)
		}
	}
}
