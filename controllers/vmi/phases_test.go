package vmi

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kubeqemu/kubeqemu/api/migrations/v1alpha1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/storageclass"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
)

// TestOneTurnSaysWhetherTheGuestCanMove: the first turn knows all on which it depends whether a guest can move, with
// a pod and without. So the status is not written again for that.
func TestOneTurnSaysWhetherTheGuestCanMove(t *testing.T) {
	shared := claimOf("data", nil)
	shared.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	update := func(change func(*v1.VirtualMachineInstance)) func(*cluster) {
		return func(c *cluster) {
			vmi := c.get()
			change(vmi)
			v1.Default(vmi)
			if err := c.client.Update(c.t.Context(), vmi); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	for name, has := range map[string]func(*cluster){
		"a plugin's interface": func(c *cluster) {
			config := &v1.KubeVirtConfiguration{}
			const plugin = `{"network":{"binding":{"p":{"domainAttachmentType":"managedTap","migration":{}}}}}`
			if err := json.Unmarshal([]byte(plugin), config); err != nil {
				t.Fatal(err)
			}
			c.Cluster = func(context.Context) (*v1.KubeVirtConfiguration, error) { return config, nil }
			update(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}}
				vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{
					{Name: "default", Binding: &v1.PluginBinding{Name: "p"}}}
			})(c)
		},
		"a claim for all nodes": update(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Volumes = []v1.Volume{
				{Name: "root", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}
		}),
		"its state on a claim": update(stateful),
		"a frequency":          func(c *cluster) { c.reenlightened(func(*v1.VirtualMachineInstance) {}) },
	} {
		c := newCluster(t, "", interceptor.Funcs{}, shared, storageClass("virt", "nfs", storageclass.DefaultAnnotation),
			nodeWith("node1", v1.TSCFrequencyLabel+"=2000000000", v1.HyperVLabel+"reenlightenment"))
		has(c)
		says := func(when string) {
			t.Helper()
			if err := c.reconcile(); err != nil {
				t.Fatal(err)
			}
			if got := c.get().Status.Condition(v1.ConditionLiveMigratable); got == nil ||
				got.Status != metav1.ConditionTrue {
				t.Errorf("%s, %s: %+v", name, when, got)
			}
		}
		says("without a pod")
		says("with a pod")
		vmi := c.get()
		vmi.Status = v1.VirtualMachineInstanceStatus{TopologyHints: vmi.Status.TopologyHints}
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		says("with a pod that was not reported")
	}
}

// TestOneTurnSaysWhichDisksMove: the first turn of a VMI with a pod says which of its disks a migration copies, and
// that the guest can move for that.
func TestOneTurnSaysWhichDisksMove(t *testing.T) {
	c := newCluster(t, "", interceptor.Funcs{}, gated(t))
	c.withTemplate(&v1alpha1.MigrationPolicy{Spec: v1alpha1.MigrationPolicySpec{AllowClaimCopy: ptr.To(true)}})
	if err := c.reconcile(); err != nil {
		t.Fatal(err)
	}
	s := c.get().Status
	if can := s.Condition(v1.ConditionLiveMigratable); len(s.VolumeStatus) != 1 || !s.VolumeStatus[0].Moves ||
		can == nil || can.Status != metav1.ConditionTrue {
		t.Errorf("%+v, %+v", s.VolumeStatus, can)
	}
}

// TestOneTurnSaysThatAGuestWithoutItsFilesStays: the turn that says that the guest has lost a file system also says
// that it cannot move.
func TestOneTurnSaysThatAGuestWithoutItsFilesStays(t *testing.T) {
	pod := gated(t)
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{
		{Name: v1.FilesystemContainerPrefix + "data", State: exited(sidecar.ExitLost)}}
	c := newCluster(t, v1.Running, interceptor.Funcs{}, pod)
	if err := c.reconcile(); err != nil {
		t.Fatal(err)
	}
	s := c.get().Status
	if can := s.Condition(v1.ConditionLiveMigratable); s.Condition(v1.ConditionFilesystemFailed) == nil || can == nil ||
		can.Reason != v1.ReasonVirtioFSNotMigratable {
		t.Errorf("%+v", s.Conditions)
	}
}

// TestOneTurnTakesBackWhatIsOver: the status of a VMI with a pod drops what its node had complained of, and a MAC that
// no other VMI has any more.
func TestOneTurnTakesBackWhatIsOver(t *testing.T) {
	pod := gated(t)
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
		podCondition(corev1.PodScheduled, corev1.ConditionTrue),
		podCondition(corev1.PodReadyToStartContainers, corev1.ConditionTrue)}}
	c := newCluster(t, v1.Scheduling, interceptor.Funcs{}, pod)
	vmi := c.get()
	vmi.Status.Complain(v1.ReasonSandboxFailed, "", metav1.Unix(950, 0))
	vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSharedMAC,
		Status: metav1.ConditionTrue}, metav1.Unix(950, 0))
	if err := errors.Join(c.client.Status().Update(t.Context(), vmi), c.reconcile()); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []v1.ConditionType{v1.ConditionSynchronized, v1.ConditionSharedMAC} {
		if got := c.get().Status.Condition(kind); got != nil {
			t.Errorf("%+v", got)
		}
	}
}

// TestStatusDropsAPodThatIsGone: in each phase whose status is written, it drops a pod that is gone and that did not
// have the VMI's guest.
func TestStatusDropsAPodThatIsGone(t *testing.T) {
	rejectedPod := gated(t)
	rejectedPod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: v1.ReasonRejected}
	for is, c := range map[phase]*cluster{
		removing:  newCluster(t, v1.Running, interceptor.Funcs{}, gated(t)),
		replacing: newCluster(t, v1.Scheduling, interceptor.Funcs{}, rejectedPod),
		following: newCluster(t, v1.Running, interceptor.Funcs{}, gated(t)),
		ending:    newCluster(t, v1.Running, interceptor.Funcs{}),
		starting:  newCluster(t, v1.Pending, interceptor.Funcs{}),
	} {
		vmi := c.get()
		vmi.Status.LauncherPods = []v1.LauncherPod{{Name: "gone", UID: "gone"}}
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		if is == removing {
			if err := c.client.Delete(t.Context(), vmi); err != nil {
				t.Fatal(err)
			}
		}
		w, err := c.look(t.Context(), c.get())
		if got := decide(w); err != nil || got != is {
			t.Errorf("%s, %v, want %s", got, err, is)
		}
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		for _, pod := range c.get().Status.LauncherPods {
			if pod.Name == "gone" {
				t.Errorf("%s: the status has the pod", is)
			}
		}
	}
}

// TestStateClaimComesAfterOtherClaims: no claim for the state is made while the VMI waits for another claim.
func TestStateClaimComesAfterOtherClaims(t *testing.T) {
	c := newStateful(t, interceptor.Funcs{}, storageClass("virt", "nfs", storageclass.DefaultAnnotation))
	vmi := c.get()
	vmi.Spec.Volumes = []v1.Volume{
		{Name: "root", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}
	if err := c.client.Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	if err := c.reconcile(); err != nil || len(c.claims()) > 0 {
		t.Errorf("%v, claims %v", err, c.claims())
	}
	if err := c.client.Create(t.Context(), claimOf("data", nil)); err != nil {
		t.Fatal(err)
	}
	if err := c.reconcile(); err != nil || len(c.claims()) != 2 {
		t.Errorf("%v, claims %v", err, c.claims())
	}
}

// TestEndedVMIKeepsWhatItsGuestLost: that a guest had lost a file system stays in the status of a VMI that ends.
func TestEndedVMIKeepsWhatItsGuestLost(t *testing.T) {
	pod := gated(t)
	pod.Status = terminated(corev1.ContainerStateTerminated{Message: `{"reason":"GuestShutdown"}`}).Status
	c := newCluster(t, v1.Running, interceptor.Funcs{}, pod)
	vmi := c.get()
	vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionFilesystemFailed,
		Status: metav1.ConditionTrue, Reason: v1.ReasonVirtioFSDEnded}, metav1.Unix(950, 0))
	if err := c.client.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	if err := c.reconcile(); err != nil {
		t.Fatal(err)
	}
	if s := c.get().Status; s.Phase != v1.Succeeded || s.Condition(v1.ConditionFilesystemFailed) == nil {
		t.Errorf("%s", c.status())
	}
}

// TestInvalidVMIEndsAsItsGuestDid: a VMI whose guest has shut down has succeeded, whether its pod is still there or
// gone, and though its spec is not valid any more: a later release may demand more of a spec.
func TestInvalidVMIEndsAsItsGuestDid(t *testing.T) {
	pod := gated(t)
	pod.Status = terminated(corev1.ContainerStateTerminated{Message: `{"reason":"GuestShutdown"}`}).Status
	for name, pods := range map[string][]client.Object{"the pod is there": {pod}, "the pod is gone": nil} {
		c := newCluster(t, v1.Running, interceptor.Funcs{}, pods...)
		vmi := c.get()
		vmi.Spec.TerminationGracePeriodSeconds = ptr.To(int64(-1))
		if err := c.client.Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		last, _ := podEnd(pod)
		c.ends.remember(vmi.UID, pod.Name, last)
		if err := c.reconcile(); err != nil || c.get().Status.Phase != v1.Succeeded {
			t.Errorf("%s: %v, %s", name, err, c.status())
		}
	}
}

// TestStepsEndWithTheOneThatFails: a list of steps ends with the step that fails, or that has the rest skipped. The
// shortest wait counts.
func TestStepsEndWithTheOneThatFails(t *testing.T) {
	type answer struct {
		wait time.Duration
		err  error
	}
	down := errors.New("down")
	for name, c := range map[string]struct {
		answers []answer
		taken   int
		wait    time.Duration
		err     error
	}{
		"none":               {nil, 0, 0, nil},
		"all":                {[]answer{{}, {2, nil}, {}, {1, nil}, {3, nil}}, 5, 1, nil},
		"one fails":          {[]answer{{2, nil}, {3, down}, {1, nil}}, 2, 2, down},
		"the rest waits":     {[]answer{{3, nil}, {2, errSkipRest}, {1, nil}}, 2, 2, nil},
		"nothing is written": {[]answer{{0, nil}, {2, errSkipAll}, {1, nil}}, 2, 2, errSkipAll},
	} {
		taken := 0
		var steps []step
		for _, a := range c.answers {
			steps = append(steps, func(context.Context, *turn) (time.Duration, error) {
				taken++
				return a.wait, a.err
			})
		}
		if wait, err := take(t.Context(), &turn{}, steps); wait != c.wait || !errors.Is(err, c.err) || taken != c.taken {
			t.Errorf("%s: %d steps, %d, %v", name, taken, wait, err)
		}
	}
}

// TestStatusIsWrittenThoughAStepFails: what is known of the pod is in the status, though the nodes cannot be listed, by
// which the scheduler's complaint is explained. What follows the write waits until they can.
func TestStatusIsWrittenThoughAStepFails(t *testing.T) {
	pod := Pod(load(t, "testdata/minimal"), testConfig)
	pod.UID, pod.CreationTimestamp = "pod-uid", metav1.Unix(900, 0)
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: v1.ReasonUnschedulable, Message: "0/1 nodes"}}
	down := errors.New("down")
	fails := true
	c := newCluster(t, "", interceptor.Funcs{
		List: func(ctx context.Context, w client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if _, nodes := l.(*metav1.PartialObjectMetadataList); nodes && fails {
				return down
			}
			return w.List(ctx, l, opts...)
		},
	}, pod)
	if err := c.reconcile(); !errors.Is(err, down) {
		t.Errorf("error %v", err)
	}
	said := func() string { return c.get().Status.Condition(v1.ConditionPodScheduled).Message }
	if got := c.status(); !strings.HasPrefix(got, "Scheduling") || said() != "0/1 nodes" {
		t.Errorf("status %s: %s", got, said())
	}
	fails = false
	if err := c.reconcile(); err != nil || said() != "0/1 nodes; there is no other node" {
		t.Errorf("error %v, %s", err, said())
	}
}
