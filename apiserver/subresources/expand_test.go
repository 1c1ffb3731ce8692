package subresources

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/api/instancetype/choice"
	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
)

// two reads an instancetype "small" of the namespace, one "none" without memory, and nothing else.
func two(_ context.Context, key types.NamespacedName, into choice.Object) error {
	it, ok := into.(*v1beta1.VirtualMachineInstancetype)
	memory := map[string]string{"small": "64Mi", "none": "0"}[key.Name]
	if !ok || memory == "" || key.Namespace != "ns" {
		r, _ := resourceOf(into)
		return apierrors.NewNotFound(r.GroupResource(), key.Name)
	}
	it.Spec = v1beta1.VirtualMachineInstancetypeSpec{CPU: v1beta1.CPUInstancetype{Guest: 3}, Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse(memory)}}
	return nil
}

// TestExpandOfAVMThatIsSentAlong: what is answered about a VM that is sent along.
func TestExpandOfAVMThatIsSentAlong(t *testing.T) {
	const head, template = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: vm}\nspec:\n  runStrategy: Halted\n", "  template: {spec: {domain: {devices: {}}}}\n"
	const small = "  instancetype: {name: small, kind: virtualmachineinstancetype}\n"
	for name, c := range map[string]struct{ text, want string }{
		"without":              {head + "  template: {spec: {domain: {memory: {guest: 32Mi}, devices: {}}}}\n", ""},
		"with an instancetype": {head + small + template, ""},
		"one that is not there": {head + "  instancetype: {name: large, kind: virtualmachineinstancetype}\n" + template,
			`virtualmachineinstancetypes.instancetype.kubevirt.io "large" not found`},
		"a preference that is not there": {head + "  preference: {name: linux}\n" + template,
			`virtualmachineclusterpreferences.instancetype.kubevirt.io "linux" not found`},
		"a conflict": {head + small + "  template: {spec: {domain: {memory: {guest: 32Mi}, resources: {requests: {memory: 32Mi}}, devices: {}}}}\n",
			"VM field(s) spec.template.spec.domain.memory.guest, spec.template.spec.domain.resources.requests.memory conflicts with selected instance type"},
		"what no guest can have": {head + "  instancetype: {name: none, kind: virtualmachineinstancetype}\n" + template, ""},
		"nothing":                {"", "empty request body"},
		"no YAML":                {"{", "Object is not a valid VirtualMachine"},
		"another kind":           {"apiVersion: v1\nkind: Pod\n", "Object is not a valid VirtualMachine"},
		"no VM's field":          {head + "  template: 7\n", "Object is not a valid VirtualMachine"},
		"a costly text":          {head + "  template: {spec: {domain: {memory: {guest: \"1e-999999999\"}, devices: {}}}}\n", "spec.template.spec.domain.memory.guest"},
		"a long list":            {`{"spec":[` + strings.Repeat("1,", 100_000) + "1]}", "more than"},
		"long YAML":              {head + "# " + strings.Repeat("x", maxYAML), "longer than"},
		"another namespace":      {strings.Replace(head, "{name: vm}", "{name: vm, namespace: other}", 1) + template, "VM namespace must be empty or ns"},
	} {
		vm, err := given([]byte(c.text), "ns")
		if err == nil {
			vm, err = expand(t.Context(), two, vm)
		}
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
			continue
		}
		if err != nil || vm.Spec.Instancetype != nil || vm.Spec.Template.Spec.Domain.Memory.Guest.IsZero() != (name == "what no guest can have") || vm.Kind != "VirtualMachine" {
			t.Errorf("%s: %+v, %v", name, vm, err)
		}
		if name != "without" && (vm.Spec.Template.Spec.Domain.CPU.Sockets != 3 || vm.Spec.Template.ObjectMeta.Annotations["kubevirt.io/instancetype-name"] == "") {
			t.Errorf("%s: %+v", name, vm.Spec.Template)
		}
	}
}

// TestExpandReadsOnlyWhatTheUserMay: of what a user names, nothing is read that they may not read
// themselves.
func TestExpandReadsOnlyWhatTheUserMay(t *testing.T) {
	s := serve(t)
	cluster, err := newCluster(s.api, s.server.cluster.rights)
	if err != nil {
		t.Fatal(err)
	}
	key := types.NamespacedName{Namespace: "ns", Name: "small"}
	ann := callers.User{Name: "ann"}
	if err := cluster.readFor(ann)(t.Context(), key, &v1beta1.VirtualMachineInstancetype{}); !apierrors.IsForbidden(err) {
		t.Errorf("without the right: %v", err)
	}
	s.allowed = "virtualmachineinstancetypes"
	if err := cluster.readFor(ann)(t.Context(), key, &v1beta1.VirtualMachineInstancetype{}); !apierrors.IsNotFound(err) {
		t.Errorf("with the right: %v", err)
	}
	if a := s.asked[len(s.asked)-1].ResourceAttributes; a.Verb != "get" || a.Group != "instancetype.kubevirt.io" || a.Namespace != "ns" || a.Name != "small" {
		t.Errorf("it was asked %+v", a)
	}
	asked := len(s.asked)
	for _, name := range []string{"../../other/virtualmachineinstancetypes/small", "..", "a/b", "a%2fb"} {
		key := types.NamespacedName{Namespace: "ns", Name: name}
		for _, read := range []choice.Get{cluster.readFor(ann), cluster.read} {
			if err := read(t.Context(), key, &v1beta1.VirtualMachineInstancetype{}); !apierrors.IsNotFound(err) || strings.Contains(err.Error(), "GET") {
				t.Errorf("the name %s: %v", name, err)
			}
		}
	}
	s.allowed = ""
	if err := cluster.readFrom(ann, "ns")(t.Context(), key, &v1beta1.VirtualMachineInstancetype{}); !apierrors.IsNotFound(err) || len(s.asked) != asked {
		t.Errorf("in the namespace of a VM that exists: %v", err)
	}
	for _, name := range []string{"small", "missing"} {
		err := cluster.readFrom(ann, "ns")(t.Context(), types.NamespacedName{Namespace: "closed", Name: name}, &corev1.PersistentVolumeClaim{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("a claim of a closed namespace, to which a VM that exists leads: %v", err)
		}
	}
	if len(s.asked) != asked+2 {
		t.Errorf("it was asked whether a path may be read: %+v", s.asked[asked:])
	}
	err = cluster.readFor(ann)(t.Context(), types.NamespacedName{Name: "small"}, &v1beta1.VirtualMachineClusterInstancetype{})
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !strings.Contains(status.Status().Message, "/apis/instancetype.kubevirt.io/v1beta1/virtualmachineclusterinstancetypes/small") || len(s.asked) != asked+2 {
		t.Errorf("what is of the cluster: %v", err)
	}
}

// TestResourceOfKindsThatMayBeMissing: kinds that the cluster may lack are asked for by their resources.
func TestResourceOfKindsThatMayBeMissing(t *testing.T) {
	for kind, want := range map[schema.GroupVersionKind]string{
		v1.DataVolumeGroupVersionKind:                                             "cdi.kubevirt.io/v1beta1, Resource=datavolumes",
		v1.DataVolumeGroupVersionKind.GroupVersion().WithKind("DataSource"):       "cdi.kubevirt.io/v1beta1, Resource=datasources",
		{Group: "snapshot.storage.k8s.io", Version: "v1", Kind: "VolumeSnapshot"}: "snapshot.storage.k8s.io/v1, Resource=volumesnapshots",
	} {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(kind)
		if got, ofCluster := resourceOf(object); got.String() != want || ofCluster {
			t.Errorf("%s: %s, of the cluster: %v", kind, got, ofCluster)
		}
	}
}

// TestFailedExpandIsNoBadRequest: what is not the request's fault is no bad request.
func TestFailedExpandIsNoBadRequest(t *testing.T) {
	s := serve(t)
	s.allowed = "expand-vm-spec"
	const path, body = root + "/namespaces/ns/expand-vm-spec", `{"spec":{"instancetype":{"kind":"%s","name":"small"},"template":{"spec":{"domain":{"devices":{}}}}}}`
	for kind, want := range map[string]int{"VirtualMachineInstancetype": http.StatusForbidden, "VirtualMachineClusterInstancetype": http.StatusBadRequest} {
		if code, status := s.ask(true, "ann", http.MethodPut, path, fmt.Sprintf(body, kind)); code != want {
			t.Errorf("%s: %d %+v, want %d", kind, code, status, want)
		}
	}
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"too many":     {fmt.Errorf("read: %w", apierrors.NewTooManyRequests("later", 1)), http.StatusTooManyRequests},
		"not found":    {fmt.Errorf("read: %w", apierrors.NewNotFound(vmResource, "x")), http.StatusBadRequest},
		"a conflict":   {errors.New("cannot expand"), http.StatusBadRequest},
		"nobody there": {&url.Error{Op: "Get", Err: errors.New("refused")}, 0},
	} {
		var status apierrors.APIStatus
		got := 0
		if errors.As(notExpanded(c.err), &status) {
			got = int(status.Status().Code)
		}
		if got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
