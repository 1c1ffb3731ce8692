package vmi

import (
	"context"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

type stringMap = map[string]string

// TestPodsHaveTheLabelsThatOthersSelectBy: a launcher pod has KubeVirt's labels, whatever its VMI's labels say,
// and a consumer has none of them.
func TestPodsHaveTheLabelsThatOthersSelectBy(t *testing.T) {
	vmi := load(t, "testdata/minimal")
	vmi.Name, vmi.UID = "web.of-shop", "uid"
	vmi.Labels = stringMap{"app": "web", v1.CreatedByLabel: "other", v1.VirtualMachineInstanceIDLabel: "other",
		v1.VirtualMachineNameLabel: "other",
		v1.MigrationJobLabel:       "other", v1.NodeNameLabel: "node1", v1.OutdatedLauncherLabel: ""}
	want := stringMap{"app": "web", v1.AppLabel: "virt-launcher", v1.CreatedByLabel: "uid",
		v1.VirtualMachineInstanceIDLabel: "web.of-shop", v1.VirtualMachineNameLabel: "web"}
	pod := Pod(vmi, testConfig)
	if !maps.Equal(pod.Labels, want) {
		t.Errorf("%v, want %v", pod.Labels, want)
	}
	if _, there := pod.Annotations[v1.EvictOnlyAnnotation]; !there {
		t.Error("the descheduler counts a migration that it began as a failure")
	}
	vmi.Spec.Hostname = "shop"
	if got := Pod(vmi, testConfig).Labels[v1.VirtualMachineNameLabel]; got != "shop" {
		t.Errorf("the label is %q, and in KubeVirt it is the hostname", got)
	}
	if got, want := Consumer(vmi, testConfig).Labels,
		(stringMap{"app": "web", v1.AppLabel: consumerLabel}); !maps.Equal(got, want) {
		t.Errorf("a consumer has %v, want %v", got, want)
	}
}

// TestLabelsOfVMIFollowItsStatus: a VMI's labels say on which node its guest is, and whether its launcher is
// outdated. A start has one write of them, once the guest runs.
func TestLabelsOfVMIFollowItsStatus(t *testing.T) {
	writes := 0
	pod := gated(t, podCondition(unpausedGate, corev1.ConditionTrue))
	pod.Status.Phase = corev1.PodRunning
	c := newCluster(t, v1.Scheduled, interceptor.Funcs{Patch: func(ctx context.Context, w client.WithWatch,
		o client.Object, p client.Patch, opts ...client.PatchOption) error {
		if _, is := o.(*v1.VirtualMachineInstance); is && p.Type() == types.MergePatchType {
			writes++
		}
		return w.Patch(ctx, o, p, opts...)
	}}, pod)
	step := func(name string, second int64, change func(*v1.VirtualMachineInstance), want stringMap, wantWrites int) {
		t.Helper()
		vmi := c.get()
		change(vmi)
		labels := maps.Clone(vmi.Labels)
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		vmi.Labels = labels
		if err := c.client.Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		c.Clock = clocktesting.NewFakePassiveClock(time.Unix(second, 0))
		for range 3 { // a pass that writes the status leaves the labels to the next one
			if err := c.reconcile(); err != nil {
				t.Fatal(err)
			}
		}
		if vmi := c.get(); !maps.Equal(vmi.Labels, want) || writes != wantWrites {
			t.Errorf("%s: %v (%d writes), want %v (%d)", name, vmi.Labels, writes, want, wantWrites)
		}
	}
	none, here := stringMap(nil), stringMap{v1.NodeNameLabel: "node1"}
	unchanged := func(*v1.VirtualMachineInstance) {}
	step("while it starts", 1000, func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.SetPhase(v1.Running, metav1.Unix(1000, 0))
	}, none, 0)
	step("it runs", 1003, unchanged, here, 1)
	step("it runs on", 1100, unchanged, here, 1)
	step("it was on another node", 1200,
		func(vmi *v1.VirtualMachineInstance) { vmi.Labels = stringMap{v1.NodeNameLabel: "node0"} }, here, 2)
	c.Config.LauncherImage = "registry.example/newer"
	step("there is a newer launcher", 1300, unchanged, stringMap{v1.NodeNameLabel: "node1", v1.OutdatedLauncherLabel: ""},
		3)
	step("it has ended", 1400,
		func(vmi *v1.VirtualMachineInstance) { vmi.Status.SetPhase(v1.Succeeded, metav1.Unix(1390, 0)) },
		stringMap{v1.NodeNameLabel: "node1"}, 4)
}
