// Package lookup finds VMIs: by the pods of their launchers, and past the cache.
package lookup

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// PodIndex indexes VMIs by the names of their launcher pods.
const PodIndex = "launcherPod"

// IndexByPod returns the keys of a VMI in PodIndex.
func IndexByPod(o client.Object) []string {
	object, ok := o.(*v1.VirtualMachineInstance)
	if !ok {
		return nil
	}
	return object.LauncherPodNames()
}

// VMI returns a VMI, or nil if the API server says that there is none. An answer that is no API server's,
// such as that of a server in between that does not know the path, says nothing.
func VMI(ctx context.Context, reader client.Reader, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	vmi := &v1.VirtualMachineInstance{}
	err := reader.Get(ctx, key, vmi)
	if apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get VMI %s: %w", key, err)
	}
	return vmi, nil
}
