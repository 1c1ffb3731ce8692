package validation

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// reservedMetadata is a template's metadata, with keys that go no further.
var reservedMetadata = v1.TemplateMeta{Labels: map[string]string{"a": "b", v1.MigrationJobLabel: "x",
	"kubevirt.io/nodeName": "n", v1.AppLabel: "y"},
	Annotations: map[string]string{"c": "d", "cdi.k8s.io/gpu": "vendor.com/gpu=0",
		"io.kubernetes.cri-o.Devices": "/dev/sda", "kubectl.kubernetes.io/x": "y"}}

// TestReservedKeysAreWarnedOf: each is named once, in order; what kubectl adds by itself is not.
func TestReservedKeysAreWarnedOf(t *testing.T) {
	path := field.NewPath("metadata")
	got := append(LabelWarnings(reservedMetadata.Labels, path.Child("labels")),
		AnnotationWarnings(reservedMetadata.Annotations, path.Child("annotations"))...)
	want := []string{
		"metadata.labels[kubevirt.io/migrationJobUID] is left out: only Kubeqemu's components write it",
		"metadata.labels[kubevirt.io/nodeName] is left out: only Kubeqemu's components write it",
		"metadata.annotations[cdi.k8s.io/gpu] does not reach the launcher pod: the container runtime (devices) would obey it",
		"metadata.annotations[io.kubernetes.cri-o.Devices] does not reach the launcher pod: CRI-O would obey it",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestSelectorByAReservedLabelMatchesNothing: a ReplicaSet with it would make instances without end, for they do not
// get the label.
func TestSelectorByAReservedLabelMatchesNothing(t *testing.T) {
	rs := &v1.VirtualMachineInstanceReplicaSet{}
	rs.Spec.Template.ObjectMeta = reservedMetadata
	for key, want := range map[string]bool{"a": true, v1.MigrationJobLabel: false} {
		rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{key: reservedMetadata.Labels[key]}}
		if errs := validateSelector(&rs.Spec, field.NewPath("spec")); (len(errs) == 0) != want {
			t.Errorf("%s: %v", key, errs)
		}
	}
}
