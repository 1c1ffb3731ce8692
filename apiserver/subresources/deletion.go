package subresources

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/admission"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
)

// ShortenGrace gives the guest of what is deleted the grace period of the deletion, if that is shorter than the guest's own. What
// has no running guest needs none.
func (s *Server) ShortenGrace(ctx context.Context, deleted admission.Deletion) error {
	vmi, err := s.cluster.instance(ctx, deleted.Object.Namespace, deleted.Object.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if deleted.Kind == v1.VirtualMachineGroupVersionKind.Kind {
		vm, err := s.cluster.machine(ctx, deleted.Object.Namespace, deleted.Object.Name)
		if err != nil {
			return err
		}
		if !controls(vm, vmi) {
			return nil
		}
	}
	own := vmi.GracePeriodSeconds()
	switch {
	case vmi.Status.Phase != v1.Running || deleted.GraceSeconds == own:
		return nil
	case deleted.GraceSeconds > own:
		return fmt.Errorf("%d s is longer than the %d s of terminationGracePeriodSeconds", deleted.GraceSeconds, own)
	}
	return s.do(ctx, vmi, handlerapi.Grace, seconds(deleted.GraceSeconds))
}
