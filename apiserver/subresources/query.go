package subresources

import (
	"encoding/json"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
)

// query has virt-handler ask a VMI's launcher for a document, unless refuse has an error. A launcher, which is not
// trusted, writes the answer: query passes on only the fields of T.
func query[T any](s *Server, w http.ResponseWriter, c *call, operation string,
	refuse func(*v1.VirtualMachineInstance) error) error {
	vmi, err := s.cluster.instance(c.Context(), c.namespace, c.name)
	if err != nil {
		return err
	}
	if err := refuse(vmi); err != nil {
		return err
	}
	to, err := s.target(c.Context(), vmi)
	if err != nil {
		return err
	}
	data, err := s.Handlers.Query(c.Context(), to, operation)
	if err != nil {
		return answered(vmi, err)
	}
	document := new(T)
	if err := json.Unmarshal(data, document); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("read what virt-launcher says of the guest: %w", err))
	}
	callers.Write(w, http.StatusOK, document)
	return nil
}

// qemuArguments answers with what the running QEMU was started with.
func (s *Server) qemuArguments(w http.ResponseWriter, c *call) error {
	return query[v1.VirtualMachineInstanceQEMUArguments](s, w, c, handlerapi.Arguments, runs)
}

// runs returns an error if a VMI has no running QEMU.
func runs(vmi *v1.VirtualMachineInstance) error {
	switch {
	case vmi.IsFinal():
		return vmiConflict(vmi, fmt.Sprintf("VMI is not running: it has ended (%s), and its QEMU with it; "+
			"ask while the guest runs", vmi.Status.Phase))
	case vmi.Status.Phase != v1.Running:
		return vmiConflict(vmi, fmt.Sprintf("VMI is not running: it is in phase %q; "+
			"wait for kubectl wait vmi/%s --for=condition=Ready", vmi.Status.Phase, vmi.Name))
	}
	return nil
}
