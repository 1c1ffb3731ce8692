package filler

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// verdict says whether DataVolumes are this controller's to fill, and why.
type verdict struct {
	open            bool
	reason, message string
}

// judge decides by the DataVolumes' CustomResourceDefinition, or nil if there is none, and the names
// of CDI objects. It is pure.
func judge(definition *metav1.PartialObjectMetadata, installations []string) verdict {
	switch {
	case len(installations) > 0:
		return verdict{false, v1.ReasonCDIInstalled, fmt.Sprintf("CDI is installed (the CDI object %s), and fills DataVolumes", installations[0])}
	case definition == nil:
		return verdict{false, v1.ReasonDefinitionMissing, fmt.Sprintf("the cluster has no DataVolumes: the CustomResourceDefinition %s of config/datavolumes is missing", cdi.DataVolumeDefinition)}
	case definition.DeletionTimestamp != nil:
		return verdict{false, v1.ReasonDefinitionMissing, fmt.Sprintf("the CustomResourceDefinition %s is being deleted", cdi.DataVolumeDefinition)}
	case definition.Labels[cdi.ManagedByLabel] != cdi.ManagedByKubeqemu:
		return verdict{false, v1.ReasonDefinitionForeign, fmt.Sprintf("the CustomResourceDefinition %s is another installation's (%s is not %s): apply config/datavolumes once CDI is gone",
			cdi.DataVolumeDefinition, cdi.ManagedByLabel, cdi.ManagedByKubeqemu)}
	}
	return verdict{true, v1.ReasonFillsDataVolumes, "virt-controller fills DataVolumes."}
}

// look reads what the verdict depends on.
func look(ctx context.Context, live client.Reader) (verdict, error) {
	definition, err := definitionOf(ctx, live, cdi.DataVolumeDefinition)
	if err != nil {
		return verdict{}, err
	}
	kind, err := definitionOf(ctx, live, cdi.CDIDefinition)
	if err != nil || kind == nil {
		return judge(definition, nil), err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(cdi.GroupVersion.WithKind("CDIList"))
	err = live.List(ctx, list, client.Limit(1))
	if err != nil && !apierrors.IsNotFound(err) {
		return verdict{}, fmt.Errorf("look for CDI: %w", err)
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return judge(definition, names), nil
}

// definitionOf returns the metadata of a CustomResourceDefinition, or nil: a whole definition is large.
func definitionOf(ctx context.Context, live client.Reader, name string) (*metav1.PartialObjectMetadata, error) {
	d := &metav1.PartialObjectMetadata{}
	d.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	err := live.Get(ctx, client.ObjectKey{Name: name}, d)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get CustomResourceDefinition %s: %w", name, err)
	}
	return d, nil
}
