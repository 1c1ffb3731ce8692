package subresources

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// migrationPrefix is how the names begin of migrations that are made here, KubeVirt's.
const migrationPrefix = "kubevirt-migrate-vm-"

// migrate makes a VirtualMachineInstanceMigration of a VM's guest.
func (s *Server) migrate(w http.ResponseWriter, c *call) error {
	o, err := options[v1.MigrateOptions](s, w, c)
	if err != nil {
		return err
	}
	if _, err := dry(o.DryRun); err != nil {
		return err
	}
	vm, err := s.cluster.machine(c.Context(), c.namespace, c.name)
	if err != nil {
		return err
	}
	vmi, err := s.cluster.instance(c.Context(), c.namespace, c.name)
	if err == nil && !controls(vm, vmi) {
		err = apierrors.NewNotFound(vmiResource, c.name)
	}
	if err != nil {
		return err
	}
	if why := notNow(vmi); why != "" {
		return vmConflict(vm, "%s", why)
	}
	if other, err := s.Evacuations.OtherNode(c.Context(), vmi); err != nil {
		return err
	} else if !other {
		return vmConflict(vm, "there is no other node that takes the guest: none runs virt-handler, or all are cordoned, tainted, or not selected by the guest's nodeSelector")
	}
	m := &v1.VirtualMachineInstanceMigration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: v1.VirtualMachineInstanceMigrationGroupVersionKind.Kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, GenerateName: migrationPrefix},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: c.name, AddedNodeSelector: o.AddedNodeSelector},
	}
	request := s.cluster.client.Post().Namespace(c.namespace).Resource(migrations)
	for _, d := range o.DryRun {
		request = request.Param("dryRun", d)
	}
	if err := request.Body(m).Do(c.Context()).Error(); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

const migrations = "virtualmachineinstancemigrations"

// notNow is why a guest cannot be migrated now; empty if it can.
func notNow(vmi *v1.VirtualMachineInstance) string {
	if vmi.Status.Phase != v1.Running || vmi.DeletionTimestamp != nil {
		return "VM is not running" // KubeVirt's words
	}
	if _, message := vmi.NotMigratable(); message != "" {
		return "the guest cannot migrate: " + message
	}
	if m := vmi.Migration(); m != nil {
		return fmt.Sprintf("in-flight migration detected. Active migration job (%s) is currently already in progress for VMI %s.", m.MigrationUID, vmi.Name) // KubeVirt's words
	}
	return ""
}
