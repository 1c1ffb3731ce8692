package subresources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/api/instancetype"
	"github.com/kubeqemu/kubeqemu/api/instancetype/choice"
	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/admission"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
)

// maxObject bounds an object in a request's body, in bytes, as the API server does.
const maxObject = 3 << 20

// expandSpec answers with a VirtualMachine as it runs: with its instancetype and preference
// applied to the template.
func (s *Server) expandSpec(w http.ResponseWriter, c *call) error {
	vm, err := s.cluster.machine(c.Context(), c.namespace, c.name)
	if err != nil {
		return err
	}
	expanded, err := expand(c.Context(), s.cluster.readFrom(c.user, c.namespace), vm)
	if err != nil {
		return apierrors.NewInternalError(err) // KubeVirt's code
	}
	callers.Write(w, http.StatusOK, expanded)
	return nil
}

// expandGiven does the same for the VirtualMachine in the request's body, which need not exist.
func (s *Server) expandGiven(w http.ResponseWriter, c *call) error {
	var vm *v1.VirtualMachine
	if err := s.body(w, c, maxObject, func(text []byte) (err error) {
		if vm, err = given(text, c.namespace); err != nil {
			err = apierrors.NewBadRequest(err.Error())
		}
		return err
	}); err != nil {
		return err
	}
	expanded, err := expand(c.Context(), s.cluster.readFor(c.user), vm)
	if err != nil {
		return notExpanded(err)
	}
	callers.Write(w, http.StatusOK, expanded)
	return nil
}

// notExpanded turns an error into a bad request, as KubeVirt does. Network errors and the API
// server's errors stay as they are, except NotFound and Invalid, which are the request's fault.
func notExpanded(err error) error {
	var status apierrors.APIStatus
	var network *url.Error
	switch {
	case errors.As(err, &status) && (apierrors.IsNotFound(err) || apierrors.IsInvalid(err)):
	case status != nil, errors.As(err, &network):
		return err
	}
	return apierrors.NewBadRequest(err.Error())
}

// notValid is KubeVirt's text for a body that is no VirtualMachine.
const notValid = "Object is not a valid VirtualMachine"

// given reads a VirtualMachine, as JSON or YAML. It drops unknown fields, as the API server
// does: KubeVirt's client sends fields that Kubeqemu does not have.
func given(text []byte, namespace string) (*v1.VirtualMachine, error) {
	vm := &v1.VirtualMachine{}
	if len(text) == 0 {
		return nil, errors.New("empty request body")
	}
	raw, err := asJSON(text)
	if err == nil {
		err = admission.CheckReadable(raw)
	}
	if err == nil {
		err = json.Unmarshal(raw, vm)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", notValid, err)
	}
	kind := vm.GroupVersionKind()
	if kind.Version == v1.OlderVersion {
		kind.Version = v1.GroupVersion.Version // the same under an older name
	}
	if !kind.Empty() && kind != v1.VirtualMachineGroupVersionKind {
		return nil, fmt.Errorf("%s: it is a %s", notValid, kind)
	}
	vm.APIVersion = v1.GroupVersion.String()
	if vm.Namespace != "" && vm.Namespace != namespace {
		return nil, fmt.Errorf("VM namespace must be empty or %s", namespace)
	}
	vm.Namespace = namespace
	return vm, nil
}

// expand returns a copy of the VM with its instancetype and preference applied, and checks nothing of it, as in KubeVirt. The copy names
// neither of them any more: a VM that names them beside their values would be refused.
func expand(ctx context.Context, read choice.Get, vm *v1.VirtualMachine) (*v1.VirtualMachine, error) {
	chosen, err := choice.Find(ctx, read, vm)
	if err != nil {
		return nil, err
	}
	expanded, errs := chosen.Expand(vm)
	if len(errs) > 0 {
		return nil, errors.New(instancetype.ConflictText(errs))
	}
	if expanded == vm {
		expanded = vm.DeepCopy()
	}
	expanded.Spec.Instancetype, expanded.Spec.Preference = nil, nil
	expanded.Status.InstancetypeRef, expanded.Status.PreferenceRef = nil, nil
	expanded.SetGroupVersionKind(v1.VirtualMachineGroupVersionKind)
	return expanded, nil
}

// resourceOf returns the resource of an object that expand reads, and whether it is
// cluster-scoped.
func resourceOf(object choice.Object) (resource schema.GroupVersionResource, ofCluster bool) {
	switch o := object.(type) {
	case *unstructured.Unstructured:
		kind := o.GroupVersionKind()
		resource, _ = meta.UnsafeGuessKindToResource(kind) // of DataVolume, DataSource and VolumeSnapshot it is the lower-case plural
		return resource, false
	case *v1beta1.VirtualMachineInstancetype:
		return v1beta1.GroupVersion.WithResource("virtualmachineinstancetypes"), false
	case *v1beta1.VirtualMachinePreference:
		return v1beta1.GroupVersion.WithResource("virtualmachinepreferences"), false
	case *v1beta1.VirtualMachineClusterInstancetype:
		return v1beta1.GroupVersion.WithResource("virtualmachineclusterinstancetypes"), true
	case *v1beta1.VirtualMachineClusterPreference:
		return v1beta1.GroupVersion.WithResource("virtualmachineclusterpreferences"), true
	case *appsv1.ControllerRevision:
		return appsv1.SchemeGroupVersion.WithResource("controllerrevisions"), false
	default:
		return corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), false
	}
}

// read reads an object that a VM is expanded with, with virt-api's own rights.
func (c *cluster) read(ctx context.Context, key types.NamespacedName, into choice.Object) error {
	resource, _ := resourceOf(into)
	if err := aName(key, resource); err != nil {
		return err
	}
	path := []string{"/apis", resource.Group, resource.Version}
	if resource.Group == "" {
		path = []string{"/api", resource.Version}
	}
	if key.Namespace != "" {
		path = append(path, "namespaces", key.Namespace)
	}
	return c.client.Get().AbsPath(append(path, resource.Resource, key.Name)...).Do(ctx).Into(into)
}

// aName refuses a name that would lead to another object's path, such as ../x. No object has
// such a name.
func aName(key types.NamespacedName, resource schema.GroupVersionResource) error {
	if len(content.IsPathSegmentName(key.Name)) > 0 {
		return apierrors.NewNotFound(resource.GroupResource(), key.Name)
	}
	return nil
}

// ReadFor reads what a VM of a user's is expanded with, as readFor does.
func (s *Server) ReadFor(user authenticationv1.UserInfo) choice.Get {
	extra := map[string][]string{}
	for key, values := range user.Extra {
		extra[key] = values
	}
	return s.cluster.readFor(callers.User{Name: user.Username, Groups: user.Groups, Extra: extra})
}

// readFor reads objects with virt-api's rights, but only those that the user may get: virt-api
// must not reveal objects that RBAC keeps from the user. Cluster-scoped instancetypes and
// preferences are for all who have VMs.
func (c *cluster) readFor(who callers.User) choice.Get {
	return c.readFrom(who, "")
}

// readFrom does as readFor, but reads every object of the namespace open. That is the namespace of a VM that exists: virt-controller shows
// in the VM's status what it finds there. Objects of other namespaces may be closed to the VM's owner, who can name them in the VM.
func (c *cluster) readFrom(who callers.User, open string) choice.Get {
	return func(ctx context.Context, key types.NamespacedName, into choice.Object) error {
		resource, ofCluster := resourceOf(into)
		if err := aName(key, resource); err != nil {
			return err
		}
		if !ofCluster && key.Namespace != open {
			err := c.rights.Check(ctx, who, &callers.Attributes{Verb: "get", Group: resource.Group, Version: resource.Version, Resource: resource.Resource, Namespace: key.Namespace, Name: key.Name})
			if err != nil {
				return err
			}
		}
		return c.read(ctx, key, into)
	}
}
