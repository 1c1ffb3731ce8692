package admission

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"
)

// claimsOfMigrations: virt-controller makes empty claims for the disks of VMs that migrate and for guests' state, and deletes what VMs control and the state of VMIs.
func (s *testServer) claimsOfMigrations(t *testing.T) {
	const (
		of     = "ownerReferences: [{apiVersion: kubevirt.io/v1, kind: VirtualMachine, name: vm, uid: x, controller: true}]"
		copied = of + ", labels: {kubeqemu.io/copied-by-migration: m}"
		form   = "accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}"
	)
	claim := func(name, meta, spec string) *corev1.PersistentVolumeClaim {
		out := &corev1.PersistentVolumeClaim{}
		text := fmt.Sprintf("metadata: {name: %s, namespace: default, %s}\nspec: {%s}\n", name, meta, spec)
		if err := sigsyaml.UnmarshalStrict([]byte(text), out); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		return out
	}
	controller, tenant := s.as(controllerAccount), s.as("tenant")
	s.poll("policy", func() error { // the API server reads its policies from time to time
		if err := controller.Create(t.Context(), claim("nobodys", "labels: {}", form), client.DryRunAll); !apierrors.IsForbidden(err) {
			return fmt.Errorf("a claim of nobody: %v", err)
		}
		return nil
	})
	const others, empty = "to which the disks of VirtualMachines are copied", "makes empty claims"
	for name, c := range map[string]struct{ meta, spec, want string }{
		"a copy":                  {copied, form, ""},
		"of a class":              {copied, form + ", storageClassName: local", ""},
		"without the label":       {of, form, others},
		"of nobody":               {"labels: {kubeqemu.io/copied-by-migration: m}", form, others},
		"not controlled":          {strings.Replace(copied, ", controller: true", "", 1), form, others},
		"of a pod":                {strings.Replace(copied, "kind: VirtualMachine", "kind: Pod", 1), form, others},
		"of another group":        {strings.Replace(copied, "kubevirt.io/v1", "example.com/v1", 1), form, others},
		"of a volume":             {copied, form + ", volumeName: theirs", empty},
		"of any volume that fits": {copied, form + ", selector: {matchLabels: {a: b}}", empty},
		"from a snapshot":         {copied, form + ", dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: s}", empty},
		"from another claim":      {copied, form + ", dataSourceRef: {kind: PersistentVolumeClaim, name: s}", empty},
	} {
		err := controller.Create(t.Context(), claim("copy", c.meta, c.spec), client.DryRunAll)
		if c.want == "" && err != nil || c.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err := tenant.Create(t.Context(), claim("copy", c.meta, c.spec), client.DryRunAll); err != nil {
			t.Errorf("%s, by a tenant: %v", name, err)
		}
	}
	const (
		state = of + ", labels: {persistent-state-for: vm}"
		small = "accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Mi}}"
	)
	for what, c := range map[string]struct{ name, meta, spec, want string }{
		"with state":            {"persistent-state-for-vm-x", state, small, ""},
		"of a VMI, with state":  {"persistent-state-for-vm-x", strings.Replace(state, "kind: VirtualMachine,", "kind: VirtualMachineInstance,", 1), small, ""},
		"of a class":            {"persistent-state-for-vm-x", state, small + ", storageClassName: local, volumeMode: Filesystem", ""},
		"large":                 {"persistent-state-for-vm-x", state, strings.Replace(small, "10Mi", "77594625", 1), others},
		"huge":                  {"persistent-state-for-vm-x", state, strings.Replace(small, "10Mi", "1Ti", 1), others},
		"a device":              {"persistent-state-for-vm-x", state, small + ", volumeMode: Block", others},
		"of another name":       {"data", state, small, others},
		"of a name without end": {"persistent-state-for", state, small, others},
		"without the label":     {"persistent-state-for-vm-x", of, small, others},
		"of nobody":             {"persistent-state-for-vm-x", "labels: {persistent-state-for: vm}", small, others},
		"not controlled":        {"persistent-state-for-vm-x", strings.Replace(state, ", controller: true", "", 1), small, others},
		"of a pod":              {"persistent-state-for-vm-x", strings.Replace(state, "kind: VirtualMachine", "kind: Pod", 1), small, others},
		"of another group":      {"persistent-state-for-vm-x", strings.Replace(state, "kubevirt.io/v1", "example.com/v1", 1), small, others},
		"of two":                {"persistent-state-for-vm-x", strings.Replace(state, "}]", "}, {apiVersion: v1, kind: Pod, name: p, uid: y}]", 1), small, others},
		"of a volume":           {"persistent-state-for-vm-x", state, small + ", volumeName: theirs", empty},
		"from another claim":    {"persistent-state-for-vm-x", state, small + ", dataSourceRef: {kind: PersistentVolumeClaim, name: s}", empty},
	} {
		err := controller.Create(t.Context(), claim(c.name, c.meta, c.spec), client.DryRunAll)
		if c.want == "" && err != nil || c.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("state, %s: %v, want %q", what, err, c.want)
		}
	}
	const ofVMI = "ownerReferences: [{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, name: vm, uid: x, controller: true}]"
	for name, c := range map[string]struct {
		meta string
		may  bool
	}{"a-copy": {copied, true}, "a-vms": {of, true}, "a-tenants": {"labels: {kubeqemu.io/copied-by-migration: m}", false},
		"persistent-state-for-vm-x": {ofVMI + ", labels: {persistent-state-for: vm}", true}, "persistent-state-for-vm-y": {ofVMI, false}, "a-vmis": {ofVMI + ", labels: {persistent-state-for: vm}", false},
		"persistent-state-for-vm-z": {"labels: {persistent-state-for: vm}", false}} {
		made := claim(name, c.meta, form)
		if err := s.admin.Create(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		if err := controller.Delete(t.Context(), made); (err == nil) != c.may || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}

	// The claims of DataVolumes are made where virt-controller may fill DataVolumes.
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: controllerAccount, Groups: []string{"system:authenticated"}}
	plain := s.client(config)
	subjects := []rbacv1.Subject{{Kind: "User", APIGroup: "rbac.authorization.k8s.io", Name: controllerAccount}}
	may := func(name string, rule rbacv1.PolicyRule) {
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Rules: []rbacv1.PolicyRule{rule}}
		binding := &rbacv1.RoleBinding{ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: name}, Subjects: subjects}
		for _, o := range []client.Object{role, binding} {
			if err := s.admin.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	may("make-claims", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims"}, Verbs: []string{"create"}})
	ofVolume := func() error {
		return plain.Create(t.Context(), claim("copy", "ownerReferences: [{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, name: copy, uid: x, controller: true}]", form+", volumeName: theirs"), client.DryRunAll)
	}
	s.poll("the right to make claims", func() error {
		if err := plain.Create(t.Context(), claim("copy", copied, form), client.DryRunAll); err != nil {
			return err
		}
		return nil
	})
	if err := ofVolume(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), others) {
		t.Errorf("a claim of a DataVolume: %v", err)
	}
	may("fill", rbacv1.PolicyRule{APIGroups: []string{"cdi.kubevirt.io"}, Resources: []string{"datavolumes/status"}, Verbs: []string{"patch"}})
	s.poll("the right to fill DataVolumes", ofVolume)
}
