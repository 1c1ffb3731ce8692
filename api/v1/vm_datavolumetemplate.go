package v1

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
)

// DataVolumeTemplate is a DataVolume (cdi.kubevirt.io/v1beta1) that virt-controller makes for a
// VirtualMachine, and that is deleted with it. A later change of the template does not change a
// DataVolume that exists.
type DataVolumeTemplate struct {
	// APIVersion has no effect.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	APIVersion string `json:"apiVersion,omitempty"`
	// Kind has no effect.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind,omitempty"`
	// ObjectMeta of the DataVolume: name, labels and annotations.
	ObjectMeta DataVolumeTemplateMeta `json:"metadata"`
	// Spec is CDI's DataVolumeSpec: what the disk is filled from (source or sourceRef), and its
	// claim (storage or pvc). CDI validates the rest.
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec runtime.RawExtension `json:"spec"`
	// Status has no effect.
	// +optional
	// +nullable
	Status *DataVolumeTemplateStatus `json:"status,omitempty"`
}

// DataVolumeTemplateStatus has no effect.
//
// +kubebuilder:pruning:PreserveUnknownFields
type DataVolumeTemplateStatus struct{}

// DataVolumeTemplateMeta is the part of a DataVolumeTemplate's metadata that has an effect.
// Other metadata is kept: tools write creationTimestamp: null.
//
// +kubebuilder:pruning:PreserveUnknownFields
type DataVolumeTemplateMeta struct {
	// Name of the DataVolume, of its claim, and of a dataVolume or persistentVolumeClaim among
	// the template's volumes.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Namespace must be the VirtualMachine's, if it is set.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// GenerateName is refused: a volume refers to the name.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	GenerateName string `json:"generateName,omitempty"`
	// Labels of the DataVolume.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of the DataVolume.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Bounds of a VirtualMachine's DataVolumeTemplates: their number, the bytes of one, and of all.
const (
	MaxDataVolumeTemplates      = 32
	MaxDataVolumeTemplateBytes  = 32 << 10
	MaxDataVolumeTemplatesBytes = 128 << 10
)

// ImmediateDataVolumeCreationAnnotation of a VirtualMachine, set to "false", puts off its
// DataVolumes until its first start. It is KubeVirt's.
const ImmediateDataVolumeCreationAnnotation = "kubevirt.io/immediate-data-volume-creation"

// DataVolumeTemplate returns the VM's template of a DataVolume, or nil.
func (vm *VirtualMachine) DataVolumeTemplate(name string) *DataVolumeTemplate {
	for i := range vm.Spec.DataVolumeTemplates {
		if t := &vm.Spec.DataVolumeTemplates[i]; t.ObjectMeta.Name == name {
			return t
		}
	}
	return nil
}

// Fields returns the template's spec, decoded. Fields that are null are left out.
func (t *DataVolumeTemplate) Fields() (map[string]any, error) {
	var fields map[string]any
	if err := json.Unmarshal(t.Spec.Raw, &fields); err != nil {
		return nil, fmt.Errorf("decode spec: %w", err)
	}
	maps.DeleteFunc(fields, func(_ string, value any) bool { return value == nil })
	return fields, nil
}
