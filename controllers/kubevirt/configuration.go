// Package kubevirt reads the cluster's configuration from the KubeVirt object,
// and writes into its status whether the components are up.
package kubevirt

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Configuration returns the cluster's configuration, which is empty without a KubeVirt object.
func Configuration(ctx context.Context, reader client.Reader) (*v1.KubeVirtConfiguration, error) {
	var list v1.KubeVirtList
	if err := reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list KubeVirts: %w", err)
	}
	return v1.ClusterConfiguration(list.Items), nil
}
