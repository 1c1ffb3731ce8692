package subresources

import (
	"net/http"
	"strings"
	"testing"
)

// TestEachEndpointHasOneSpelling: every endpoint is found by its path, and by no other way to write
// it; what is authorized is what is served.
func TestEachEndpointHasOneSpelling(t *testing.T) {
	table := Table()
	for _, e := range table {
		path, want, name := e.Path("ns", "vm.1"), "", "vm.1"
		if e.Parameters > 0 {
			path, want = path+"/22/tcp", "22 tcp"
		}
		last := e.Subresource
		if last == "" {
			name, last = "", e.Resource
		}
		o, ok := route(table, e.Method, path)
		if !ok || o.endpoint.Resource != e.Resource || o.endpoint.Subresource != e.Subresource || o.namespace != "ns" || o.name != name || strings.Join(o.parameters, " ") != want {
			t.Errorf("%s %s: %+v, %v", e.Method, path, o, ok)
		}
		for _, other := range []string{
			path + "/", path + "//", path + "/more", "/" + path, strings.Replace(path, "/ns/", "//ns/", 1), strings.Replace(path, "/vm.1/", "/../vm.1/", 1),
			strings.Replace(path, "/vm.1/", "/vm.1/./", 1), strings.Replace(path, "/"+last, "%2f"+last, 1),
			strings.Replace(path, last, strings.ToUpper(last), 1), strings.Replace(path, last, "%"+"63onsole", 1),
			strings.Replace(path, "vm.1", "", 1), strings.Replace(path, "vm.1", "VM", 1), strings.Replace(path, "/ns/", "/n.s/", 1),
			strings.Replace(path, "/v1/", "/v1alpha3/", 1), strings.TrimSuffix(path, "/"+last), path + "%00", path + ";a=b",
		} {
			if other == path {
				continue
			}
			if o, ok := route(table, e.Method, other); ok && !(e.Parameters > 0 && strings.HasPrefix(other, path[:len(path)-len("/22/tcp")]) && len(o.parameters) <= 2) {
				t.Errorf("%s %s leads to %+v", e.Method, other, o)
			}
		}
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete, "put", ""} {
			if _, ok := route(table, method, path); ok != (method == e.Method) {
				t.Errorf("%s %s: %v", method, path, ok)
			}
		}
	}
}

// TestNoPathLeadsToTwoEndpoints: no path leads to two rows, and every row is served.
func TestNoPathLeadsToTwoEndpoints(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range Table() {
		key := e.Method + " " + e.Resource + "/" + e.Subresource
		if seen[key] || e.serve == nil {
			t.Errorf("%s is there twice, or not served", key)
		}
		seen[key] = true
		for _, other := range Table() {
			if other.Resource == e.Resource && other.Parameters > 0 && strings.HasPrefix(e.Subresource, other.Subresource+"/") {
				t.Errorf("%s hides %s", other.Subresource, e.Subresource)
			}
		}
	}
}

// FuzzRoute: whatever leads somewhere, leads there by the one path that names it.
func FuzzRoute(f *testing.F) {
	for _, e := range Table() {
		f.Add(e.Method, e.Path("ns", "name"))
		f.Add(e.Method, e.Path("ns", "name")+"/22/udp")
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		o, ok := route(Table(), method, path)
		if !ok {
			return
		}
		parts := append([]string{o.endpoint.Path(o.namespace, o.name)}, o.parameters...)
		if whole := strings.Join(parts, "/"); whole != path || o.endpoint.Method != method || strings.ContainsAny(o.namespace+o.name, "/%") {
			t.Errorf("%s %q is taken for %q", method, path, whole)
		}
	})
}
