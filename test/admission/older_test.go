package admission

import (
	"bytes"
	"context"
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

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/older"
	testserver "github.com/kubeqemu/kubeqemu/test/apiserver"
)

// TestOlderVersions runs the tests of the current versions at the older ones, and more. It is one
// test, for one virt-api.
func TestOlderVersions(t *testing.T) {
	s := newTestServer(t)
	stop := s.serve()
	s.served(t, "../../config/api/apiservice.yaml", "../../config/older-versions/apiservices.yaml", "../../config/older-versions/flowschema.yaml")
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
	t.Run("the right to patch", s.olderPatcher)
	t.Run("caller", s.olderCaller)
	t.Run("kubectl", s.olderKubectl)
	t.Run("same object", s.sameObject)
	t.Run("discovery", s.discovery)
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

// served installs the APIServices of a file with virt-api on the loopback, for the test.
func (s *testServer) served(t *testing.T, files ...string) {
	t.Helper()
	objects, err := testserver.Read(files...)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.GetKind() == "APIService" {
			_ = unstructured.SetNestedField(o.Object, int64(s.port), "spec", "service", "port")
		}
	}
	s.install(t, objects...)
}

// install applies objects that belong to no namespace, for the test.
func (s *testServer) install(t *testing.T, objects ...*unstructured.Unstructured) {
	t.Helper()
	if err := s.plane.Server.Apply(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
	admin := s.admin
	t.Cleanup(func() {
		for _, o := range objects {
			if err := admin.Delete(context.Background(), o); err != nil {
				t.Error(err)
			}
		}
	})
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

// olderPatcher: a user who may only get and patch makes no object with a server-side apply, and may apply to one that is there.
func (s *testServer) olderPatcher(t *testing.T) {
	const user = "patcher"
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: user},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"kubevirt.io"}, Resources: []string{"virtualmachines"}, Verbs: []string{"get", "patch"}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}}
	for _, o := range []client.Object{role, binding} {
		if err := s.admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	patcher := s.client(config)
	for _, version := range []string{"v1alpha3", "v1"} {
		object := func() *unstructured.Unstructured {
			o := &unstructured.Unstructured{}
			if err := json.Unmarshal([]byte(`{"apiVersion":"kubevirt.io/`+version+`","kind":"VirtualMachine","metadata":{"namespace":"default","name":"applied"},
				"spec":{"runStrategy":"Halted","template":{"spec":{"domain":{"memory":{"guest":"128Mi"},"devices":{}}}}}}`), o); err != nil {
				t.Fatal(err)
			}
			return o
		}
		apply := func() error {
			return patcher.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object()), client.FieldOwner("test"), client.ForceOwnership)
		}
		s.poll(version+": the role holds, and makes no object", func() error {
			// Kubernetes 1.31 does not say which right is missing.
			if err := apply(); !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "cannot patch") {
				return fmt.Errorf("%v, want that it may not create", err)
			}
			return nil
		})
		if err := s.admin.Create(t.Context(), object()); err != nil {
			t.Fatal(err)
		}
		if err := apply(); err != nil {
			t.Errorf("%s: applied to an object that is there: %v", version, err)
		}
		if err := s.admin.Delete(t.Context(), object()); err != nil {
			t.Fatal(err)
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
	objects, err := testserver.Parse(policy + "\n---\n" + binding)
	if err != nil {
		t.Fatal(err)
	}
	s.install(t, objects...)
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
		var kinds, names []string
		text := ""
		for kind, document := range samples {
			if !strings.Contains(document, "apiVersion: "+v.Group+"/"+v.Current+"\n") || strings.HasSuffix(kind, "Preference") && v.Older == "v1alpha1" {
				continue
			}
			kinds, names = append(kinds, kind), append(names, strings.ToLower(kind)+"."+v.Older+"."+v.Group)
			text += "---\n" + strings.Replace(document, "apiVersion: "+v.Group+"/"+v.Current, "apiVersion: "+v.Group+"/"+v.Older, 1) + "\n"
		}
		s.olderKinds(t, v, kinds, names, text)
	}
}

// olderKinds does with kubectl what users do with an object of each kind of an older version.
func (s *testServer) olderKinds(t *testing.T, v older.Version, kinds, names []string, text string) {
	try := func(stdin string, args ...string) string {
		t.Helper()
		out, err := s.plane.Try(stdin, args...)
		if err != nil {
			t.Errorf("%s: %v", names, err)
		}
		return out
	}
	try(text, "apply", "-f", "-")
	again := try(text, "apply", "-f", "-")
	for i, kind := range kinds {
		want := "unchanged"
		if kind == "VirtualMachineInstance" {
			want = "configured" // a list that has got defaults is replaced, in the current version, too
		}
		if said := strings.ToLower(kind) + "." + v.Group + "/"; !slices.ContainsFunc(strings.Split(again, "\n"), func(line string) bool {
			return strings.HasPrefix(line, said) && strings.HasSuffix(line, " "+want)
		}) {
			t.Errorf("%s, applied again: %s", names[i], again)
		}
	}
	try(text, "apply", "--server-side", "--force-conflicts", "-f", "-")
	try(text, "label", "-f", "-", "a=b")
	for i, name := range names {
		if got := try("", "get", name, "-l", "a=b", "-o", "jsonpath={.items[*].apiVersion}"); got != v.Group+"/"+v.Older {
			t.Errorf("%s: its version is %q", names[i], got)
		}
	}
	if got := try("", "get", strings.Join(names, ",")); strings.Count("\n"+got, "\nNAME ") != len(names) {
		t.Errorf("%s: no table: %s", names, got)
	}
	for _, name := range names {
		if resource, _, _ := strings.Cut(name, "."); strings.HasSuffix(resource, "replicaset") || strings.HasSuffix(resource, "pool") {
			try("", "scale", name, "--all", "--replicas=3")
		}
	}
	try(text, "delete", "--wait=false", "-f", "-")
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
