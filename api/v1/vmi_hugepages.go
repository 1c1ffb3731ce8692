package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Hugepages says that huge pages of the node are the guest's memory.
type Hugepages struct {
	// PageSize is the size of the pages: 2Mi or 1Gi. The guest's memory must be a multiple of the size.
	// +optional
	// +kubebuilder:validation:Enum="2Mi";"1Gi"
	PageSize string `json:"pageSize,omitempty"`
}

// hugePageSizes are the sizes of huge pages on amd64, in bytes.
var hugePageSizes = map[string]int64{"2Mi": 2 << 20, "1Gi": 1 << 30}

// Bytes returns the size of a page, and 0 without huge pages or for a size that does not exist.
func (h *Hugepages) Bytes() int64 {
	if h == nil {
		return 0
	}
	return hugePageSizes[h.PageSize]
}

// Resource returns Kubernetes' name of the pages, such as hugepages-2Mi.
func (h *Hugepages) Resource() corev1.ResourceName {
	return corev1.ResourceName(corev1.ResourceHugePagesPrefix + h.PageSize)
}

// defaultMemory makes the guest's memory one huge page, as KubeVirt does, where the VMI says nothing else about memory.
func (h *Hugepages) defaultMemory() *resource.Quantity {
	if h.Bytes() == 0 {
		return nil
	}
	return resource.NewQuantity(h.Bytes(), resource.BinarySI)
}
