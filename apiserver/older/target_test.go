package older

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestAuthorizedRequestIsTheOneDone: what the API server is asked about, and what it is told to do, are the same.
func TestAuthorizedRequestIsTheOneDone(t *testing.T) {
	const root, pools, types = "/apis/kubevirt.io/v1alpha3", "/apis/pool.kubevirt.io/v1alpha1", "/apis/instancetype.kubevirt.io/v1alpha2"
	for _, c := range []struct{ method, address, right, current string }{
		{"GET", root + "/virtualmachines", "list virtualmachines", "/apis/kubevirt.io/v1/virtualmachines?"},
		{"GET", root + "/virtualmachines?watch=true&resourceVersion=7", "watch virtualmachines", "/apis/kubevirt.io/v1/virtualmachines?resourceVersion=7&watch=true"},
		{"GET", root + "/namespaces/ns/virtualmachines?watch", "watch virtualmachines in ns", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines?watch=true"},
		{"GET", root + "/namespaces/ns/virtualmachines?watch=no", "watch virtualmachines in ns", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines?watch=true"},
		{"GET", root + "/namespaces/ns/virtualmachines?watch=False&watch=true", "list virtualmachines in ns", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines?"},
		{"GET", root + "/namespaces/ns/virtualmachines?fieldSelector=metadata.name%3Da", "list virtualmachines a in ns", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines?fieldSelector=metadata.name%3Da"},
		{"GET", root + "/namespaces/ns/virtualmachines?fieldSelector=metadata.name!%3Da", "list virtualmachines in ns", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines?fieldSelector=metadata.name%21%3Da"},
		{"GET", root + "/namespaces/ns/virtualmachines/a?watch=true", "get virtualmachines a in ns", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines/a?"},
		{"POST", root + "/namespaces/ns/virtualmachines?dryRun=All&fieldSelector=metadata.name%3Da", "create virtualmachines in ns", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines?dryRun=All&fieldSelector=metadata.name%3Da"},
		{"PUT", root + "/namespaces/ns/virtualmachineinstances/a.b", "update virtualmachineinstances a.b in ns", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstances/a.b?"},
		{"PATCH", root + "/namespaces/ns/kubevirts/a?force=true", "patch kubevirts a in ns", "/apis/kubevirt.io/v1/namespaces/ns/kubevirts/a?force=true"},
		{"DELETE", root + "/namespaces/ns/virtualmachineinstancepresets/a", "delete virtualmachineinstancepresets a in ns", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstancepresets/a?"},
		{"DELETE", root + "/namespaces/ns/virtualmachines?fieldSelector=metadata.name%3Da", "deletecollection virtualmachines in ns", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines?fieldSelector=metadata.name%3Da"},
		{"DELETE", root + "/namespaces/ns/virtualmachines", "deletecollection virtualmachines in ns", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines?"},
		{"GET", pools + "/namespaces/ns/virtualmachinepools/a/scale", "get virtualmachinepools/scale a in ns", "/apis/pool.kubevirt.io/v1beta1/namespaces/ns/virtualmachinepools/a/scale?"},
		{"PATCH", root + "/namespaces/ns/virtualmachineinstancereplicasets/a/scale", "patch virtualmachineinstancereplicasets/scale a in ns", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstancereplicasets/a/scale?"},
		{"POST", types + "/virtualmachineclusterinstancetypes", "create virtualmachineclusterinstancetypes", "/apis/instancetype.kubevirt.io/v1beta1/virtualmachineclusterinstancetypes?"},
		{"DELETE", strings.Replace(types, "2", "1", 1) + "/virtualmachineclusterpreferences/a", "delete virtualmachineclusterpreferences a", "/apis/instancetype.kubevirt.io/v1beta1/virtualmachineclusterpreferences/a?"},
	} {
		address, err := url.Parse(c.address)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parse(c.method, address)
		if err != nil {
			t.Errorf("%s %s: %v", c.method, c.address, err)
			continue
		}
		a := got.attributes()
		right := a.Verb + " " + strings.TrimSuffix(a.Resource+"/"+a.Subresource, "/")
		if a.Name != "" {
			right += " " + a.Name
		}
		if a.Namespace != "" {
			right += " in " + a.Namespace
		}
		path, query := got.current()
		if right != c.right || path+"?"+query != c.current || a.Group != got.version.Group {
			t.Errorf("%s %s: %s, %s?%s; want %s, %s", c.method, c.address, right, path, query, c.right, c.current)
		}
	}
}

// TestUnservedPathHasNoRightToAsk: what is served by nothing has no right that could be asked about.
func TestUnservedPathHasNoRightToAsk(t *testing.T) {
	const root = "/apis/kubevirt.io/v1alpha3"
	for _, c := range []struct {
		method, path string
		refused      func(error) bool
	}{
		{"GET", "/apis/kubevirt.io/v1/virtualmachines", apierrors.IsNotFound},
		{"GET", "/apis/kubevirt.io/v1alpha33/virtualmachines", apierrors.IsNotFound},
		{"GET", "/apis/pool.kubevirt.io/v1alpha3/virtualmachinepools", apierrors.IsNotFound},
		{"GET", root + "/secrets", apierrors.IsNotFound},
		{"GET", root + "/virtualmachinepools", apierrors.IsNotFound},
		{"GET", root + "/watch/virtualmachines", apierrors.IsNotFound},
		{"GET", root + "/namespaces/ns", apierrors.IsNotFound},
		{"GET", root + "/namespaces//virtualmachines", apierrors.IsNotFound},
		{"GET", root + "/namespaces/ns/virtualmachines/", apierrors.IsNotFound},
		{"GET", root + "/namespaces/ns/virtualmachines/a/", apierrors.IsNotFound},
		{"GET", root + "/namespaces/ns/virtualmachines/../secrets", apierrors.IsNotFound},
		{"GET", root + "/namespaces/ns/virtualmachines/%2e%2e", apierrors.IsNotFound},
		{"GET", root + "/namespaces/ns/virtualmachines/a%2fb", apierrors.IsNotFound},
		{"GET", root + "/namespaces/n%73/virtualmachines", apierrors.IsNotFound},
		{"GET", root + "/namespaces/ns/virtualmachines/a/status", apierrors.IsNotFound},
		{"GET", root + "/namespaces/ns/virtualmachines/a/scale", apierrors.IsNotFound},
		{"GET", root + "/virtualmachines/a", apierrors.IsNotFound},
		{"GET", "/apis/instancetype.kubevirt.io/v1alpha1/namespaces/ns/virtualmachineclusterpreferences/a", apierrors.IsNotFound},
		{"GET", root + "//virtualmachines", apierrors.IsNotFound},
		{"DELETE", root + "/virtualmachines", apierrors.IsMethodNotSupported},
		{"POST", root + "/virtualmachines", apierrors.IsMethodNotSupported},
		{"POST", root + "/namespaces/ns/virtualmachines/a", apierrors.IsMethodNotSupported},
		{"PUT", root + "/namespaces/ns/virtualmachines", apierrors.IsMethodNotSupported},
		{"DELETE", root + "/namespaces/ns/virtualmachineinstancereplicasets/a/scale", apierrors.IsMethodNotSupported},
		{"HEAD", root + "/namespaces/ns/virtualmachines", apierrors.IsMethodNotSupported},
		{"CONNECT", root + "/namespaces/ns/virtualmachines/a", apierrors.IsMethodNotSupported},
		{http.MethodGet, root + "/namespaces/ns/virtualmachines?a=%zz", apierrors.IsBadRequest},
	} {
		address, err := url.Parse(c.path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parse(c.method, address); !c.refused(err) {
			t.Errorf("%s %s: %+v, %v", c.method, c.path, got, err)
		}
	}
}

func FuzzTarget(f *testing.F) {
	f.Add("GET", "/apis/kubevirt.io/v1alpha3/namespaces/ns/virtualmachines/a?watch=true")
	f.Add("PATCH", "/apis/pool.kubevirt.io/v1alpha1/namespaces/ns/virtualmachinepools/a/scale")
	f.Fuzz(func(t *testing.T, method, text string) {
		address, err := url.ParseRequestURI(text)
		if err != nil {
			return
		}
		got, err := parse(method, address)
		if err != nil {
			return
		}
		// The request in the current version needs the same right, and no other.
		path, query := got.current()
		if strings.ContainsAny(path, "%?#") || strings.Contains(path, "..") || strings.Contains(path, "//") {
			t.Fatalf("%q becomes %q", text, path)
		}
		back := strings.Replace(path, got.version.current(), got.version.older(), 1)
		again, err := parse(method, &url.URL{Path: back, RawQuery: query})
		if err != nil || *again.attributes() != *got.attributes() {
			t.Fatalf("%q becomes %q?%q: %+v, %+v, %v", text, path, query, got.attributes(), again.attributes(), err)
		}
	})
}
