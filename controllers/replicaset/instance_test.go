package replicaset

import (
	"maps"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestReservedKeysStayInTheTemplate: the VMIs of a ReplicaSet do not get them.
func TestReservedKeysStayInTheTemplate(t *testing.T) {
	rs := &v1.VirtualMachineInstanceReplicaSet{}
	rs.Spec.Template.ObjectMeta = v1.TemplateMeta{Labels: map[string]string{"a": "b", v1.MigrationJobLabel: "x"}, Annotations: map[string]string{"c": "d", "cdi.k8s.io/gpu": "x"}}
	vmi := instance(rs, "x")
	if !maps.Equal(vmi.Labels, map[string]string{"a": "b"}) || !maps.Equal(vmi.Annotations, map[string]string{"c": "d"}) || len(rs.Spec.Template.ObjectMeta.Labels) != 2 {
		t.Errorf("%v %v", vmi.Labels, vmi.Annotations)
	}
}
