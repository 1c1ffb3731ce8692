// crds prints, as one JSON List, the CRDs of kinds that KubeVirt's suite cleans up after each spec and that Kubeqemu lacks.
// It takes them from KubeVirt's module when it runs.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"

	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
)

func main() {
	if err := write(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// write writes the List.
func write(w io.Writer) error {
	list := map[string]any{"apiVersion": "v1", "kind": "List"}
	var items []any
	for _, newCRD := range []func() (*extv1.CustomResourceDefinition, error){
		components.NewVirtualMachineSnapshotCrd, components.NewVirtualMachineSnapshotContentCrd, components.NewVirtualMachineRestoreCrd,
		components.NewVirtualMachineExportCrd, components.NewVirtualMachineCloneCrd,
	} {
		crd, err := newCRD()
		if err != nil {
			return fmt.Errorf("make a CRD: %w", err)
		}
		items = append(items, map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": crd.Name, "labels": crd.Labels},
			"spec":     crd.Spec,
		})
	}
	list["items"] = items
	return json.NewEncoder(w).Encode(list)
}
