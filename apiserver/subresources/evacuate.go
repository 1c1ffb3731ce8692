package subresources

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// cancelEvacuation takes back that a VMI's guest is asked to leave its node.
func (s *Server) cancelEvacuation(w http.ResponseWriter, c *call) error {
	return s.endEvacuation(w, c, func(ctx context.Context) (*v1.VirtualMachineInstance, error) {
		return s.cluster.instance(ctx, c.namespace, c.name)
	})
}

// cancelEvacuationOfVM takes back that a VM's guest is asked to leave its node.
func (s *Server) cancelEvacuationOfVM(w http.ResponseWriter, c *call) error {
	return s.endEvacuation(w, c, func(ctx context.Context) (*v1.VirtualMachineInstance, error) {
		vm, err := s.cluster.machine(ctx, c.namespace, c.name)
		if err != nil {
			return nil, err
		}
		vmi, err := s.cluster.instance(ctx, c.namespace, c.name)
		if err == nil && !controls(vm, vmi) {
			return nil, apierrors.NewNotFound(vmiResource, c.name)
		}
		return vmi, err
	})
}

// endEvacuation cancels the evacuation of the VMI that find returns. It starts anew if the VMI changed
// meanwhile.
func (s *Server) endEvacuation(w http.ResponseWriter, c *call, find func(context.Context) (*v1.VirtualMachineInstance, error)) error {
	o, err := options[v1.EvacuateCancelOptions](s, w, c)
	if err != nil {
		return err
	}
	if _, err := dry(o.DryRun); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		vmi, err := find(c.Context())
		if err != nil {
			return err
		}
		node := vmi.Status.EvacuationNodeName
		err = s.Evacuations.Cancel(c.Context(), vmi, o.EvacuationNodeName, o.DryRun)
		if err == nil {
			w.WriteHeader(http.StatusOK)
			return nil
		}
		refused := o.EvacuationNodeName != "" && o.EvacuationNodeName != node
		if refused || !apierrors.IsConflict(err) || attempt == attempts {
			return err
		}
	}
}
