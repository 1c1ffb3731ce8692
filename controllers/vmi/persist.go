package vmi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/patch"
)

// errChanged means that the VMI has changed since it was read from the cache.
var errChanged = errors.New("the object has been modified")

// persist writes only what was added to a VMI. The CRD may be newer than this program, for
// example during an upgrade, and fields that this program does not know must not be lost. A
// merge patch would lose them, for it replaces whole lists.
func (r *Reconciler) persist(ctx context.Context, vmi, defaulted *v1.VirtualMachineInstance) error {
	there := &unstructured.Unstructured{}
	there.SetGroupVersionKind(v1.VirtualMachineInstanceGroupVersionKind)
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(vmi), there); err != nil {
		return err
	}
	if there.GetUID() != vmi.UID || there.GetResourceVersion() != vmi.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Group: v1.GroupVersion.Group, Resource: "virtualmachineinstances"},
			vmi.Name, errChanged)
	}
	var texts [3][]byte
	for i, object := range []any{there.Object, vmi, defaulted} {
		var err error
		if texts[i], err = json.Marshal(object); err != nil {
			return fmt.Errorf("write object: %w", err)
		}
	}
	operations, err := patch.Operations(texts[0], texts[1], texts[2])
	if err != nil {
		return err
	}
	// The API server refuses the patch if the object has changed since.
	operations = append(operations, jsonpatch.NewOperation("replace", "/metadata/resourceVersion", vmi.ResourceVersion))
	text, err := json.Marshal(operations)
	if err != nil {
		return fmt.Errorf("write patch: %w", err)
	}
	return r.Client.Patch(ctx, vmi.DeepCopy(), client.RawPatch(types.JSONPatchType, text))
}
