// Package listing reads the objects of a namespace from the API server, of a kind that tenants
// make. A tenant decides how many there are and how large they are. So a Reader reads a bounded
// number of bytes, and what one namespace has costs the others nothing. A Reader caches nothing:
// it sees what was made just before.
package listing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	kjson "sigs.k8s.io/json"
)

// ErrTooMany means that a namespace has more objects than are read, or larger objects.
var ErrTooMany = errors.New("too many objects")

// timeout bounds one reading. It is less than a webhook has.
const timeout = 4 * time.Second

// Reader reads the objects of one kind.
type Reader[T any] struct {
	client   rest.Interface
	resource string
	// most bounds the objects of a namespace, and bytes their JSON.
	most  int
	bytes int64
}

// New makes a Reader. most bounds the objects of a namespace, and bytes their JSON.
func New[T any](config *rest.Config, resource schema.GroupVersionResource, most int, bytes int64) (*Reader[T], error) {
	config = rest.CopyConfig(config)
	group := resource.GroupVersion()
	config.GroupVersion, config.APIPath = &group, "/apis"
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // errors are Statuses
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.QPS = -1                           // no limit here: the API server limits its clients itself
	config.WarningHandler = rest.NoWarnings{} // that a kind is deprecated is for its users to know
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client for %s: %w", resource.Resource, err)
	}
	return &Reader[T]{client, resource.Resource, most, bytes}, nil
}

// Any says whether there is an object in a namespace. A cluster that does not know the kind has none.
func (r *Reader[T]) Any(ctx context.Context, namespace string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	text, err := r.read(ctx, namespace, 1)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list %s: %w", r.resource, err)
	}
	if int64(len(text)) > r.bytes {
		return true, nil // an empty list is short
	}
	var list struct {
		Items []struct{} `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &list); err != nil {
		return false, fmt.Errorf("read list of %s: %w", r.resource, err)
	}
	return len(list.Items) > 0, nil
}

// In returns the objects of a namespace, by name. A cluster that does not know the kind has none.
func (r *Reader[T]) In(ctx context.Context, namespace string) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	text, err := r.read(ctx, namespace, r.most+1)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list %s: %w", r.resource, err)
	case int64(len(text)) > r.bytes:
		return nil, fmt.Errorf("%w: together, the %s of the namespace %q have more than %d KiB; make them smaller, or delete some",
			ErrTooMany, r.resource, namespace, r.bytes>>10)
	}
	var list struct {
		Items []T `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &list); err != nil {
		return nil, fmt.Errorf("read list of %s: %w", r.resource, err)
	}
	if len(list.Items) > r.most {
		return nil, fmt.Errorf("%w: the namespace %q has more than %d %s; delete some", ErrTooMany, namespace, r.most, r.resource)
	}
	return list.Items, nil
}

// read returns a list of some objects as JSON. It ends when it has read one byte too many.
func (r *Reader[T]) read(ctx context.Context, namespace string, limit int) ([]byte, error) {
	if namespace == "" {
		return nil, errors.New("a namespace must be named") // otherwise the list would be of all
	}
	body, err := r.client.Get().Namespace(namespace).Resource(r.resource).Param("limit", strconv.Itoa(limit)).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(io.LimitReader(body, r.bytes+1))
}
