// Package kubevirt reads the cluster's configuration from the KubeVirt object,
// and writes into its status whether the components are up.
package kubevirt

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Namespace of the components and of the KubeVirt object.
const Namespace = v1.KubeVirtNamespace

// Configuration returns the cluster's configuration; without a KubeVirt
// object, an empty one.
func Configuration(ctx context.Context, reader client.Reader) (*v1.KubeVirtConfiguration, error) {
	var list v1.KubeVirtList
	if err := reader.List(ctx, &list, client.InNamespace(Namespace)); err != nil {
		return nil, fmt.Errorf("list KubeVirts: %w", err)
	}
	return ConfigurationOf(list.Items), nil
}

// ConfigurationOf returns the configuration that holds where these KubeVirts
// are all of the namespace.
func ConfigurationOf(all []v1.KubeVirt) *v1.KubeVirtConfiguration {
	if oldest := oldest(all); oldest != nil {
		return &oldest.Spec.Configuration
	}
	return &v1.KubeVirtConfiguration{}
}

// oldest is the one that counts: a second one changes nothing. It is nil where
// there is none.
func oldest(all []v1.KubeVirt) *v1.KubeVirt {
	if len(all) == 0 {
		return nil
	}
	first := slices.MinFunc(all, func(a, b v1.KubeVirt) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return &first
}
