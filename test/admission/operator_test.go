package admission

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	virtcontroller "github.com/kubeqemu/kubeqemu/cmd/virt-controller"
	"github.com/kubeqemu/kubeqemu/controllers/kubevirt"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// idles starts a virt-controller that finds KubeVirt, and sees that its readiness and an event say so. The function that it returns waits
// until the virt-controller has found KubeVirt gone.
func (s *testServer) idles(t *testing.T) (gone func()) {
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: controllerAccount, Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	probes := listener.Addr().String()
	listener.Close()
	ended := make(chan error, 1)
	go func() { ended <- virtcontroller.AwaitAlone(t.Context(), config, probes, 100*time.Millisecond) }()
	testkit.Eventually(t, "a virt-controller that lives and is not ready", func() error {
		for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable} {
			got, err := http.Get("http://" + probes + path)
			if err != nil {
				return err
			}
			said, err := io.ReadAll(got.Body)
			got.Body.Close()
			if err != nil || got.StatusCode != want || want != http.StatusOK && !strings.Contains(string(said), "KubeVirt runs here") {
				return fmt.Errorf("%s is %s: %s (%v)", path, got.Status, said, err)
			}
		}
		return nil
	})
	testkit.Eventually(t, "the event KubeVirtIsHere", func() error {
		var said corev1.EventList
		if err := s.admin.List(t.Context(), &said, client.InNamespace(v1.KubeVirtNamespace)); err != nil {
			return err
		}
		for _, e := range said.Items {
			if e.Reason == "KubeVirtIsHere" && strings.Contains(e.Message, "virtualmachines.kubevirt.io is labelled") {
				return nil
			}
		}
		return fmt.Errorf("it is not among %d events", len(said.Items))
	})
	return func() {
		t.Helper()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("virt-controller waits until KubeVirt is gone: %v", err)
			}
		case <-time.After(testkit.Patience):
			t.Error("virt-controller still waits, and KubeVirt is gone")
		}
	}
}

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
	idles := s.idles(t)
	patch(definition, fmt.Sprintf(label, `null`))
	idles()
	if why := here(); why != "" {
		t.Errorf("once KubeVirt is gone: %q", why)
	}
}
