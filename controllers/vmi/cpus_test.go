package vmi

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
