package datavolume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

var (
	// ErrUnauthorized means that a VM's service account may not clone what a template names.
	ErrUnauthorized = errors.New("not authorized")
	// ErrUnresolved means that a DataSource is missing, or leads nowhere.
	ErrUnresolved = errors.New("sourceRef cannot be resolved")
)

// Source is a claim or a VolumeSnapshot that a DataVolume is cloned from.
type Source struct {
	kind            string // "pvc" or "snapshot", as in a DataVolume's source
	namespace, name string
	// labels of DataSources that name an instancetype or a preference. The DataVolume gets them,
	// because it does not name the DataSource any more.
	labels map[string]string
}

// Cloner finds what a VM's templates clone, and holds the VM to the rights of its service account.
// CDI checks virt-controller's rights alone, and virt-controller may clone from any namespace.
type Cloner struct {
	// Live reads DataSources past any cache.
	Live client.Reader
	// Client creates SubjectAccessReviews.
	Client client.Writer
}

// Source returns what a template's DataVolume is cloned from, or nil if it is filled otherwise. An
// error of ErrUnauthorized names the account, the namespace and the missing right.
func (c *Cloner) Source(ctx context.Context, vm *v1.VirtualMachine, template *v1.DataVolumeTemplate) (*Source, error) {
	fields, err := template.Fields()
	if err != nil {
		return nil, err
	}
	if ref := reference(fields, "sourceRef", vm.Namespace); ref.Name != "" {
		return c.throughDataSource(ctx, vm, ref)
	}
	source := cloned(fields, "source", vm.Namespace)
	if source == nil {
		return nil, nil
	}
	return source, c.mayClone(ctx, vm, source)
}

// throughDataSource returns what a DataSource leads to. The DataSource may be in a namespace that
// is closed to the VM's account. Then all refusals read alike, lest the account learn what is there.
func (c *Cloner) throughDataSource(ctx context.Context, vm *v1.VirtualMachine, ref types.NamespacedName) (*Source, error) {
	source, err := c.follow(ctx, ref)
	if err == nil {
		err = c.mayClone(ctx, vm, source)
	}
	if !errors.Is(err, ErrUnauthorized) && !errors.Is(err, ErrUnresolved) {
		return source, err
	}
	switch closed := c.mayClone(ctx, vm, &Source{kind: "pvc", namespace: ref.Namespace, name: ref.Name}); {
	case closed == nil:
		return nil, err
	case !errors.Is(closed, ErrUnauthorized):
		return nil, closed
	}
	return nil, fmt.Errorf("%w: DataSource %s does not exist, or leads to no source that service account %s of namespace %s may clone: the account needs the right to %s in the source's namespace",
		ErrUnauthorized, ref, Account(vm), vm.Namespace, rights("pvc")[0][0])
}

// cloned is the claim or the snapshot that a source names, or nil.
func cloned(object map[string]any, field, home string) *Source {
	of, _, _ := unstructured.NestedMap(object, field)
	for _, kind := range []string{"pvc", "snapshot"} {
		if of[kind] != nil {
			at := reference(of, kind, home)
			return &Source{kind: kind, namespace: at.Namespace, name: at.Name}
		}
	}
	return nil
}

// reference is the name that a field has, in the namespace that it has, or else in home.
func reference(object map[string]any, field, home string) types.NamespacedName {
	name, _, _ := unstructured.NestedString(object, field, "name")
	namespace, _, _ := unstructured.NestedString(object, field, "namespace")
	return types.NamespacedName{Namespace: cmp.Or(namespace, home), Name: name}
}

// maxDataSources bounds how many DataSources lead to one another. CDI permits two.
const maxDataSources = 4

// follow resolves a DataSource. A DataSource leads to DataSources of its own namespace only.
func (c *Cloner) follow(ctx context.Context, at types.NamespacedName) (*Source, error) {
	labels := map[string]string{}
	for range maxDataSources {
		object, err := get(ctx, c.Live, "DataSource", at)
		if err != nil {
			return nil, err
		}
		if object == nil {
			return nil, fmt.Errorf("%w: DataSource %s does not exist", ErrUnresolved, at)
		}
		inherit(labels, object.GetLabels())
		spec, _, _ := unstructured.NestedMap(object.Object, "spec")
		if source := cloned(spec, "source", at.Namespace); source != nil && source.name != "" {
			if source.namespace == at.Namespace { // else nobody has checked what the account may know of it
				source.labels = labels
			}
			return source, nil
		}
		of, _, _ := unstructured.NestedMap(spec, "source")
		next := reference(of, "dataSource", at.Namespace)
		switch {
		case next.Name == "":
			return nil, fmt.Errorf("%w: DataSource %s names no claim, VolumeSnapshot or DataSource", ErrUnresolved, at)
		case next.Namespace != at.Namespace:
			return nil, fmt.Errorf("%w: DataSource %s leads to a DataSource of another namespace", ErrUnresolved, at)
		}
		at = next
	}
	return nil, fmt.Errorf("%w: DataSource %s is the last of more than %d", ErrUnresolved, at, maxDataSources)
}

// inherit copies a DataSource's labels that name an instancetype or a preference, unless a
// DataSource before it named one. A name and its kind come from the same DataSource.
func inherit(labels, from map[string]string) {
	for _, what := range []string{"instancetype", "preference"} {
		name := "instancetype.kubevirt.io/default-" + what
		if labels[name] != "" || from[name] == "" {
			continue
		}
		labels[name] = from[name]
		if kind := from[name+"-kind"]; kind != "" {
			labels[name+"-kind"] = kind
		}
	}
}

// right is one of the rights to clone, in the source's namespace.
type right struct{ group, resource, subresource string }

func (r right) String() string {
	return "create " + strings.TrimSuffix(strings.TrimSuffix(r.resource+"/"+r.subresource, "/")+"."+r.group, ".")
}

// rights are the sets of rights of which an account needs one. They are CDI's.
func rights(kind string) [][]right {
	cloning := right{"cdi.kubevirt.io", "datavolumes", "source"}
	if kind == "snapshot" {
		return [][]right{{cloning}, {{resource: "pods"}, {resource: "persistentvolumeclaims"}}}
	}
	return [][]right{{cloning}, {{resource: "pods"}}}
}

// Account is the service account that a VM runs as.
func Account(vm *v1.VirtualMachine) string {
	return cmp.Or(vm.Spec.Template.Spec.PodServiceAccount(), "default")
}

// mayClone returns an error of ErrUnauthorized if the VM's account may not clone the source. It may
// clone everything of the VM's namespace.
func (c *Cloner) mayClone(ctx context.Context, vm *v1.VirtualMachine, source *Source) error {
	if source.namespace == vm.Namespace {
		return nil
	}
	sets := rights(source.kind)
	for _, set := range sets {
		allowed, err := c.all(ctx, vm, source, set)
		if err != nil || allowed {
			return err
		}
	}
	return fmt.Errorf("%w: service account %s of namespace %s may not clone from namespace %s: the account needs the right to %s there, or to %s",
		ErrUnauthorized, Account(vm), vm.Namespace, source.namespace, sets[0][0], strings.Join(texts(sets[1]), " and "))
}

// MayKnow returns an error of ErrUnauthorized if the VM's account may not clone an object of a kind. Then a VM's owner must not learn from virt-controller
// whether the object exists, or what its labels say. The DataVolumes that exist were checked as they were made: MayKnow is for what a template names.
func (c *Cloner) MayKnow(ctx context.Context, vm *v1.VirtualMachine, kind string, at types.NamespacedName) error {
	source := &Source{kind: "pvc", namespace: at.Namespace, name: at.Name}
	if kind == "VolumeSnapshot" {
		source.kind = "snapshot"
	}
	return c.mayClone(ctx, vm, source)
}

func texts(set []right) []string {
	var all []string
	for _, r := range set {
		all = append(all, r.String())
	}
	return all
}

// all says whether the account has every right of a set.
func (c *Cloner) all(ctx context.Context, vm *v1.VirtualMachine, source *Source, set []right) (bool, error) {
	for _, r := range set {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   "system:serviceaccount:" + vm.Namespace + ":" + Account(vm),
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + vm.Namespace, "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "create", Group: r.group, Resource: r.resource, Subresource: r.subresource,
				Namespace: source.namespace, Name: source.name},
		}}
		if err := c.Client.Create(ctx, review); err != nil {
			return false, fmt.Errorf("ask for the rights of service account %s: %w", Account(vm), err)
		}
		if !review.Status.Allowed {
			return false, nil
		}
	}
	return true, nil
}
