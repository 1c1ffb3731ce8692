package rights

import (
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	sigsyaml "sigs.k8s.io/yaml"
)

// TestNetworkPolicy: the sample is about every component that has a pod's address,
// and about no other pod; it admits nodes to every port that is served, and
// Prometheus to metrics alone; and it keeps nothing from being sent.
func TestNetworkPolicy(t *testing.T) {
	text, err := os.ReadFile("../../config/samples/kubevirt-networkpolicy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var policy networkingv1.NetworkPolicy
	if err := sigsyaml.UnmarshalStrict(text, &policy); err != nil {
		t.Fatal(err)
	}
	if policy.Namespace != "kubevirt" || !slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) || len(policy.Spec.Ingress) != 2 {
		t.Fatalf("%+v", policy)
	}
	ports := func(rule networkingv1.NetworkPolicyIngressRule) (all []int32) {
		for _, p := range rule.Ports {
			all = append(all, p.Port.IntVal)
		}
		return all
	}
	selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
	if err != nil {
		t.Fatal(err)
	}
	nodes, prometheus := policy.Spec.Ingress[0], policy.Spec.Ingress[1]
	if len(nodes.From) != 1 || nodes.From[0].IPBlock == nil || len(prometheus.From) != 1 || prometheus.From[0].PodSelector == nil || prometheus.From[0].NamespaceSelector == nil {
		t.Errorf("it admits %+v and %+v", nodes.From, prometheus.From)
	}
	m := shipped(t)
	var metrics []int32
	for _, d := range m.Deployments {
		if !selector.Matches(labels.Set(d.Spec.Template.Labels)) {
			t.Errorf("it is not about %s", d.Name)
		}
		for _, c := range d.Spec.Template.Spec.Containers {
			for _, p := range c.Ports {
				metrics = append(metrics, p.ContainerPort)
			}
			for _, probe := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe} {
				if probe != nil && probe.HTTPGet != nil && !slices.Contains(ports(nodes), probe.HTTPGet.Port.IntVal) {
					t.Errorf("the kubelet does not reach port %s of %s", probe.HTTPGet.Port.String(), d.Name)
				}
			}
		}
	}
	for _, port := range metrics {
		if !slices.Contains(ports(nodes), port) || !slices.Equal(ports(prometheus), []int32{port}) {
			t.Errorf("port %d: nodes reach %v, and Prometheus %v", port, ports(nodes), ports(prometheus))
		}
	}
	if len(metrics) == 0 || selector.Matches(labels.Set{"kubevirt.io": "virt-launcher"}) {
		t.Error("it is about launchers, or about nothing")
	}
}
