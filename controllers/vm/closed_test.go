package vm

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestTemplateTellsNothingOfAClosedNamespace: a DataVolumeTemplate may name a claim of a namespace that is
// closed to the VM's account. The VM fails with the same words whether that claim exists or not, and none of
// the words is the claim's.
func TestTemplateTellsNothingOfAClosedNamespace(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, authorizationv1.AddToScheme, v1.AddToScheme,
		v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	vm := &v1.VirtualMachine{}
	if err := json.Unmarshal([]byte(`{"metadata":{"namespace":"ns","name":"vm"},"spec":{"preference":{"inferFromVolume":"root"},
		"dataVolumeTemplates":[{"metadata":{"name":"disk"},"spec":{"source":{"pvc":{"namespace":"closed","name":"golden"}}}}],
		"template":{"spec":{"volumes":[{"name":"root","dataVolume":{"name":"disk"}}]}}}}`), vm); err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for name, c := range map[string]struct{ exists, may bool }{"there": {true, false}, "not there": {false, false},
		"permitted": {true, true}} {
		builder := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
			Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
				o.(*authorizationv1.SubjectAccessReview).Status.Allowed = c.may
				return nil
			}})
		if c.exists {
			builder.WithObjects(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "closed", Name: "golden",
				Labels: map[string]string{"instancetype.kubevirt.io/default-preference": "of-the-claim"}}})
		}
		cluster := builder.Build()
		r := &Reconciler{Client: cluster, Live: cluster}
		_, err := r.storageClass(t.Context(), vm)
		if err == nil {
			t.Fatalf("%s: no error, though there is no preference", name)
		}
		if said[name] = err.Error(); strings.Contains(said[name], "of-the-claim") != c.may {
			t.Errorf("%s: %s", name, said[name])
		}
		err = r.makeDataVolume(t.Context(), vm, missing{template: &vm.Spec.DataVolumeTemplates[0]},
			func() (string, error) { return r.storageClass(t.Context(), vm) })
		if err == nil || strings.Contains(err.Error(), "may not clone from namespace closed") == c.may {
			t.Errorf("%s, as the DataVolumes are made: %v", name, err)
		}
	}
	if said["there"] != said["not there"] {
		t.Errorf("%q, and without the claim %q", said["there"], said["not there"])
	}
}
