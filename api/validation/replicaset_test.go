package validation

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidateReplicaSet(t *testing.T) {
	type spec = v1.VirtualMachineInstanceReplicaSetSpec
	const template = "spec.template.spec.domain."
	tests := []struct {
		name   string
		mutate func(s *spec)
		want   []string // exactly the fields that are wrong
	}{
		{"valid", func(s *spec) {}, nil},
		{"no number", func(s *spec) { s.Replicas = nil }, nil},
		{"none", func(s *spec) { s.Replicas = ptr.To[int32](0) }, nil},
		{"negative", func(s *spec) { s.Replicas = ptr.To[int32](-1) }, []string{"spec.replicas"}},
		{"as many as can be", func(s *spec) { s.Replicas = ptr.To[int32](v1.MaxReplicas) }, nil},
		{"too many", func(s *spec) { s.Replicas = ptr.To[int32](v1.MaxReplicas + 1) }, []string{"spec.replicas"}},
		{"no selector", func(s *spec) { s.Selector = nil }, []string{"spec.selector"}},
		{"selector of everything", func(s *spec) { s.Selector = &metav1.LabelSelector{} }, []string{"spec.selector"}},
		{"expression", func(s *spec) {
			s.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "In",
				Values: []string{"web", "db"}}}}
		}, nil},
		{"operator that is none", func(s *spec) {
			s.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like",
				Values: []string{"w*"}}}
		}, []string{"spec.selector.matchExpressions[0].operator", "spec.selector.matchExpressions[0].values[0]"}},
		{"other labels", func(s *spec) { s.Template.ObjectMeta.Labels["app"] = "db" },
			[]string{"spec.template.metadata.labels"}},
		{"no labels", func(s *spec) { s.Template.ObjectMeta.Labels = nil }, []string{"spec.template.metadata.labels"}},
		{"label that is none", func(s *spec) { s.Template.ObjectMeta.Labels["b"] = "not valid" },
			[]string{"spec.template.metadata.labels"}},
		{"a label that virt-controller writes, which is left out",
			func(s *spec) { s.Template.ObjectMeta.Labels[v1.NodeNameLabel] = "node1" }, nil},
		{"selected by a label that virt-controller writes", func(s *spec) {
			s.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: v1.OutdatedLauncherLabel,
				Operator: "DoesNotExist"}}
		}, []string{"spec.selector.matchExpressions[0].key"}},
		{"two errors of the template", func(s *spec) {
			s.Template.Spec.Domain.Resources = v1.ResourceRequirements{}
			s.Template.Spec.Volumes = s.Template.Spec.Volumes[:2]
		}, []string{template + "devices.disks[2].name", template + "memory.guest"}},
		{"not supported", func(s *spec) { s.Template.Spec.Domain.Devices.DownwardMetrics = &v1.Unsupported{} },
			[]string{template + "devices.downwardMetrics"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rs := &v1.VirtualMachineInstanceReplicaSet{Spec: spec{
				Replicas: ptr.To[int32](3),
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
				Template: v1.VirtualMachineInstanceTemplateSpec{ObjectMeta: v1.TemplateMeta{Labels: map[string]string{"app": "web",
					"b": "c"}}},
			}}
			rs.Spec.Template.Spec = parse(t, valid).Spec
			tt.mutate(&rs.Spec)
			before := rs.DeepCopy()
			var got []string
			for _, e := range ValidateVirtualMachineInstanceReplicaSet(rs) {
				got = append(got, e.Field)
			}
			slices.Sort(got)
			if !slices.Equal(got, tt.want) {
				t.Errorf("wrong are %q, want %q", got, tt.want)
			}
			if before.Spec.Template.Spec.Domain.CPU != nil || rs.Spec.Template.Spec.Domain.CPU != nil {
				t.Error("the template was defaulted")
			}
		})
	}
}
