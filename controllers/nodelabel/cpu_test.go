package nodelabel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/hostcpu"
)

var told = hostcpu.Told{Accelerator: "kvm", Vendor: "Intel", Models: []string{"Haswell", "qemu64"}, Features: []string{"aes", "avx2"}, HostModel: "Haswell", Required: []string{"avx2"},
	HyperV: []string{"base", "synic"}, TSC: &hostcpu.TSC{Hertz: 2_000_000_000, Scalable: true}}

func TestCPULabels(t *testing.T) {
	got := cpuLabels(told, nil)
	want := map[string]string{
		"cpu-model.node.kubevirt.io/Haswell": "true", "cpu-model-migration.node.kubevirt.io/Haswell": "true", "cpu-model-migration.node.kubevirt.io/qemu64": "true",
		"cpu-feature.node.kubevirt.io/aes": "true", "cpu-feature.node.kubevirt.io/avx2": "true",
		"host-model-cpu.node.kubevirt.io/Haswell": "true", "host-model-required-features.node.kubevirt.io/avx2": "true",
		"cpu-vendor.node.kubevirt.io/Intel": "true", "hyperv.node.kubevirt.io/base": "true", "hyperv.node.kubevirt.io/synic": "true",
		"cpu-timer.node.kubevirt.io/tsc-frequency": "2000000000", "cpu-timer.node.kubevirt.io/tsc-scalable": "true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	configured := cpuLabels(told, &v1.KubeVirtConfiguration{ObsoleteCPUModels: map[string]bool{"Haswell": true, "aes": true}})
	if _, ok := configured["cpu-model.node.kubevirt.io/Haswell"]; ok || configured["cpu-model.node.kubevirt.io/qemu64"] != "true" {
		t.Errorf("with Haswell obsolete: %v", configured)
	}
}

// TestOnlyKnownNamesBecomeLabels: only known names become labels, and all of them are labels of ours.
func TestOnlyKnownNamesBecomeLabels(t *testing.T) {
	evil := []string{"", "kubernetes.io/hostname", "../x", "Haswell-v99", "Haswell ", strings.Repeat("a", 100), "AES", "node-role"}
	for i := range 5000 {
		evil = append(evil, fmt.Sprint("x", i))
	}
	got := cpuLabels(hostcpu.Told{Vendor: "x", Models: evil, Features: evil, HostModel: "x", Required: evil, HyperV: evil, TSC: &hostcpu.TSC{Hertz: -1}}, nil)
	if len(got) != 0 {
		t.Errorf("%v", got)
	}
	for key, value := range cpuLabels(told, nil) {
		if !isOurs(key) || len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			t.Errorf("%s=%s", key, value)
		}
	}
}

func TestTSCLabels(t *testing.T) {
	own := func(hertz, scalable string) map[string]string {
		return map[string]string{v1.TSCFrequencyLabel: hertz, v1.TSCScalableLabel: scalable}
	}
	others := []int64{1_999_800_000, 1_500_000_000, 2_500_000_000, -1}
	for name, c := range map[string]struct {
		own  map[string]string
		want []string
	}{
		"scales":      {own("2000000000", "true"), []string{"1500000000", "1999800000", "2000000000"}},
		"has its own": {own("2000000000", "false"), []string{"1999800000", "2000000000"}},
		"no number":   {own("x", "true"), nil},
		"none":        {nil, nil},
		"too large":   {own("999999999999999999", "true"), nil},
	} {
		got := slices.Sorted(maps.Keys(tscLabels(c.own, "node-1", frequencies{others: others})))
		var want []string
		for _, f := range c.want {
			want = append(want, v1.GuestTSCLabel+f)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	many := make([]int64, 1000)
	for i := range many {
		many[i] = minimal + int64(i)
	}
	// However many there are, the node's own frequency and those of its guests have a label.
	all := frequencies{others: many, guests: map[string][]int64{"node-1": {1_900_000_000}, "node-2": {1_800_000_000}}}
	got := tscLabels(own("2000000000", "true"), "node-1", all)
	if len(got) != 2+maxFrequencies || got[v1.GuestTSCLabel+"2000000000"] == "" || got[v1.GuestTSCLabel+"1900000000"] == "" || got[v1.GuestTSCLabel+"1800000000"] != "" {
		t.Errorf("%d labels: %v", len(got), got)
	}
}

const minimal = 1_000_000_000

// tell renews the Lease, and says what the node can give.
func (n *nodes) tell(told hostcpu.Told) {
	n.t.Helper()
	text, err := json.Marshal(told)
	if err != nil {
		n.t.Fatal(err)
	}
	l := lease(n.clock.Now(), "kvm")
	l.Annotations[CPUKey] = string(text)
	n.put(l)
}

func (n *nodes) labels() map[string]string {
	n.t.Helper()
	got := &corev1.Node{}
	if err := n.c.Get(n.t.Context(), keyOf("node-1"), got); err != nil {
		n.t.Fatal(err)
	}
	return got.Labels
}

// TestLabelsFollowWhatTheNodeTells: labels come and go with what the node tells; those of others stay.
func TestLabelsFollowWhatTheNodeTells(t *testing.T) {
	n := newNodes(t, node(map[string]string{"theirs": "too", "cpu-model.node.kubevirt.io/Penryn": "true"}))
	config := &v1.KubeVirtConfiguration{}
	n.Cluster = clusterOf(config)
	n.renew("kvm")
	n.reconcile()
	if got := n.labels(); got["cpu-model.node.kubevirt.io/Penryn"] != "true" {
		t.Errorf("a node that tells nothing has %v", got)
	}
	n.tell(told)
	n.reconcile()
	got := n.labels()
	if got["theirs"] != "too" || got["cpu-model.node.kubevirt.io/Penryn"] != "" || got["cpu-model.node.kubevirt.io/Haswell"] != "true" || got[v1.GuestTSCLabel+"2000000000"] != "true" {
		t.Errorf("%v", got)
	}
	writes := n.writes
	n.clock.SetTime(n.clock.Now().Add(time.Minute))
	n.tell(told)
	n.reconcile()
	if n.writes != writes {
		t.Error("a node that tells the same again is written")
	}
	config.ObsoleteCPUModels = map[string]bool{"Haswell": true}
	n.reconcile()
	if got := n.labels(); got["cpu-model.node.kubevirt.io/Haswell"] != "" || got["cpu-model-migration.node.kubevirt.io/Haswell"] != "true" {
		t.Errorf("with Haswell obsolete: %v", got)
	}
	n.clock.SetTime(n.clock.Now().Add(2 * Lifetime)) // virt-handler is gone
	n.reconcile()
	if got := n.labels(); got["cpu-feature.node.kubevirt.io/aes"] != "true" || got[v1.SchedulableLabel] != "false" {
		t.Errorf("without virt-handler: %v", got)
	}
}

// TestCPUsOfOtherAcceleratorAreNoLabels: what a node told of another accelerator than it has now is no label of the node. A node without an accelerator keeps
// its labels, for its guests run on.
func TestCPUsOfOtherAcceleratorAreNoLabels(t *testing.T) {
	const label = "cpu-model.node.kubevirt.io/Haswell"
	n := newNodes(t, node(nil))
	n.tell(told)
	n.reconcile()
	for _, c := range []struct{ accelerator, want string }{{"none", "true"}, {"tcg", ""}, {"kvm", "true"}} {
		n.clock.SetTime(n.clock.Now().Add(time.Second))
		text, err := json.Marshal(told)
		if err != nil {
			t.Fatal(err)
		}
		l := lease(n.clock.Now(), c.accelerator)
		l.Annotations[CPUKey] = string(text) // which virt-handler leaves in the Lease while it knows no more
		n.put(l)
		n.reconcile()
		if got := n.labels()[label]; got != c.want {
			t.Errorf("%s: %q", c.accelerator, got)
		}
	}
}

// TestUnreadableLeaseIsLoggedOnce: a Lease that cannot be read is logged once for each error, and the labels stay.
func TestUnreadableLeaseIsLoggedOnce(t *testing.T) {
	n := newNodes(t, node(map[string]string{"cpu-model.node.kubevirt.io/Penryn": "true"}))
	var lines []string
	ctx := logr.NewContext(t.Context(), funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{}))
	for _, text := range []string{"{", "{", "{]", `{"vendor":"Intel","accelerator":"kvm"}`, "{"} {
		n.clock.SetTime(n.clock.Now().Add(time.Second))
		l := lease(n.clock.Now(), "kvm")
		l.Annotations[CPUKey] = text
		n.put(l)
		if _, err := n.Reconcile(ctx, reconcile.Request{NamespacedName: keyOf("node-1")}); err != nil {
			t.Fatal(err)
		}
		if text == "{]" && n.labels()["cpu-model.node.kubevirt.io/Penryn"] != "true" {
			t.Error("the labels are gone")
		}
	}
	if len(lines) != 3 {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
}

// TestSkippedNodeKeepsItsLabels: an administrator keeps the labels as they are.
func TestSkippedNodeKeepsItsLabels(t *testing.T) {
	skipped := node(map[string]string{"cpu-model.node.kubevirt.io/Penryn": "true"})
	skipped.Annotations[v1.SkipNodeAnnotation] = "true"
	n := newNodes(t, skipped)
	n.tell(told)
	n.reconcile()
	if got := n.labels(); got["cpu-model.node.kubevirt.io/Penryn"] != "true" || got["cpu-model.node.kubevirt.io/Haswell"] != "" || got[v1.SchedulableLabel] != "true" {
		t.Errorf("%v", got)
	}
	trimmed, err := Trim(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1.SkipNodeAnnotation: "true", "other": "x"}, Labels: cpuLabels(told, nil)}})
	if m := trimmed.(*metav1.PartialObjectMetadata); err != nil || len(m.Annotations) != 1 || len(m.Labels) != len(cpuLabels(told, nil)) {
		t.Errorf("%+v, %v", trimmed, err)
	}
}

// TestFrequencyOfAGuestKeepsItsLabels: a frequency that a guest has stays on the nodes that can give it, though its node is gone.
func TestFrequencyOfAGuestKeepsItsLabels(t *testing.T) {
	guest := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "guest", Namespace: "default"}}
	guest.Spec.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{Reenlightenment: &v1.FeatureState{}}}
	hertz := int64(1_700_000_000)
	guest.Status.TopologyHints = &v1.TopologyHints{TSCFrequency: &hertz}
	n := newNodes(t, node(nil), guest)
	n.tell(told)
	n.reconcile()
	if got := n.labels(); got[v1.GuestTSCLabel+"1700000000"] != "true" {
		t.Errorf("%v", got)
	}
	if err := n.c.Delete(t.Context(), guest); err != nil {
		t.Fatal(err)
	}
	n.clock.SetTime(n.clock.Now().Add(time.Minute))
	n.tell(told)
	n.reconcile()
	if got := n.labels(); got[v1.GuestTSCLabel+"1700000000"] != "" {
		t.Errorf("the guest is gone: %v", got)
	}
}

// TestLabelStaysWhileAPodSelectsIt: a label stays while a launcher pod of a VMI on the node selects it, and goes when the pod has ended. A pod that only looks like a launcher's keeps none.
func TestLabelStaysWhileAPodSelectsIt(t *testing.T) {
	model, feature, other := v1.CPUModelLabel+"Haswell", v1.CPUFeatureLabel+"aes", v1.CPUFeatureLabel+"avx2"
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "a-uid"}}
	vmi.Status.ActivePods = map[types.UID]string{"selects": "node-1", "requires": "node-1", "forbids": "node-1", "elsewhere": "node-2", "ended": "node-1", "without": "node-1", "another": "node-1"}
	pod := func(name, node string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{v1.AppLabel: "virt-launcher"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)}},
			Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		change(p)
		return p
	}
	requires := func(key string, operator corev1.NodeSelectorOperator) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator}}}}}}}
	}
	n := newNodes(t, vmi,
		pod("alike", "node-1", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{other: "true"} }),
		pod("without", "node-1", func(p *corev1.Pod) {
			p.Spec.NodeSelector, p.OwnerReferences = map[string]string{other: "true"}, nil
		}),
		pod("another", "node-1", func(p *corev1.Pod) {
			p.Spec.NodeSelector, p.OwnerReferences[0].UID = map[string]string{other: "true"}, "another"
		}),
		pod("selects", "node-1", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{model: "true"} }),
		pod("requires", "node-1", func(p *corev1.Pod) { p.Spec.Affinity = requires(feature, corev1.NodeSelectorOpExists) }),
		pod("forbids", "node-1", func(p *corev1.Pod) { p.Spec.Affinity = requires(other, corev1.NodeSelectorOpDoesNotExist) }),
		pod("elsewhere", "node-2", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{other: "true"} }),
		pod("ended", "node-1", func(p *corev1.Pod) {
			p.Spec.NodeSelector, p.Status.Phase = map[string]string{other: "true"}, corev1.PodSucceeded
		}))
	got, err := n.needed(t.Context(), "node-1", []string{model, feature, other})
	if want := map[string]bool{model: true, feature: true, other: false}; err != nil || !maps.Equal(got, want) {
		t.Errorf("needed are %v (%v), want %v", got, err, want)
	}
	if got, err := n.needed(t.Context(), "node-1", nil); err != nil || len(got) != 0 {
		t.Errorf("of no label %v (%v) are needed", got, err)
	}
}

// TestLabelStaysWhilePodsAreUnreadable: a label that the node has no more stays while nobody knows whether a pod selects it, and the node's other labels change.
func TestLabelStaysWhilePodsAreUnreadable(t *testing.T) {
	const stale = "cpu-model.node.kubevirt.io/Penryn"
	n := newNodes(t, node(map[string]string{stale: "true"}))
	n.Live = interceptor.NewClient(n.c, interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return context.DeadlineExceeded
	}})
	n.tell(told)
	if _, err := n.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf("node-1")}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want %v", err, context.DeadlineExceeded)
	}
	if got := n.labels(); got[stale] != "true" || got[v1.SchedulableLabel] != "true" || got["cpu-model.node.kubevirt.io/Haswell"] != "true" {
		t.Errorf("%v", got)
	}
	n.Live = n.c
	n.reconcile()
	if got := n.labels(); got[stale] != "" {
		t.Errorf("%v", got)
	}
}
