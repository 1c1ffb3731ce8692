package v1

// VirtualMachineInstanceTemplateSpec is what VirtualMachineInstances are made from.
type VirtualMachineInstanceTemplateSpec struct {
	// ObjectMeta: every VirtualMachineInstance gets the labels and annotations. Other metadata
	// has no effect, unless the template's own description says so.
	// +optional
	// +nullable
	ObjectMeta TemplateMeta `json:"metadata,omitempty"`
	// Spec of every VirtualMachineInstance.
	Spec VirtualMachineInstanceSpec `json:"spec"`
}

// TemplateMeta is the part of a template's metadata that has an effect. Other metadata is kept:
// tools write creationTimestamp: null. TemplateMeta is not metav1.ObjectMeta, whose timestamps
// are of any type in the schema: one that is no timestamp would keep every client from decoding
// the list.
//
// +kubebuilder:pruning:PreserveUnknownFields
type TemplateMeta struct {
	// Name begins the names of a ReplicaSet's VirtualMachineInstances.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// GenerateName is the same, if there is no name.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	GenerateName string `json:"generateName,omitempty"`
	// Labels of every VirtualMachineInstance, and of its launcher pod.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of every VirtualMachineInstance, and of its launcher pod.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}
