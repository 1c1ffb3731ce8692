package vmi

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// selected returns the labels of CPUs by which the pod of a VMI chooses its node.
func selected(pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	for key, value := range pod.Spec.NodeSelector {
		if v1.IsCPULabel(key) {
			out[key] = value
		}
	}
	return out
}

func TestCPUsChooseNodes(t *testing.T) {
	features := func(f ...v1.CPUFeature) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU.Features = f }
	}
	model := func(name string) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU.Model = name }
	}
	hyperv := func(h *v1.FeatureHyperv) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Features = &v1.Features{Hyperv: h} }
	}
	on := &v1.FeatureState{Enabled: ptr.To(true)}
	for name, c := range map[string]struct {
		change    func(*v1.VirtualMachineInstance)
		emulation bool
		want      []string
	}{
		"host-model":       {model("host-model"), false, nil},
		"host-passthrough": {model("host-passthrough"), false, nil},
		"named":            {model("Haswell-v4"), true, []string{"cpu-model.node.kubevirt.io/Haswell-v4"}},
		// The node says what is wrong with it.
		"no model": {model("Hasswell"), false, nil},
		"features": {features(v1.CPUFeature{Name: "lahf_lm"}, v1.CPUFeature{Name: "aes", Policy: v1.FeatureRequire},
			v1.CPUFeature{Name: "avx", Policy: v1.FeatureOptional},
			v1.CPUFeature{Name: "vmx", Policy: v1.FeatureForce}, v1.CPUFeature{Name: "sse2", Policy: v1.FeatureDisable},
			v1.CPUFeature{Name: "no-such"}),
			true, []string{"cpu-feature.node.kubevirt.io/aes", "cpu-feature.node.kubevirt.io/lahf-lm"}},
		"hyperv": {hyperv(&v1.FeatureHyperv{SyNICTimer: &v1.SyNICTimer{}, Relaxed: on, Spinlocks: &v1.FeatureSpinlocks{},
			IPI: &v1.FeatureState{Enabled: ptr.To(false)}}), false,
			[]string{"hyperv.node.kubevirt.io/synic", "hyperv.node.kubevirt.io/synictimer", "hyperv.node.kubevirt.io/vpindex"}},
		"hyperv, perhaps emulated": {hyperv(&v1.FeatureHyperv{SyNICTimer: &v1.SyNICTimer{}}), true, nil},
		"evmcs": {hyperv(&v1.FeatureHyperv{EVMCS: on}), false,
			[]string{"cpu-feature.node.kubevirt.io/vmx"}},
		"evmcs, perhaps emulated": {hyperv(&v1.FeatureHyperv{EVMCS: on}), true, nil},
		"a TSC that keeps its frequency": {func(vmi *v1.VirtualMachineInstance) {
			hyperv(&v1.FeatureHyperv{Reenlightenment: on})(vmi)
			vmi.Status.TopologyHints = &v1.TopologyHints{TSCFrequency: ptr.To[int64](2_000_000_000)}
		}, false, []string{"hyperv.node.kubevirt.io/reenlightenment",
			"scheduling.node.kubevirt.io/tsc-frequency-2000000000"}},
		"a frequency that nothing needs": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.TopologyHints = &v1.TopologyHints{TSCFrequency: ptr.To[int64](2_000_000_000)}
		}, false, nil},
	} {
		vmi := load(t, "testdata/minimal")
		v1.Default(vmi)
		c.change(vmi)
		v1.Default(vmi)
		config := testConfig
		config.Emulation = c.emulation
		want := map[string]string{}
		for _, label := range c.want {
			want[label] = "true"
		}
		if diff := cmp.Diff(want, selected(Pod(vmi, config))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestEachWayToANodeForbidsTheFeature: each way to a node forbids the feature, and the user's own terms stay.
func TestEachWayToANodeForbidsTheFeature(t *testing.T) {
	vmi := load(t, "testdata/minimal")
	v1.Default(vmi)
	vmi.Spec.Domain.CPU.Features = []v1.CPUFeature{{Name: "vmx", Policy: v1.FeatureForbid}}
	off := corev1.NodeSelectorRequirement{Key: "cpu-feature.node.kubevirt.io/vmx",
		Operator: corev1.NodeSelectorOpDoesNotExist}
	terms := func() []corev1.NodeSelectorTerm {
		return Pod(vmi, testConfig).Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	if diff := cmp.Diff([]corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{off}}}, terms()); diff != "" {
		t.Error(diff)
	}
	own := corev1.NodeSelectorRequirement{Key: "zone", Operator: corev1.NodeSelectorOpExists}
	vmi.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{own}}, {}}}}}
	want := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{own, off}}, {}}
	if diff := cmp.Diff(want, terms()); diff != "" {
		t.Error(diff)
	}
	if n := len(vmi.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions); n != 1 {
		t.Errorf("the VMI's own term has %d requirements", n)
	}
}

// TestGuestMovesOnlyToNodesWithItsCPU: a guest with its node's own CPU goes only to nodes that can give it this
// CPU; also from its second node on.
func TestGuestMovesOnlyToNodesWithItsCPU(t *testing.T) {
	vmi := load(t, "testdata/minimal")
	v1.Default(vmi)
	labels := map[string]string{"host-model-cpu.node.kubevirt.io/Haswell": "true",
		"host-model-required-features.node.kubevirt.io/adx": "true",
		"host-model-required-features.node.kubevirt.io/vmx": "true", "cpu-vendor.node.kubevirt.io/Intel": "true",
		"cpu-model.node.kubevirt.io/Penryn": "true"}
	vmi.Spec.Domain.CPU.Features = []v1.CPUFeature{{Name: "vmx", Policy: v1.FeatureDisable}}
	want := map[string]string{"cpu-model-migration.node.kubevirt.io/Haswell": "true",
		"cpu-feature.node.kubevirt.io/adx": "true", "cpu-vendor.node.kubevirt.io/Intel": "true"}
	first := targetCPU(vmi, &corev1.Pod{}, labels)
	if diff := cmp.Diff(want, first); diff != "" {
		t.Error(diff)
	}
	config := testConfig
	config.TargetCPU = first
	second := targetPod(vmi,
		&v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: types.UID("m")}}, config)
	if diff := cmp.Diff(want, selected(second)); diff != "" {
		t.Error(diff)
	}
	newer := map[string]string{"host-model-cpu.node.kubevirt.io/Broadwell": "true",
		"host-model-required-features.node.kubevirt.io/avx512f": "true"}
	if diff := cmp.Diff(want, targetCPU(vmi, second, newer)); diff != "" {
		t.Errorf("from the second node: %s", diff)
	}
	vmi.Spec.NodeSelector = map[string]string{"cpu-model-migration.node.kubevirt.io/Penryn": "true"}
	selects := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: vmi.Spec.NodeSelector}}
	if diff := cmp.Diff(want, targetCPU(vmi, selects, labels)); diff != "" {
		t.Errorf("the user selects nodes by a CPU model, too: %s", diff)
	}
	vmi.Spec.Domain.CPU.Model = "Haswell"
	if got := targetCPU(vmi, &corev1.Pod{}, labels); len(got) != 0 {
		t.Errorf("with a named model: %v", got)
	}
}

func nodeWith(name string, labels ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.SchedulableLabel: "true"}}}
	for _, label := range labels {
		key, value, ok := strings.Cut(label, "=")
		if !ok {
			value = "true"
		}
		n.Labels[key] = value
	}
	return n
}

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
	if _, err := c.chooseFrequency(t.Context(), plain); err != nil || plain.chosen ||
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

// TestUnlabelledNodeTurnsCPULabelsOff: while a node that takes guests tells nothing of its CPUs, labels choose
// no node but by the frequency of the TSC.
func TestUnlabelledNodeTurnsCPULabelsOff(t *testing.T) {
	const model = v1.CPUModelLabel + "Haswell"
	silent, away, skipped, arm := nodeWith("silent"), nodeWith("away"), nodeWith("skipped"), nodeWith("arm")
	arm.Labels[corev1.LabelArchStable] = v1.ARM64
	away.Labels[v1.SchedulableLabel] = "false"
	skipped.Annotations = map[string]string{v1.SkipNodeAnnotation: "true"}
	for name, test := range map[string]struct {
		nodes []client.Object
		want  map[string]string
	}{
		"all tell": {[]client.Object{nodeWith("tells", model), away, skipped, arm},
			map[string]string{model: "true", v1.HyperVLabel + "reenlightenment": "true",
				v1.GuestTSCLabel + "2000000000": "true"}},
		"one does not": {[]client.Object{nodeWith("tells", model), silent},
			map[string]string{v1.GuestTSCLabel + "2000000000": "true"}},
		"there are none": {nil, map[string]string{model: "true", v1.HyperVLabel + "reenlightenment": "true",
			v1.GuestTSCLabel + "2000000000": "true"}},
	} {
		c := newCluster(t, "", interceptor.Funcs{}, test.nodes...)
		c.reenlightened(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = &v1.CPU{Model: "Haswell"} })
		vmi := c.get()
		vmi.Status.TopologyHints = &v1.TopologyHints{TSCFrequency: ptr.To[int64](2_000_000_000)}
		config, err := c.podConfig(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, selected(Pod(vmi, config))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestObsoleteModelMoves: a guest whose model has become obsolete can still move.
func TestObsoleteModelMoves(t *testing.T) {
	vmi := load(t, "testdata/minimal")
	vmi.Spec.Domain.CPU = &v1.CPU{Model: "Haswell"}
	v1.Default(vmi)
	migration := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: types.UID("m")}}
	if diff := cmp.Diff(map[string]string{v1.MigrationCPUModelLabel + "Haswell": "true"},
		selected(targetPod(vmi, migration, testConfig))); diff != "" {
		t.Error(diff)
	}
	vmi.Spec.NodeSelector = map[string]string{v1.CPUModelLabel + "Haswell": "true"}
	if diff := cmp.Diff(map[string]string{v1.CPUModelLabel + "Haswell": "true"},
		selected(targetPod(vmi, migration, testConfig))); diff != "" {
		t.Errorf("by the user's own selector: %s", diff)
	}
}

// TestComplaintNamesWhatNoNodeHas: the complaint names what no node has, what every node has that the guest
// forbids, an obsolete model, or else the node that comes nearest.
func TestComplaintNamesWhatNoNodeHas(t *testing.T) {
	const haswell, aes, vmx = v1.CPUModelLabel + "Haswell", v1.CPUFeatureLabel + "aes", v1.CPUFeatureLabel + "vmx"
	const synic, qemu64 = v1.HyperVLabel + "synic", v1.CPUModelLabel + "qemu64"
	nodes := map[string]map[string]string{}
	for _, n := range []*corev1.Node{nodeWith("a", haswell, v1.CPUFeatureLabel+"sse2", v1.MigrationCPUModelLabel+"qemu64"),
		nodeWith("b", aes, v1.CPUFeatureLabel+"sse2")} {
		nodes[n.Name] = n.Labels
	}
	many := []string{synic}
	for i := range 20 {
		many = append(many, v1.CPUFeatureLabel+"f"+strings.Repeat("x", i))
	}
	for name, c := range map[string]struct {
		selector, forbidden []string
		want                string
	}{
		"fits": {[]string{haswell}, []string{aes}, ""},
		"no node": {[]string{haswell, vmx, synic}, nil,
			"no node can give the guest Hyper-V's interface synic (hyperv.node.kubevirt.io/synic), the CPU feature vmx (cpu-feature.node.kubevirt.io/vmx); the nodes' labels say what they can give"},
		"passt": {[]string{haswell, v1.PasstLabel}, nil,
			"no node can give the guest the seccomp profile that passtBinding needs: put config/passt/passt.json of this release on a node as kubeqemu/passt.json in the kubelet's folder seccomp (a kernel with AppArmor, or without user namespaces, denies passt what it needs), or use masquerade (kubeqemu.io/passt); the nodes' labels say what they can give"},
		"many": {many, nil, "and 13 more; the nodes"},
		"obsolete": {[]string{qemu64}, nil,
			"the CPU model qemu64 is obsolete (spec.configuration.obsoleteCPUModels of the KubeVirt object)"},
		"forbidden": {[]string{haswell}, []string{v1.CPUFeatureLabel + "sse2"},
			"every node has, though the guest forbids it, the CPU feature sse2 (cpu-feature.node.kubevirt.io/sse2)"},
		"no single node":                {[]string{haswell, aes}, nil, "no single node fits the guest; node a comes nearest, and does not fit by the CPU feature aes (cpu-feature.node.kubevirt.io/aes)"},
		"no single node, as it forbids": {[]string{aes}, []string{aes}, "the CPU feature aes"},
	} {
		selector := map[string]string{}
		for _, key := range c.selector {
			selector[key] = "true"
		}
		got := unmet(selector, c.forbidden, nodes)
		if exact := name != "many" && name != "no single node, as it forbids"; exact && got != c.want ||
			!strings.Contains(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestComplaintKnowsWhatHyperVBrings: the complaint knows what Hyper-V's features bring with them.
func TestComplaintKnowsWhatHyperVBrings(t *testing.T) {
	c := newCluster(t, "", interceptor.Funcs{}, nodeWith("a", v1.HyperVLabel+"synictimer", v1.HyperVLabel+"vpindex"))
	vmi := c.get()
	vmi.Spec.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{SyNICTimer: &v1.SyNICTimer{}}}
	vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionPodScheduled,
		Status: metav1.ConditionFalse, Reason: v1.ReasonUnschedulable}, c.now())
	if _, err := c.explainScheduling(t.Context(), on(vmi, nil)); err != nil {
		t.Fatal(err)
	}
	if got := vmi.Status.Condition(v1.ConditionPodScheduled).Message; !strings.Contains(got, "Hyper-V's interface synic ") {
		t.Errorf("%q", got)
	}
}
