package older

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
)

// target has the parts of a request's path and query. virt-api makes both of the target alone: the
// question whether the user may, and the request in the current version.
type target struct {
	version                      Version
	resource                     resource
	namespace, name, subresource string
	verb                         string // RBAC's verb
	query                        url.Values
}

// under returns the version whose root a path lies under, and the rest of the path.
func under(path string) (v Version, rest string, ok bool) {
	for _, v := range Versions() {
		if rest, ok := strings.CutPrefix(path, "/apis/"+v.older()); ok && (rest == "" || rest[0] == '/') {
			return v, rest, true
		}
	}
	return Version{}, "", false
}

// parse reads the path, as the client sent it, and the query of a request. A path in another spelling,
// with escapes or with empty or dotted parts, is a NotFound.
func parse(method string, address *url.URL) (target, error) {
	v, rest, ok := under(address.EscapedPath())
	t := target{version: v}
	if !ok || !t.path(rest) {
		return target{}, callers.NoRoute(method, v.Group)
	}
	if t.verb = t.verbOf(method); t.verb == "" {
		return target{}, apierrors.NewMethodNotSupported(schema.GroupResource{Group: v.Group, Resource: t.resource.plural}, strings.ToLower(method))
	}
	var err error
	if t.query, err = url.ParseQuery(address.RawQuery); err != nil {
		return target{}, apierrors.NewBadRequest(fmt.Sprintf("read the request's query: %v", err))
	}
	t.choose()
	return t, nil
}

// path reads the path under the version's root.
func (t *target) path(rest string) bool {
	parts := strings.Split(strings.TrimPrefix(rest, "/"), "/")
	if len(parts) >= 3 && parts[0] == "namespaces" {
		t.namespace, parts = parts[1], parts[2:]
		if len(validation.ValidateNamespaceName(t.namespace, false)) > 0 {
			return false
		}
	}
	at := slices.IndexFunc(resources(), func(r resource) bool { return r.group == t.version.Group && r.plural == parts[0] })
	if at < 0 || len(parts) > 3 {
		return false
	}
	t.resource = resources()[at]
	if len(parts) > 1 {
		if t.name = parts[1]; len(validation.NameIsDNSSubdomain(t.name, false)) > 0 {
			return false
		}
	}
	if len(parts) > 2 {
		if t.subresource = parts[2]; t.subresource != "scale" || !t.resource.scale {
			return false
		}
	}
	// An object is in a namespace, or in none. A list may be of all namespaces.
	return (t.namespace == "") == t.resource.cluster || t.namespace == "" && t.name == ""
}

// verbOf returns RBAC's verb for a method, or "". Later, choose makes a watch of some lists.
func (t *target) verbOf(method string) string {
	of, ofAll := map[string]string{http.MethodGet: "get", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"},
		map[string]string{http.MethodGet: "list", http.MethodPost: "create", http.MethodDelete: "deletecollection"}
	switch {
	case t.subresource != "" && method == http.MethodDelete, t.namespace == "" && !t.resource.cluster && method != http.MethodGet:
		return ""
	case t.name != "":
		return of[method]
	}
	return ofAll[method]
}

// choose says whether a list is a watch, as the API server does (k8s.io/apiserver, RequestInfo).
func (t *target) choose() {
	watch, asked := t.query["watch"]
	t.query.Del("watch")
	if t.verb == "list" && asked && !slices.Contains([]string{"0", "false"}, strings.ToLower(watch[0])) {
		t.verb = "watch"
		t.query.Set("watch", "true")
	}
}

// reads says whether the request changes nothing.
func (t *target) reads() bool { return t.verb == "get" || t.verb == "list" || t.verb == "watch" }

// attributes are the target in RBAC's words. A right to one name covers a list and a watch that
// select the name, as in the API server.
func (t *target) attributes() *callers.Attributes {
	name := t.name
	if t.verb == "list" || t.verb == "watch" {
		if selector, err := fields.ParseSelector(t.query.Get("fieldSelector")); err == nil {
			if only, ok := selector.RequiresExactMatch("metadata.name"); ok && len(content.IsPathSegmentName(only)) == 0 {
				name = only
			}
		}
	}
	return &callers.Attributes{Namespace: t.namespace, Verb: t.verb, Group: t.version.Group, Version: t.version.Older, Resource: t.resource.plural,
		Subresource: t.subresource, Name: name}
}

// also returns a further right to the target, which a change may need.
func (t *target) also(verb string) *callers.Attributes {
	attributes := t.attributes()
	attributes.Verb = verb
	return attributes
}

// wider returns the rights that a user needs besides the right to the target itself. A KubeVirt configures the whole
// cluster, whatever namespace it is in. So who changes a KubeVirt in another namespace needs the same right in the
// components' namespace. virt-api asks for it here: the policy kubevirt-anywhere sees Account in the user's place,
// and Account has the right. mayCreate says that the request may create its object.
func (t *target) wider(mayCreate bool) (all []*callers.Attributes) {
	if t.resource.plural != "kubevirts" || t.namespace == v1.KubeVirtNamespace {
		return nil
	}
	verbs := map[string][]string{"create": {"create"}, "update": {"update"}, "patch": {"update"}}[t.verb]
	if t.verb == "patch" && mayCreate {
		verbs = []string{"create", "update"}
	}
	for _, verb := range verbs {
		all = append(all, &callers.Attributes{Namespace: v1.KubeVirtNamespace, Verb: verb, Group: t.version.Group, Version: t.version.Older, Resource: t.resource.plural})
	}
	return all
}

// current is the path and query of the target in the current version.
func (t *target) current() (path, query string) {
	parts := []string{"/apis", t.version.Group, t.version.Current}
	if t.namespace != "" {
		parts = append(parts, "namespaces", t.namespace)
	}
	for _, part := range []string{t.resource.plural, t.name, t.subresource} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "/"), t.query.Encode()
}
