package validation

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestAnnotationWithoutEffectIsWarnedOf(t *testing.T) {
	path := field.NewPath("metadata", "annotations")
	got := AnnotationWarnings(map[string]string{"kubevirt.io/libvirt-log-filters": "1:qemu", "example.com/other": "kept"},
		path)
	if len(got) != 1 || !strings.HasPrefix(got[0],
		"metadata.annotations[kubevirt.io/libvirt-log-filters] has no effect: ") {
		t.Errorf("%q", got)
	}
	if got := AnnotationWarnings(map[string]string{v1.NoFreePageReportingAnnotation: "true"}, path); got != nil {
		t.Errorf("%q, of an annotation that has an effect", got)
	}
}

func TestValidateAnnotations(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		"hooks.kubevirt.io/hookSidecars": `[{"image": "registry.example/hook:v1"}]`,
		v1.KeepLauncherAnnotation:        "true",
		"example.com/other":              "kept",
	}}}
	v1.Default(vmi)
	var refused []string
	for _, err := range ValidateVirtualMachineInstance(vmi) {
		if err.Type == field.ErrorTypeForbidden {
			refused = append(refused, err.Field)
			if !strings.Contains(err.Detail, "domain.firmware.serial") {
				t.Errorf("%q names no field that does what hooks do", err.Detail)
			}
		}
	}
	if want := "metadata.annotations[hooks.kubevirt.io/hookSidecars]"; len(refused) != 1 || refused[0] != want {
		t.Errorf("refused %q, want %s alone", refused, want)
	}
}
