package admission

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/admission"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
)

const apiAccount = "system:serviceaccount:kubevirt:virt-api"

// launched makes a VMI with an eviction strategy that runs on node n1, and its launcher pod.
func (s *testServer) launched(t *testing.T, name string, strategy v1.EvictionStrategy) (*v1.VirtualMachineInstance, *corev1.Pod) {
	t.Helper()
	controller := s.as(controllerAccount)
	of := tiny(name)
	of.Spec.EvictionStrategy = &strategy
	of.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}}
	of.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", Masquerade: &v1.InterfaceMasquerade{}}} // the guest can move
	v1.Default(of)
	if err := controller.Create(t.Context(), of); err != nil {
		t.Fatal(err)
	}
	pod := vmi.Pod(of, vmi.PodConfig{LauncherImage: "launcher:v1"})
	if err := controller.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	of.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "n1", LauncherPods: []v1.LauncherPod{{Name: pod.Name, UID: pod.UID}},
		ActivePods: map[types.UID]string{pod.UID: "n1"}}
	if err := controller.Status().Update(t.Context(), of); err != nil {
		t.Fatal(err)
	}
	return of, pod
}

// plainPod makes a pod that is no launcher.
func (s *testServer) plainPod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false), Containers: []corev1.Container{{Name: "c", Image: "image"}}}}
	if err := s.admin.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// evictor returns the configuration of a user who may evict the pods of the namespace default, and do nothing else.
func (s *testServer) evictor(t *testing.T, user string) *rest.Config {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: user}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}}}
	for _, o := range []client.Object{role, binding} {
		if err := s.admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	return config
}

func evict(t *testing.T, as *rest.Config, pod *corev1.Pod, dryRun ...string) error {
	t.Helper()
	clients, err := kubernetes.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	return clients.PolicyV1().Evictions(pod.Namespace).Evict(t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun}})
}

// asked is the node that a VMI's guest is asked to leave.
func (s *testServer) asked(t *testing.T, of *v1.VirtualMachineInstance) string {
	t.Helper()
	now := &v1.VirtualMachineInstance{}
	if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(of), now); err != nil {
		t.Fatal(err)
	}
	return now.Status.EvacuationNodeName
}

// evictions: an eviction ends a guest or is refused, as the guest's strategy says. Only an account that
// may evict pods of all namespaces has a guest brought elsewhere.
func (s *testServer) evictions(t *testing.T) {
	drainer, tenant := s.config, s.evictor(t, "evictor")
	external, pod := s.launched(t, "external", v1.EvictionStrategyExternal)
	refused := func(what string, err error, says string) {
		t.Helper()
		if !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", what, err, says)
		}
	}
	const triggered = `Eviction triggered evacuation of VMI "default/external"`
	refused("by a tenant", evict(t, tenant, pod), "only an account that may evict pods in all namespaces")
	refused("a dry run", evict(t, drainer, pod, "All"), triggered)
	s.forge(t, pod)
	if node := s.asked(t, external); node != "" {
		t.Errorf("a tenant, a dry run or a stranger had the guest asked to leave %q", node)
	}
	refused("a drain", evict(t, drainer, pod), triggered)
	if node := s.asked(t, external); node != "n1" {
		t.Errorf("after a drain the guest is asked to leave %q", node)
	}
	refused("the drain's next try", evict(t, drainer, pod), "Evacuation in progress")
	_, ends := s.launched(t, "none", v1.EvictionStrategyNone)
	if err := evict(t, tenant, ends); err != nil {
		t.Errorf("the strategy None: %v", err)
	}
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{v1.SchedulableLabel: "true"}}, Spec: corev1.NodeSpec{Unschedulable: true}}
	if err := s.admin.Create(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	for name, strategy := range map[string]v1.EvictionStrategy{"moves": v1.EvictionStrategyLiveMigrate, "if-possible": v1.EvictionStrategyLiveMigrateIfPossible} {
		moves, pod := s.launched(t, name, strategy)
		refused("by a tenant", evict(t, tenant, pod), "only an account that may evict pods in all namespaces")
		other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "another", Labels: map[string]string{v1.SchedulableLabel: "true", corev1.LabelArchStable: "amd64"}}}
		if err := s.admin.Create(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		refused("where there is another node", evict(t, drainer, pod), "Eviction triggered evacuation")
		if node := s.asked(t, moves); node != "n1" {
			t.Errorf("%s: after a drain the guest is asked to leave %q", strategy, node)
		}
		if err := s.admin.Delete(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		if err := evict(t, drainer, pod); err != nil {
			t.Errorf("%s, on the only node: %v", strategy, err)
		}
	}
	if err := s.admin.Delete(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	if err := evict(t, tenant, s.plainPod(t, "evictable")); err != nil {
		t.Errorf("a pod that is no launcher: %v", err)
	}
	s.evacuationPolicy(t, external)
}

// forge asks virt-api as the API server would, from a stranger.
func (s *testServer) forge(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	review := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","name":%q,"namespace":%q,"operation":"CREATE",
		"subResource":"eviction","userInfo":{"username":"admin","groups":["system:masters"]},"object":{}}}`, pod.Name, pod.Namespace)
	for _, path := range []string{admission.EvictionPath.Path, admission.EvictionPath.SecretPath([]byte("guessed"))} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("https://localhost:%d%s", s.port, path), bytes.NewReader([]byte(review)))
		if err != nil {
			t.Fatal(err)
		}
		response, err := stranger.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || !strings.Contains(string(text), `"allowed":false`) {
			t.Errorf("a stranger is told %s (%v)", text, err)
		}
	}
}

// evacuationPolicy: virt-api writes evacuationNodeName alone, and virt-handler does not write it.
func (s *testServer) evacuationPolicy(t *testing.T, of *v1.VirtualMachineInstance) {
	api, handler := s.as(apiAccount), s.onNode(handlerAccount, "n1")
	const alone, another = "nothing but evacuationNodeName", "the node that it is on"
	for _, c := range []struct {
		as          client.Client
		patch, says string
	}{
		{api, `{"status":{"phase":"Failed"}}`, alone}, {api, `{"status":{"nodeName":"n2"}}`, alone}, {api, `{"status":{"activePods":null}}`, alone},
		{api, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, alone}, {api, `{"status":null}`, "does not begin"},
		{api, `{"status":{"evacuationNodeName":"n2"}}`, another}, {api, `{"status":{"evacuationNodeName":null}}`, ""}, {api, `{"status":{"evacuationNodeName":"n1"}}`, ""},
		{handler, `{"status":{"evacuationNodeName":null}}`, "virt-handler asks no guest"}, {handler, `{"status":{"fsFreezeStatus":"frozen"}}`, ""},
	} {
		err := c.as.Status().Patch(t.Context(), of.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(c.patch)))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.patch, err, c.says)
		}
	}
	for patch, says := range map[string]string{`{"spec":{"hostname":"x"}}`: "update of VMI object is restricted", `{"metadata":{"labels":{"a":"b"}}}`: "virt-api touches no finalizer"} {
		if err := api.Patch(t.Context(), of.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch))); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("the object itself: %s: %v, want %q", patch, err, says)
		}
	}
}
