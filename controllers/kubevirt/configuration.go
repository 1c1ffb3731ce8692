// Package kubevirt reads the cluster's configuration from the KubeVirt object,
// and writes into its status whether the components are up.
package kubevirt

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Configuration returns the cluster's configuration, which is empty without a KubeVirt object.
func Configuration(ctx context.Context, reader client.Reader) (*v1.KubeVirtConfiguration, error) {
	spec, err := Spec(ctx, reader)
	if err != nil {
		return nil, err
	}
	return &spec.Configuration, nil
}

// Spec returns the spec of the KubeVirt object that is in force. It is empty without such an object.
func Spec(ctx context.Context, reader client.Reader) (*v1.KubeVirtSpec, error) {
	var list v1.KubeVirtList
	if err := reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list KubeVirts: %w", err)
	}
	if kv := v1.KubeVirtInForce(list.Items); kv != nil {
		return &kv.Spec, nil
	}
	return &v1.KubeVirtSpec{}, nil
}

// RolledOut says whether every node that is to have a virt-handler has one of the present DaemonSet, which works, and every virt-controller is of
// the present Deployment.
func RolledOut(ctx context.Context, reader client.Reader) (bool, error) {
	set, deployment := &appsv1.DaemonSet{}, &appsv1.Deployment{}
	for name, object := range map[string]client.Object{v1.VirtHandler: set, v1.VirtController: deployment} {
		err := reader.Get(ctx, client.ObjectKey{Namespace: v1.KubeVirtNamespace, Name: name}, object)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("get %s: %w", name, err)
		}
	}
	handlers := handlerComponent(set)
	controllers := deployed(v1.VirtController, deployment)
	return handlers.rolledOut() && handlers.complete() && controllers.rolledOut() && deployment.Status.Replicas <= controllers.wanted, nil
}
