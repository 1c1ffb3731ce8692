package vmi

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestGuestGetsTheLowestTSCFrequency: a guest that needs a frequency gets the lowest of the nodes that take
// guests, and keeps it.
func TestGuestGetsTheLowestTSCFrequency(t *testing.T) {
	gone := nodeWith("gone", v1.TSCFrequencyLabel+"=1000000000")
	gone.Labels[v1.SchedulableLabel] = "false"
	c := newCluster(t, "", interceptor.Funcs{}, gone, nodeWith("fast", v1.TSCFrequencyLabel+"=3000000000"),
		nodeWith("slow", v1.TSCFrequencyLabel+"=2000000000"), nodeWith("emulates"))
	vmi := c.get()
	vmi.Spec.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{Reenlightenment: &v1.FeatureState{}}}
	if reason, _ := vmi.NotMigratable(); reason != v1.ReasonTSCNotMigratable {
		t.Errorf("without a frequency: %q", reason)
	}
	for range 2 {
		if _, err := c.chooseFrequency(t.Context(), on(vmi, nil)); err != nil {
			t.Fatal(err)
		}
		if got := vmi.TSCFrequency(); got != 2_000_000_000 {
			t.Errorf("frequency %d", got)
		}
		if err := c.client.Delete(t.Context(), nodeWith("slow")); err != nil && !strings.Contains(err.Error(), "not found") {
			t.Fatal(err)
		}
	}
	if reason, message := vmi.NotMigratable(); reason != "" {
		t.Errorf("with a frequency: %s, %s", reason, message)
	}
	plain := on(c.get(), nil)
	if _, err := c.chooseFrequency(t.Context(), plain); err != nil ||
		plain.vmi.Status.TopologyHints != nil {
		t.Errorf("a guest that needs none: %+v, %v", plain.vmi.Status.TopologyHints, err)
	}
}

// reenlightened gives the VMI of a cluster what needs a frequency of the TSC.
func (c *cluster) reenlightened(change func(*v1.VirtualMachineInstance)) {
	c.t.Helper()
	vmi := c.get()
	vmi.Spec.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{Reenlightenment: &v1.FeatureState{}}}
	change(vmi)
	v1.Default(vmi)
	if err := c.client.Update(c.t.Context(), vmi); err != nil {
		c.t.Fatal(err)
	}
}

// TestTSCFrequencyIsSavedBeforeThePod: the status has the frequency before the pod selects nodes by it, though
// the status write meets a conflict and the new pod is too early to be reported.
func TestTSCFrequencyIsSavedBeforeThePod(t *testing.T) {
	conflicts := 1
	c := newCluster(t, "", interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			o.SetCreationTimestamp(metav1.Unix(1000, 0)) // now
			return w.Create(ctx, o, opts...)
		},
		SubResourcePatch: func(ctx context.Context, w client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			if conflicts--; conflicts >= 0 {
				return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), errors.New("changed"))
			}
			return w.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	}, nodeWith("slow", v1.TSCFrequencyLabel+"=2000000000", v1.HyperVLabel+"reenlightenment"))
	c.reenlightened(func(*v1.VirtualMachineInstance) {})
	for range 5 {
		c.later()
		if got := c.get(); c.pods() > 0 && got.TSCFrequency() != 2_000_000_000 {
			t.Fatalf("there is a pod, and the status has %+v", got.Status.TopologyHints)
		}
	}
	if conflicts >= 0 {
		t.Error("no status write met a conflict")
	}
	pod := c.pod(v1.LauncherPodName(c.vmi.Name, c.vmi.UID, v1.FirstPod))
	if pod.Spec.NodeSelector[v1.GuestTSCLabel+"2000000000"] != "true" {
		t.Errorf("selector %v", pod.Spec.NodeSelector)
	}
	if reason, message := c.get().NotMigratable(); reason != "" {
		t.Errorf("%s: %s", reason, message)
	}
}

// TestTSCFrequencyIsOfNodesThatFit: the frequency is of nodes where the guest can be.
func TestTSCFrequencyIsOfNodesThatFit(t *testing.T) {
	const tsc, hyperv, model = v1.TSCFrequencyLabel + "=", v1.HyperVLabel + "reenlightenment", v1.CPUModelLabel + "Haswell"
	nodes := []client.Object{nodeWith("slow", tsc+"2000000000", hyperv), nodeWith("fast", tsc+"3000000000", hyperv, model),
		nodeWith("zoned", tsc+"2500000000", hyperv, "zone=a"), nodeWith("plain", hyperv, "zone=b")}
	for name, test := range map[string]struct {
		change func(*v1.VirtualMachineInstance)
		want   int64
	}{
		"any":   {func(*v1.VirtualMachineInstance) {}, 2_000_000_000},
		"model": {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = &v1.CPU{Model: "Haswell"} }, 3_000_000_000},
		"selector": {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.NodeSelector = map[string]string{"zone": "a"} },
			2_500_000_000},
		"no TSC": {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.NodeSelector = map[string]string{"zone": "b"} }, 0},
	} {
		c := newCluster(t, "", interceptor.Funcs{}, nodes...)
		c.reenlightened(test.change)
		vmi := c.get()
		if _, err := c.chooseFrequency(t.Context(), on(vmi, nil)); err != nil || vmi.TSCFrequency() != test.want {
			t.Errorf("%s: %d, %v", name, vmi.TSCFrequency(), err)
		}
	}
}

// TestNoNodeAloneDecidesTheTSCFrequency: no node alone decides which frequency the guests of others get.
func TestNoNodeAloneDecidesTheTSCFrequency(t *testing.T) {
	node := func(hertz string, labels ...string) map[string]string {
		out := map[string]string{v1.TSCFrequencyLabel: hertz, v1.TSCScalableLabel: "false"}
		for _, label := range labels {
			out[label] = "true"
		}
		return out
	}
	scales := func(hertz string) map[string]string {
		return map[string]string{v1.TSCFrequencyLabel: hertz, v1.TSCScalableLabel: "true"}
	}
	const label = v1.GuestTSCLabel
	for name, c := range map[string]struct {
		nodes []map[string]string
		least int64
		want  int64
	}{
		"none": {nil, 0, 0},
		"a liar among nodes that scale": {[]map[string]string{scales("900000000"), scales("2000000000"),
			scales("2500000000")}, 0, 2_000_000_000},
		"a liar below what processors have": {[]map[string]string{scales("1000000"), scales("2000000000")}, 0,
			2_000_000_000},
		"a liar among nodes that do not": {[]map[string]string{node("1500000000"), node("2000000000"),
			node("2000000000")}, 0, 2_000_000_000},
		"a liar that is fast": {[]map[string]string{scales("9000000000"), node("2000000000"),
			node("2000000000")}, 0, 2_000_000_000},
		"the lowest": {[]map[string]string{scales("2500000000"), scales("2000000000")}, 0,
			2_000_000_000},
		"the lowest of as many": {[]map[string]string{node("2500000000"), node("2000000000")}, 0, 2_000_000_000},
		"the administrator's least": {[]map[string]string{scales("2500000000"), scales("2000000000")}, 2_200_000_000,
			2_200_000_000},
		"more than any": {[]map[string]string{scales("2500000000")}, 3_000_000_000, 0},
		"what guests have, if it is as good": {[]map[string]string{node("2000000000", label+"2000100000"),
			node("2000100000", label+"2000100000", label+"2000000000")}, 0, 2_000_100_000},
		"what guests have, if few can": {[]map[string]string{node("2000000000", label+"2000100000"),
			node("2000100000", label+"2100000000")}, 0, 2_000_000_000},
	} {
		if got := chooseTSC(c.nodes, c.least); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
