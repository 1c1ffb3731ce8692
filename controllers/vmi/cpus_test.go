package vmi

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// selected are the labels of CPUs by which the pod of a VMI chooses its node.
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
		"features": {features(v1.CPUFeature{Name: "lahf_lm"}, v1.CPUFeature{Name: "aes", Policy: v1.FeatureRequire}, v1.CPUFeature{Name: "avx", Policy: v1.FeatureOptional},
			v1.CPUFeature{Name: "vmx", Policy: v1.FeatureForce}, v1.CPUFeature{Name: "sse2", Policy: v1.FeatureDisable}, v1.CPUFeature{Name: "no-such"}),
			true, []string{"cpu-feature.node.kubevirt.io/aes", "cpu-feature.node.kubevirt.io/lahf-lm"}},
		"hyperv": {hyperv(&v1.FeatureHyperv{SyNICTimer: &v1.SyNICTimer{}, Relaxed: on, Spinlocks: &v1.FeatureSpinlocks{}, IPI: &v1.FeatureState{Enabled: ptr.To(false)}}), false,
			[]string{"hyperv.node.kubevirt.io/synic", "hyperv.node.kubevirt.io/synictimer", "hyperv.node.kubevirt.io/vpindex"}},
		"hyperv, perhaps emulated": {hyperv(&v1.FeatureHyperv{SyNICTimer: &v1.SyNICTimer{}}), true, nil},
		"evmcs":                    {hyperv(&v1.FeatureHyperv{EVMCS: on}), false, []string{"cpu-feature.node.kubevirt.io/vmx"}},
		"evmcs, perhaps emulated":  {hyperv(&v1.FeatureHyperv{EVMCS: on}), true, nil},
		"a TSC that keeps its frequency": {func(vmi *v1.VirtualMachineInstance) {
			hyperv(&v1.FeatureHyperv{Reenlightenment: on})(vmi)
			vmi.Status.TopologyHints = &v1.TopologyHints{TSCFrequency: ptr.To[int64](2_000_000_000)}
		}, false, []string{"hyperv.node.kubevirt.io/reenlightenment", "scheduling.node.kubevirt.io/tsc-frequency-2000000000"}},
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

// TestForbiddenFeature: each way to a node forbids the feature, and the user's own terms stay.
func TestForbiddenFeature(t *testing.T) {
	vmi := load(t, "testdata/minimal")
	v1.Default(vmi)
	vmi.Spec.Domain.CPU.Features = []v1.CPUFeature{{Name: "vmx", Policy: v1.FeatureForbid}}
	off := corev1.NodeSelectorRequirement{Key: "cpu-feature.node.kubevirt.io/vmx", Operator: corev1.NodeSelectorOpDoesNotExist}
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

// TestTargetCPU: a guest with its node's own CPU goes only to nodes that can give it this CPU; also from its second node on.
func TestTargetCPU(t *testing.T) {
	vmi := load(t, "testdata/minimal")
	v1.Default(vmi)
	labels := map[string]string{"host-model-cpu.node.kubevirt.io/Haswell": "true", "host-model-required-features.node.kubevirt.io/adx": "true",
		"host-model-required-features.node.kubevirt.io/vmx": "true", "cpu-vendor.node.kubevirt.io/Intel": "true", "cpu-model.node.kubevirt.io/Penryn": "true"}
	vmi.Spec.Domain.CPU.Features = []v1.CPUFeature{{Name: "vmx", Policy: v1.FeatureDisable}}
	want := map[string]string{"cpu-model-migration.node.kubevirt.io/Haswell": "true", "cpu-feature.node.kubevirt.io/adx": "true", "cpu-vendor.node.kubevirt.io/Intel": "true"}
	first := targetCPU(vmi, &corev1.Pod{}, labels)
	if diff := cmp.Diff(want, first); diff != "" {
		t.Error(diff)
	}
	config := testConfig
	config.TargetCPU = first
	second := targetPod(vmi, &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: types.UID("m")}}, config)
	if diff := cmp.Diff(want, selected(second)); diff != "" {
		t.Error(diff)
	}
	newer := map[string]string{"host-model-cpu.node.kubevirt.io/Broadwell": "true", "host-model-required-features.node.kubevirt.io/avx512f": "true"}
	if diff := cmp.Diff(want, targetCPU(vmi, second, newer)); diff != "" {
		t.Errorf("from the second node: %s", diff)
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

// TestHint: a guest that needs a frequency gets the lowest of the nodes that take guests, and keeps it.
func TestHint(t *testing.T) {
	gone := nodeWith("gone", v1.TSCFrequencyLabel+"=1000000000")
	gone.Labels[v1.SchedulableLabel] = "false"
	c := newCluster(t, "", interceptor.Funcs{}, gone, nodeWith("fast", v1.TSCFrequencyLabel+"=3000000000"), nodeWith("slow", v1.TSCFrequencyLabel+"=2000000000"), nodeWith("emulates"))
	vmi := c.get()
	vmi.Spec.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{Reenlightenment: &v1.FeatureState{}}}
	if reason, _ := vmi.NotMigratable(); reason != v1.ReasonTSCNotMigratable {
		t.Errorf("without a frequency: %q", reason)
	}
	for range 2 {
		if err := c.hint(t.Context(), vmi); err != nil {
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
	plain := c.get()
	if err := c.hint(t.Context(), plain); err != nil || plain.Status.TopologyHints != nil {
		t.Errorf("a guest that needs none: %+v, %v", plain.Status.TopologyHints, err)
	}
}

// TestUnmet: the complaint names what no node has, and nothing that some node has.
func TestUnmet(t *testing.T) {
	nodes := map[string]map[string]string{"a": {"cpu-model.node.kubevirt.io/Haswell": "true"}, "b": {"cpu-feature.node.kubevirt.io/aes": "true"}}
	selector := map[string]string{"cpu-model.node.kubevirt.io/Haswell": "true", "cpu-feature.node.kubevirt.io/aes": "true"}
	if got := unmet(selector, nodes); got != "" {
		t.Errorf("each is on a node: %s", got)
	}
	selector["cpu-feature.node.kubevirt.io/vmx"], selector["hyperv.node.kubevirt.io/synic"] = "true", "true"
	want := "no node can give the guest Hyper-V's interface synic (hyperv.node.kubevirt.io/synic), the CPU feature vmx (cpu-feature.node.kubevirt.io/vmx); the nodes' labels say what they can give"
	if got := unmet(selector, nodes); got != want {
		t.Errorf("%s", got)
	}
	for _, name := range slices.Repeat([]string{"a"}, 20) {
		selector["cpu-feature.node.kubevirt.io/"+strings.Repeat(name, len(selector))] = "true"
	}
	if got := unmet(selector, nodes); !strings.Contains(got, "and 14 more") {
		t.Errorf("%s", got)
	}
}
