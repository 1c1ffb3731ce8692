package migration

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// This file has a VMI's spec name the claims that users named, once the guest has its disks there.

// operation is an operation of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// renames returns the operations by which the spec of a VMI names the claims to which a migration has copied disks, and
// which users named. A JSON patch leaves alone what this program does not know of a volume. It is pure.
func renames(vmi *v1.VirtualMachineInstance) []operation {
	var out []operation
	for _, m := range vmi.UserClaims() {
		i := slices.IndexFunc(vmi.Spec.Volumes, func(v v1.Volume) bool { return v.Name == m.VolumeName })
		if has := vmi.Status.ClaimInfo(m.VolumeName); i < 0 || has == nil || has.ClaimName != m.To() {
			continue
		}
		v, at := &vmi.Spec.Volumes[i], fmt.Sprintf("/spec/volumes/%d", i)
		switch claim := m.To(); {
		case v.Claim() == nil || v.Claim().Name == claim:
			continue
		case v.PersistentVolumeClaim != nil:
			out = append(out, operation{"replace", at + "/persistentVolumeClaim/claimName", claim})
		case v.DataVolume != nil:
			out = append(out, operation{"remove", at + "/dataVolume", nil},
				operation{"add", at + "/persistentVolumeClaim", map[string]string{"claimName": claim}})
		default:
			continue
		}
		out = append(out, operation{"test", at + "/name", v.Name})
	}
	return out
}

// nameClaims writes the VMI's spec, if the guest has disks on claims that users named. It reports whether it has.
func (r *Reconciler) nameClaims(ctx context.Context, w *work) (bool, error) {
	settled := w.vmi.DeepCopy()
	settled.Status.Settle()
	operations := renames(settled)
	if len(operations) == 0 {
		return false, nil
	}
	// The API server refuses the patch if the VMI has changed since.
	operations = append(operations, operation{"replace", "/metadata/resourceVersion", w.vmi.ResourceVersion})
	text, err := json.Marshal(operations)
	if err != nil {
		return false, fmt.Errorf("write patch: %w", err)
	}
	named := w.vmi.DeepCopy()
	err = r.Client.Patch(ctx, named, client.RawPatch(types.JSONPatchType, text))
	if err != nil && !apierrors.IsConflict(err) {
		return false, fmt.Errorf("write which claims the volumes of VMI %s are on: %w", w.vmi.Name, err)
	}
	if err == nil {
		r.vmis.Note(w.vmi, named)
	}
	return true, nil
}
