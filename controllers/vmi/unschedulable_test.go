package vmi

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

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
