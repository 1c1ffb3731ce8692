// Package listing reads the objects of a namespace from the API server, of a kind that tenants
// make. A tenant decides how many there are and how large they are. So a Reader reads a bounded
// number of bytes, and what one namespace has costs the others nothing. A Reader caches no
// objects: it sees what was made just before. It remembers for some seconds that a namespace
// could not be read.
package listing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	kjson "sigs.k8s.io/json"
)

var (
	// ErrTooMany means that a namespace has more objects than are read, or larger objects.
	ErrTooMany = errors.New("too many objects")
	// ErrSlow means that the API server did not list a namespace's objects in time.
	ErrSlow = errors.New("slow list")
	// ErrMalformed means that an object does not have the fields of its kind.
	ErrMalformed = errors.New("malformed object")
)

const (
	// timeout bounds one reading. It is less than a webhook has.
	timeout = 4 * time.Second
	// page is how many objects the API server collects at once: each may have 1.5 MiB.
	page = 4
)

// Reader reads the objects of one kind.
type Reader[T any] struct {
	client   rest.Interface
	resource string
	// most bounds the objects of a namespace, and bytes their JSON.
	most  int
	bytes int64

	failures failures
}

// New makes a Reader. most bounds the objects of a namespace, and bytes their JSON.
func New[T any](config *rest.Config, resource schema.GroupVersionResource, most int, bytes int64, c clock.PassiveClock) (*Reader[T], error) {
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
	return &Reader[T]{client: client, resource: resource.Resource, most: most, bytes: bytes, failures: failures{clock: c}}, nil
}

// Any says whether there is an object in a namespace. A cluster that does not know the kind has none.
func (r *Reader[T]) Any(ctx context.Context, namespace string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	text, err := r.read(ctx, namespace, 1, "", r.bytes)
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
// After ErrTooMany or ErrSlow, the namespace is not listed for a while, and In returns the same
// error.
func (r *Reader[T]) In(ctx context.Context, namespace string) ([]T, error) {
	if err := r.failures.begin(namespace); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found, err := r.all(limited, namespace)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: the API server did not list the %s of the namespace %q within %v", ErrSlow, r.resource, namespace, timeout)
	}
	r.failures.end(namespace, err)
	return found, err
}

// all reads page by page, so that the API server collects little more than is read.
func (r *Reader[T]) all(ctx context.Context, namespace string) ([]T, error) {
	var all []T
	left, after := r.bytes, ""
	for {
		text, err := r.read(ctx, namespace, page, after, left)
		switch {
		case apierrors.IsNotFound(err):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("list %s: %w", r.resource, err)
		}
		if left -= int64(len(text)); left < 0 {
			return nil, fmt.Errorf("%w: together, the %s of the namespace %q have more than %d KiB; make them smaller, or delete some",
				ErrTooMany, r.resource, namespace, r.bytes>>10)
		}
		var list struct {
			metav1.ListMeta `json:"metadata"`
			Items           []json.RawMessage `json:"items"`
		}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &list); err != nil {
			return nil, fmt.Errorf("read list of %s: %w", r.resource, err)
		}
		if len(all)+len(list.Items) > r.most {
			return nil, fmt.Errorf("%w: the namespace %q has more than %d %s; delete some", ErrTooMany, namespace, r.most, r.resource)
		}
		for _, item := range list.Items {
			object, err := r.decode(item)
			if err != nil {
				return nil, err
			}
			all = append(all, object)
		}
		if after = list.Continue; after == "" {
			return all, nil
		}
	}
}

func (r *Reader[T]) decode(text []byte) (object T, err error) {
	if err = kjson.UnmarshalCaseSensitivePreserveInts(text, &object); err == nil {
		return object, nil
	}
	var named struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	_ = kjson.UnmarshalCaseSensitivePreserveInts(text, &named) // without a name, the error has none
	const most = 200                                           // an error quotes numbers of any length
	why := err.Error()
	if len(why) > most {
		why = strings.ToValidUTF8(why[:most], "") + "…"
	}
	return object, fmt.Errorf("%w: read %q of %s: %s; correct or delete it", ErrMalformed, named.Metadata.Name, r.resource, why)
}

// read returns a page of a list as JSON. after is the API server's token of the page before. It
// ends when it has read one byte more than most.
func (r *Reader[T]) read(ctx context.Context, namespace string, limit int, after string, most int64) ([]byte, error) {
	if namespace == "" {
		return nil, errors.New("a namespace must be named") // otherwise the list would be of all
	}
	request := r.client.Get().Namespace(namespace).Resource(r.resource).Param("limit", strconv.Itoa(limit))
	if after != "" {
		request = request.Param("continue", after)
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(io.LimitReader(body, most+1))
}
