package kubevirt

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Only KubeVirt's operator leaves this label on a cluster, and v1.KubeVirtOperatorFinalizer. A Deployment named virt-operator, or a KubeVirt that a user applied, is no sign of KubeVirt.
const (
	operatorLabel = "app.kubernetes.io/managed-by"
	operatorName  = "virt-operator"
	operatedKind  = "virtualmachines.kubevirt.io"
)

// OperatorIsHere is why it seems that KubeVirt itself runs on the cluster; empty if it does not. Both would make pods of the same VirtualMachineInstances.
func OperatorIsHere(ctx context.Context, c client.Reader) (string, error) {
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	if err := c.Get(ctx, client.ObjectKey{Name: operatedKind}, definition); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("get the definition %s: %w", operatedKind, err)
	}
	if definition.Labels[operatorLabel] == operatorName {
		return fmt.Sprintf("the definition %s is labelled %s=%s", operatedKind, operatorLabel, operatorName), nil
	}
	var all v1.KubeVirtList
	if err := c.List(ctx, &all); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("list KubeVirts: %w", err)
	}
	for i := range all.Items {
		if kv := &all.Items[i]; slices.Contains(kv.Finalizers, v1.KubeVirtOperatorFinalizer) {
			return fmt.Sprintf("the KubeVirt %s/%s has the finalizer %s", kv.Namespace, kv.Name, v1.KubeVirtOperatorFinalizer), nil
		}
	}
	return "", nil
}
