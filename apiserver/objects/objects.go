// Package objects watches and writes the few objects that virt-api needs.
//
// client-go's typed clients and controller-runtime register every kind of Kubernetes. That
// doubles the binary and costs 18 MiB of memory. virt-api uses little of them, and this package
// replaces it.
package objects

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Resource names the objects to watch: a resource, optionally in one namespace, with one
// name or with labels.
type Resource struct {
	schema.GroupVersionResource
	// Namespace is empty for cluster-scoped kinds, and for all namespaces.
	Namespace string
	// Name of the only object; empty for all.
	Name string
	// Labels that the objects have, such as a=b; empty for all.
	Labels string
}

// Watched is a cache of a resource's objects, as the watch last saw them.
type Watched[T any, P object[T]] struct {
	resource Resource
	client   rest.Interface
	store    cache.Store
	informer cache.Controller
}

type object[T any] interface {
	*T
	runtime.Object
	metav1.Object
}

// Watch makes a Watched, which watches nothing before Run. changed is called after every
// change.
func Watch[T any, P object[T]](config *rest.Config, scheme *runtime.Scheme, resource Resource, changed func()) (*Watched[T, P], error) {
	config = rest.CopyConfig(config)
	group := resource.GroupVersion()
	config.GroupVersion, config.APIPath = &group, "/apis"
	if group.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client for %s: %w", resource.Resource, err)
	}
	// RBAC grants a list or watch of one name (resourceNames) only if the request selects that
	// metadata.name.
	selector := fields.Everything()
	if resource.Name != "" {
		selector = fields.OneTermEqualSelector("metadata.name", resource.Name)
	}
	w := &Watched[T, P]{resource: resource, client: client}
	w.store, w.informer = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewFilteredListWatchFromClient(client, resource.Resource, resource.Namespace, func(o *metav1.ListOptions) {
			o.FieldSelector, o.LabelSelector = selector.String(), resource.Labels
		}),
		ObjectType: P(new(T)),
		Transform:  withoutManagedFields,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
		},
	})
	return w, nil
}

// withoutManagedFields drops managedFields: they are larger than most objects, and nothing here
// reads them. An update without managedFields changes none.
func withoutManagedFields(o any) (any, error) {
	if object, ok := o.(metav1.Object); ok {
		object.SetManagedFields(nil)
	}
	return o, nil
}

// Run watches until ctx ends.
func (w *Watched[T, P]) Run(ctx context.Context) { w.informer.RunWithContext(ctx) }

// HasSynced says whether the first list of objects has arrived.
func (w *Watched[T, P]) HasSynced() bool { return w.informer.HasSynced() }

// All returns copies of the objects.
func (w *Watched[T, P]) All() []T {
	var all []T
	for _, o := range w.store.List() {
		all = append(all, *o.(P).DeepCopyObject().(P))
	}
	return all
}

// Get returns a copy of the only object, or nil.
func (w *Watched[T, P]) Get() P {
	for _, o := range w.store.List() {
		if o := o.(P); o.GetName() == w.resource.Name {
			return o.DeepCopyObject().(P)
		}
	}
	return nil
}

// Update writes an object. It fails with a conflict if the object has changed since it was
// read.
func (w *Watched[T, P]) Update(ctx context.Context, o P) error {
	err := w.client.Put().NamespaceIfScoped(w.resource.Namespace, w.resource.Namespace != "").
		Resource(w.resource.Resource).Name(o.GetName()).Body(runtime.Object(o)).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("update %s %s: %w", w.resource.Resource, o.GetName(), err)
	}
	return nil
}
