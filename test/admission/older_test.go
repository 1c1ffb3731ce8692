package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/older"
)

// TestOlderVersions runs the tests of the current versions at the older ones, and more. It is one
// test because an API server takes long to start.
func TestOlderVersions(t *testing.T) {
	s := newTestServer(t)
	s.installOlder(t)
	stop := s.serve()
	s.plane.Kubectl("wait", "--for=condition=available", "--timeout=60s", "apiservice", "-l", "kubevirt.io=virt-api-aggregator")
	var passed atomic.Int64
	s.wrap = func(next http.RoundTripper) http.RoundTripper { return olderWire{t, next, &passed} }
	current := s.admin
	s.admin = s.as("")
	for name, test := range map[string]func(*testing.T){"defaults": s.defaults, "unreadable": s.unreadable, "refused": s.refused, "pools": s.pools, "presets": s.presets,
		"update": s.update, "applied again": s.appliedAgain} {
		t.Run(name, test)
	}
	t.Run("KubeVirt", s.kubeVirts)
	t.Run("KubeVirt elsewhere", s.kubeVirtElsewhere)
	if n := passed.Load(); n < 100 {
		t.Errorf("%d requests at an older version: the test checks little", n)
	}
	s.admin = current
	t.Run("rights", s.olderRights)
	t.Run("caller", s.olderCaller)
	t.Run("kubectl", s.olderKubectl)
	t.Run("same object", s.sameObject)
	watch := s.olderWatch(t)
	defer watch.Stop()
	began := time.Now()
	stop()                         // it is an error if virt-api does not end in order
	for range watch.ResultChan() { // until the end
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("virt-api took %s to end, with a watch", took)
	}
}

// installOlder makes the API server pass on the older versions to virt-api on the loopback.
func (s *testServer) installOlder(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Name: "virt-api"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}}
	if err := s.admin.Create(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"apiservices", "flowschema"} {
		text, err := os.ReadFile("../../config/older-versions/" + file + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(string(text), "\n---\n") {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
				t.Fatal(err)
			}
			if file == "apiservices" {
				_ = unstructured.SetNestedField(o.Object, int64(s.port), "spec", "service", "port")
			}
			if err := s.admin.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// olderWire makes a client that knows the current versions speak the older ones.
type olderWire struct {
	t      *testing.T
	next   http.RoundTripper
	passed *atomic.Int64
}

func (o olderWire) RoundTrip(r *http.Request) (*http.Response, error) {
	at := slices.IndexFunc(older.Versions(), func(v older.Version) bool {
		return strings.HasPrefix(r.URL.Path, "/apis/"+v.Group+"/"+v.Current+"/")
	})
	if at < 0 {
		return o.next.RoundTrip(r)
	}
	v := older.Versions()[at]
	is, was := v.Group+"/"+v.Current, v.Group+"/"+v.Older
	r = r.Clone(r.Context())
	r.URL.Path = strings.Replace(r.URL.Path, "/apis/"+is+"/", "/apis/"+was+"/", 1)
	if r.Body != nil {
		body := o.replaced(r.Body, is, was)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		r.GetBody = nil
	}
	response, err := o.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body := o.replaced(response.Body, was, is)
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	o.passed.Add(1)
	return response, nil
}

// replaced is an object of another version.
func (o olderWire) replaced(from io.Reader, is, was string) []byte {
	text, err := io.ReadAll(from)
	if err != nil {
		o.t.Error(err)
	}
	object := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if len(text) == 0 || decoder.Decode(&object) != nil {
		return text
	}
	if object["apiVersion"] == was {
		o.t.Errorf("it says %s: %.300s", was, text)
	}
	if object["apiVersion"] == is {
		object["apiVersion"] = was
	}
	if text, err = json.Marshal(object); err != nil {
		o.t.Error(err)
	}
	return text
}

// tenant is a client with all rights in the namespace default, and none elsewhere: the role of
// kubeVirtElsewhere.
func (s *testServer) tenant() client.Client {
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "tenant", Groups: []string{"system:authenticated"}}
	return s.client(config)
}

// olderRights: a user may at an older version what the user may at the current one.
func (s *testServer) olderRights(t *testing.T) {
	user := s.tenant()
	elsewhere := tiny("elsewhere")
	elsewhere.Namespace = v1.KubeVirtNamespace
	for name, c := range map[string]struct {
		do   func() error
		want string // "" is allowed
	}{
		"own": {func() error { return user.Create(t.Context(), tiny("own"), client.DryRunAll) }, ""},
		"own list": {func() error {
			return user.List(t.Context(), &v1.VirtualMachineInstanceList{}, client.InNamespace("default"))
		}, ""},
		"create elsewhere": {func() error { return user.Create(t.Context(), elsewhere) }, `User "tenant" cannot create resource "virtualmachineinstances" in API group "kubevirt.io" in the namespace "kubevirt"`},
		"list elsewhere": {func() error {
			return user.List(t.Context(), &v1.VirtualMachineList{}, client.InNamespace(v1.KubeVirtNamespace))
		}, `cannot list`},
		"list everywhere":  {func() error { return user.List(t.Context(), &v1.VirtualMachineList{}) }, `at the cluster scope`},
		"delete elsewhere": {func() error { return user.Delete(t.Context(), elsewhere) }, `cannot delete`},
		"delete all elsewhere": {func() error {
			return user.DeleteAllOf(t.Context(), &v1.VirtualMachineInstance{}, client.InNamespace(v1.KubeVirtNamespace))
		}, `cannot deletecollection`},
		"a cluster's instancetype":   {func() error { return user.Create(t.Context(), s.clusterInstancetype(t)) }, `cannot create resource "virtualmachineclusterinstancetypes"`},
		"status":                     {func() error { return user.Status().Update(t.Context(), tiny("own")) }, `could not find the requested resource`},
		"an administrator elsewhere": {func() error { return s.as("").Create(t.Context(), elsewhere, client.DryRunAll) }, ""},
	} {
		if err := c.do(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func (s *testServer) clusterInstancetype(t *testing.T) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(`{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachineClusterInstancetype","metadata":{"name":"older"},
		"spec":{"cpu":{"guest":1},"memory":{"guest":"1Gi"}}}`), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// olderCaller: admission sees the user in whose name virt-api passes requests on, and the caller's
// name as an extra attribute.
func (s *testServer) olderCaller(t *testing.T) {
	policy := fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"caller"},"spec":{
		"matchConstraints":{"resourceRules":[{"apiGroups":["kubevirt.io"],"apiVersions":["*"],"operations":["CREATE"],"resources":["virtualmachineinstances"]}]},
		"matchConditions":[{"name":"named","expression":"object.metadata.name == 'caller'"}],
		"validations":[{"expression":"false","messageExpression":"request.userInfo.username + ' for ' + request.userInfo.extra['%s'][0] + ' of ' + request.userInfo.groups.join(' ')"}]}}`, older.CallerKey)
	binding := `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"caller"},"spec":{"policyName":"caller","validationActions":["Deny"]}}`
	for _, text := range []string{policy, binding} {
		if _, err := s.plane.Try(text, "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
	}
	want := older.Account + " for tenant of system:authenticated"
	s.poll("the policy holds", func() error {
		if err := s.tenant().Create(t.Context(), tiny("caller"), client.DryRunAll); err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%v, want %s", err, want)
		}
		return nil
	})
}

// olderKubectl: what users do with kubectl, at each older version.
func (s *testServer) olderKubectl(t *testing.T) {
	samples := map[string]string{}
	for _, file := range []string{"vmi-tiny", "vm-tiny", "vmirs-tiny", "vmpool-tiny", "vm-instancetype", "vm-clusterinstancetype"} {
		text, err := os.ReadFile("../../config/samples/" + file + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(string(text), "\n---\n") {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
				t.Fatal(err)
			}
			samples[o.GetKind()] = document
		}
	}
	for _, v := range older.Versions() {
		for kind, document := range samples {
			if !strings.Contains(document, "apiVersion: "+v.Group+"/"+v.Current+"\n") || strings.HasSuffix(kind, "Preference") && v.Older == "v1alpha1" {
				continue
			}
			name := strings.ToLower(kind) + "." + v.Older + "." + v.Group
			text := strings.Replace(document, "apiVersion: "+v.Group+"/"+v.Current, "apiVersion: "+v.Group+"/"+v.Older, 1)
			try := func(stdin string, args ...string) string {
				out, err := s.plane.Try(stdin, args...)
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				return out
			}
			try(text, "apply", "-f", "-")
			want := "unchanged"
			if kind == "VirtualMachineInstance" {
				want = "configured" // a list that has got defaults is replaced, in the current version, too
			}
			if got := try(text, "apply", "-f", "-"); !strings.Contains(got, want) {
				t.Errorf("%s, applied again: %s", name, got)
			}
			try(text, "apply", "--server-side", "--force-conflicts", "-f", "-")
			try(text, "label", "-f", "-", "a=b")
			if got := try("", "get", name, "-l", "a=b", "-o", "jsonpath={.items[*].apiVersion}"); got != v.Group+"/"+v.Older {
				t.Errorf("%s: its version is %q", name, got)
			}
			if got := try("", "get", name); !strings.Contains(got, "NAME") {
				t.Errorf("%s: no table: %s", name, got)
			}
			if strings.HasSuffix(kind, "ReplicaSet") || strings.HasSuffix(kind, "Pool") {
				try(text, "scale", "-f", "-", "--replicas=3")
			}
			try(text, "delete", "--wait=false", "-f", "-")
		}
	}
}

// sameObject: one object is the same at both versions, but for apiVersion, and a field that is not
// known is named at both.
func (s *testServer) sameObject(t *testing.T) {
	const object = `{"apiVersion":"kubevirt.io/%s","kind":"VirtualMachine","metadata":{"namespace":"default","name":"same","annotations":{"a":"{\"apiVersion\":\"kubevirt.io/v1\"}"}},
		"spec":{"runStrategy":"Halted","template":{"spec":{"domain":{"memory":{"guest":"128Mi"},"devices":{}}}}%s}}`
	if _, err := s.plane.Try(fmt.Sprintf(object, "v1alpha3", ""), "create", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	current := s.plane.Kubectl("get", "virtualmachines.v1.kubevirt.io", "same", "-o", "json", "--show-managed-fields")
	got := s.plane.Kubectl("get", "virtualmachines.v1alpha3.kubevirt.io", "same", "-o", "json", "--show-managed-fields")
	if want := strings.Replace(current, `"apiVersion": "kubevirt.io/v1"`, `"apiVersion": "kubevirt.io/v1alpha3"`, 1); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if !strings.Contains(got, `"manager": "kubectl-create"`) {
		t.Errorf("the field manager is not the client: %s", got)
	}
	// Written back as it was read, it does not change.
	if out, err := s.plane.Try(got, "replace", "-f", "-"); err != nil || s.plane.Kubectl("get", "virtualmachines.v1.kubevirt.io", "same", "-o", "json", "--show-managed-fields") != current {
		t.Errorf("written back: %s, %v", out, err)
	}
	for _, version := range []string{"v1", "v1alpha3"} {
		_, err := s.plane.Try(fmt.Sprintf(object, version, `,"colour":"red"`), "create", "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), `unknown field "spec.colour"`) {
			t.Errorf("%s: an unknown field: %v", version, err)
		}
	}
	s.plane.Kubectl("delete", "virtualmachines.v1alpha3.kubevirt.io", "same")
}

// olderWatch: a watch at an older version has the objects of that version. It returns the watch.
func (s *testServer) olderWatch(t *testing.T) watch.Interface {
	config := rest.CopyConfig(s.config)
	c, err := client.NewWithWatch(config, client.Options{Scheme: s.scheme})
	if err != nil {
		t.Fatal(err)
	}
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("kubevirt.io/v1alpha3")
	list.SetKind("VirtualMachineInstanceList")
	watched, err := c.Watch(t.Context(), list, client.InNamespace("default"), client.MatchingFields{"metadata.name": "watched"})
	if err != nil {
		t.Fatal(err)
	}
	vmi := tiny("watched")
	if err := s.admin.Create(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	event := <-watched.ResultChan()
	if got, ok := event.Object.(*unstructured.Unstructured); !ok || got.GetAPIVersion() != "kubevirt.io/v1alpha3" || got.GetUID() != vmi.UID {
		t.Errorf("%+v", event)
	}
	if err := s.admin.Delete(t.Context(), vmi); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	return watched
}
