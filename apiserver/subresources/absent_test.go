package subresources

import (
	"net/http"
	"strings"
	"testing"
)

// TestAbsentEndpointsOfKubeVirtAreNamed: virt-api names what an endpoint of KubeVirt's would do, and asks RBAC nothing.
func TestAbsentEndpointsOfKubeVirtAreNamed(t *testing.T) {
	s := serve(t)
	for _, a := range absences() {
		path := root + "/" + a.name
		if resource, sub, ok := strings.Cut(a.name, "/"); ok {
			path = root + "/namespaces/ns/" + resource + "/vm/" + sub
		}
		for _, e := range Table() {
			if e.Name() == a.name {
				t.Errorf("%s is served, and listed as absent", a.name)
			}
		}
		for _, path := range []string{path, strings.Replace(path, root, olderRoot, 1)} {
			for _, method := range []string{http.MethodGet, http.MethodPut} {
				code, status := s.ask(true, "ann", method, path, "")
				if code != http.StatusNotFound || status.Reason != "NotFound" || status.Message != a.name+" is not served: "+a.text || len(s.asked) > 0 {
					t.Errorf("%s %s: %d %+v, and RBAC was asked %v", method, path, code, status, s.asked)
				}
			}
		}
		if code, status := s.ask(false, "ann", http.MethodPut, path, ""); code != http.StatusUnauthorized || strings.Contains(status.Message, a.text) {
			t.Errorf("%s by a stranger: %d %s", path, code, status.Message)
		}
	}
}

// TestUnknownPathIsNoEndpoint: no other path is taken for an endpoint of KubeVirt's.
func TestUnknownPathIsNoEndpoint(t *testing.T) {
	s := serve(t)
	for _, path := range []string{
		root + "/memorydump", root + "/virtualmachines/memorydump", root + "/namespaces/ns/virtualmachines/memorydump", root + "/namespaces/ns/virtualmachines/vm/memorydump/",
		root + "/namespaces/ns/virtualmachineinstances/vm/memorydump", root + "/namespaces/ns/virtualmachines/vm/more/memorydump", root + "/namespaces/ns/guestfs",
		root + "/namespaces/ns/virtualmachines/vm/%6demorydump", root + "//guestfs", "/apis/" + Group + "/v2/guestfs",
	} {
		if code, status := s.ask(true, "ann", http.MethodPut, path, ""); code != http.StatusNotFound || strings.Contains(status.Message, "is not served") {
			t.Errorf("%s: %d %s", path, code, status.Message)
		}
	}
}
