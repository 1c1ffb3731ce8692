package admission

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kubevirt"
)

// besideKubeVirt: KubeVirt is known by what only its operator leaves, and "make deploy" writes nothing then. A KubeVirt object that somebody applied is no sign.
func (s *testServer) besideKubeVirt(t *testing.T) {
	here := func() string {
		t.Helper()
		why, err := kubevirt.OperatorIsHere(t.Context(), s.as(controllerAccount))
		if err != nil {
			t.Fatal(err)
		}
		return why
	}
	bin, err := filepath.Abs("../../_output/bin")
	if err != nil {
		t.Fatal(err)
	}
	refuses := func(want string) {
		t.Helper()
		if why := here(); !strings.Contains(why, want) {
			t.Errorf("virt-controller says %q, want %q", why, want)
		}
		deploy := exec.CommandContext(t.Context(), "../../config/deploy.sh", "up")
		deploy.Env = append(os.Environ(), "KUBECONFIG="+s.plane.Kubeconfig(), "PATH="+bin+":"+os.Getenv("PATH"))
		out, err := deploy.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "KubeVirt runs here") || strings.Contains(string(out), "installing") {
			t.Errorf("deploy.sh: %v: %s", err, out)
		}
	}
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}} // which the tests have applied
	if why := here(); why != "" {
		t.Errorf("of a KubeVirt that was applied: %q", why)
	}
	patch := func(object client.Object, text string) {
		t.Helper()
		if err := s.admin.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(text))); err != nil {
			t.Fatal(err)
		}
	}
	patch(kv, `{"metadata":{"finalizers":["foregroundDeleteKubeVirt"]}}`)
	refuses("the KubeVirt kubevirt/kubevirt has the finalizer foregroundDeleteKubeVirt")
	patch(kv, `{"metadata":{"finalizers":null}}`)
	definition := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "virtualmachines.kubevirt.io"}}
	definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	const label = `{"metadata":{"labels":{"app.kubernetes.io/managed-by":%s}}}`
	patch(definition, fmt.Sprintf(label, `"virt-operator"`))
	refuses("the definition virtualmachines.kubevirt.io is labelled app.kubernetes.io/managed-by=virt-operator")
	patch(definition, fmt.Sprintf(label, `null`))
	if why := here(); why != "" {
		t.Errorf("once KubeVirt is gone: %q", why)
	}
}
