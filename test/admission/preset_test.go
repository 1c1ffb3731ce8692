package admission

import (
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// presets: a new VMI of a namespace with presets stays as it was applied, for virt-controller to
// fill in. A preset is known to the VMI that is created right after it.
func (s *testServer) presets(t *testing.T) {
	namespace := s.plane.Space(t).Namespace
	make := func(name string, edit func(*v1.VirtualMachineInstance)) (*v1.VirtualMachineInstance, error) {
		vmi := tiny(name)
		vmi.Namespace = namespace
		edit(vmi)
		return vmi, s.as("somebody").Create(t.Context(), vmi)
	}
	filled := func(vmi *v1.VirtualMachineInstance) bool {
		return vmi.Spec.Domain.CPU != nil && vmi.Spec.Domain.Machine != nil && slices.Contains(vmi.Finalizers, v1.VMIFinalizer)
	}
	plain := func(*v1.VirtualMachineInstance) {}
	noMemory := func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Memory = nil }
	if vmi, err := make("before", plain); err != nil || !filled(vmi) {
		t.Errorf("without presets: %v, %+v", err, vmi.Spec.Domain)
	}
	if _, err := make("refused", noMemory); !apierrors.IsInvalid(err) || !slices.Contains(causes(err), "spec.domain.memory.guest") {
		t.Errorf("without memory: %v", err)
	}
	preset := &v1.VirtualMachineInstancePreset{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "small"},
		Spec: v1.VirtualMachineInstancePresetSpec{Domain: &v1.DomainSpec{CPU: &v1.CPU{Cores: 20, Sockets: 20}}}}
	if err := s.as("somebody").Create(t.Context(), preset.DeepCopy()); !apierrors.IsInvalid(err) || !slices.Contains(causes(err), "spec.domain.cpu") ||
		!strings.Contains(err.Error(), `VirtualMachineInstancePreset.kubevirt.io "small" is invalid`) {
		t.Errorf("an invalid preset: %v", err)
	}
	preset.Spec.Domain.CPU.Sockets = 1
	for n := range 5 {
		if err := s.as("somebody").Create(t.Context(), preset); err != nil {
			t.Fatal(err)
		}
		vmi, err := make("with-"+string(rune('a'+n)), noMemory)
		if err != nil || vmi.Spec.Domain.CPU != nil || vmi.Spec.Domain.Machine != nil || len(vmi.Finalizers) > 0 {
			t.Errorf("with a preset: %v, %+v, finalizers %v", err, vmi.Spec.Domain, vmi.Finalizers)
		}
		if err := s.admin.Delete(t.Context(), preset); err != nil {
			t.Fatal(err)
		}
		preset.ResourceVersion = ""
		if vmi, err := make("without-"+string(rune('a'+n)), plain); err != nil || !filled(vmi) {
			t.Errorf("without it again: %v, %+v", err, vmi.Spec.Domain)
		}
	}
	if err := s.admin.Create(t.Context(), preset); err != nil {
		t.Fatal(err)
	}
	excluded := func(vmi *v1.VirtualMachineInstance) {
		vmi.Annotations = map[string]string{v1.ExcludePresetsAnnotation: "true"}
	}
	if vmi, err := make("excluded", excluded); err != nil || !filled(vmi) {
		t.Errorf("excluded: %v, %+v", err, vmi.Spec.Domain)
	}
	elsewhere := tiny("elsewhere-preset")
	if err := s.as("somebody").Create(t.Context(), elsewhere); err != nil || !filled(elsewhere) {
		t.Errorf("in another namespace: %v, %+v", err, elsewhere.Spec.Domain)
	}
	// What else is wrong is refused at once.
	if _, err := make("wrong", func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "none", Disk: &v1.DiskTarget{}}}
	}); !slices.Contains(causes(err), "spec.domain.devices.disks[0].name") {
		t.Errorf("a wrong VMI: %v", err)
	}
	preset.Spec.Domain.CPU.Cores = 1000
	if err := s.as("somebody").Update(t.Context(), preset); !apierrors.IsInvalid(err) {
		t.Errorf("a preset that becomes invalid: %v", err)
	}
}
