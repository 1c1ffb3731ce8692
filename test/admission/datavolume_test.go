package admission

import (
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	testserver "github.com/kubeqemu/kubeqemu/test/apiserver"
)

// dataVolumes: virt-controller makes a DataVolume for a VM only, and one that clones from another
// namespace only if the service account may. The kinds are a stand-in of CDI's.
func (s *testServer) dataVolumes(t *testing.T) {
	s.plane.MustApply(testserver.CDI, client.ForceOwnership)
	for account, rules := range map[string][]rbacv1.PolicyRule{
		"default": {{APIGroups: []string{"cdi.kubevirt.io"}, Resources: []string{"datavolumes/source"}, ResourceNames: []string{"open"}, Verbs: []string{"create"}}},
		"runner":  {{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create"}}},
		"backup":  {{APIGroups: []string{""}, Resources: []string{"pods", "persistentvolumeclaims"}, Verbs: []string{"create"}}},
	} {
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "clone-" + account}, Rules: rules}
		binding := &rbacv1.RoleBinding{ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: role.Name},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: account}}}
		for _, object := range []client.Object{role, binding} {
			if err := s.admin.Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
	}
	const of = "ownerReferences: [{apiVersion: kubevirt.io/v1, kind: VirtualMachine, name: vm, uid: x, controller: true}]"
	as := func(account string) string {
		return of + ", annotations: {kubeqemu.io/service-account: " + account + "}"
	}
	claimed := func(name string) string {
		return "ownerReferences: [{apiVersion: v1, kind: PersistentVolumeClaim, name: " + name + ", uid: x}]"
	}
	const denied, source, unowned = "may not clone from that namespace", "names one source", "of VirtualMachines, and of claims that ask for an upload, only"
	controller, tenant := s.as(controllerAccount), s.as("tenant")
	create := func(by client.Client, meta, spec string) error {
		volume := &unstructured.Unstructured{}
		text := fmt.Sprintf("apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {name: disk, namespace: default, %s}\nspec: {%s}\n", meta, spec)
		if err := sigsyaml.Unmarshal([]byte(text), &volume.Object); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		return by.Create(t.Context(), volume, client.DryRunAll)
	}
	foreign := func(kind, name string) string {
		return "source: {" + kind + ": {namespace: kubevirt, name: " + name + "}}"
	}
	s.poll("policy", func() error { // the API server reads its policies from time to time
		if err := create(controller, "labels: {}", "source: {blank: {}}"); !apierrors.IsForbidden(err) {
			return fmt.Errorf("a DataVolume of nobody: %v", err)
		}
		return nil
	})
	for name, c := range map[string]struct{ meta, spec, want string }{
		"blank":                         {of, "source: {blank: {}}", ""},
		"no source":                     {of, "storage: {dataSourceRef: {name: x}}", ""},
		"populated from the namespace":  {of, "pvc: {dataSourceRef: {name: x, namespace: default}}", ""},
		"populated from elsewhere":      {of, "storage: {dataSourceRef: {name: x, namespace: kubevirt}}", "its own namespace"},
		"a pvc from elsewhere":          {of, "pvc: {dataSourceRef: {name: x, namespace: kubevirt}}", "its own namespace"},
		"of the namespace":              {of, "source: {pvc: {namespace: default, name: golden}}", ""},
		"without a namespace":           {of, "source: {snapshot: {name: golden}}", ""},
		"allowed":                       {of, foreign("pvc", "open"), ""},
		"a snapshot, allowed":           {of, foreign("snapshot", "open"), ""},
		"denied":                        {of, foreign("pvc", "golden"), denied},
		"a snapshot, denied":            {of, foreign("snapshot", "golden"), denied},
		"pods":                          {as("runner"), foreign("pvc", "golden"), ""},
		"pods, and a snapshot":          {as("runner"), foreign("snapshot", "golden"), denied},
		"pods and claims, a snapshot":   {as("backup"), foreign("snapshot", "golden"), ""},
		"an account that has no rights": {as("nobody"), foreign("pvc", "open"), denied},
		"two sources":                   {of, "source: {pvc: {namespace: default, name: x}, snapshot: {namespace: kubevirt, name: x}}", source},
		"a DataSource":                  {of, "sourceRef: {kind: DataSource, name: x}", source},
		"an unknown source":             {of, "source: {any: {namespace: kubevirt, name: x}}", source},
		"of a pod":                      {"ownerReferences: [{apiVersion: v1, kind: Pod, name: vm, uid: x, controller: true}]", "source: {blank: {}}", unowned},
		"not controlled":                {strings.Replace(of, ", controller: true", "", 1), "source: {blank: {}}", unowned},
		"of a claim":                    {claimed("disk"), "source: {upload: {}}", ""},
		"of another claim":              {claimed("other"), "source: {upload: {}}", unowned},
		"of a claim, no upload":         {claimed("disk"), "source: {blank: {}}", unowned},
	} {
		err := create(controller, c.meta, c.spec)
		if c.want == "" && err != nil || c.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err := create(tenant, c.meta, c.spec); err != nil {
			t.Errorf("%s, by somebody else: %v", name, err)
		}
	}
}
