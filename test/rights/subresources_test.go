package rights

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/apiserver/subresources"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

// TestSubresources: which role may use which endpoint of subresources.kubevirt.io,
// from the table that virt-api serves and authorizes by.
func TestSubresources(t *testing.T) {
	m := shipped(t)
	roles := []string{"admin", "edit", "view", "migrate", "default"}
	rights := map[string]map[string]bool{}
	for _, role := range roles {
		rights[role] = single(userRole(t, m, role).Rules)
	}
	var got strings.Builder
	for _, e := range subresources.Table() {
		var may []string
		// Of a path below the object, the API server asks RBAC about the first part alone.
		first := e.Resource
		if parent, _, below := strings.Cut(e.Subresource, "/"); below {
			first += "/" + parent
		}
		for _, role := range roles {
			if rights[role][e.Verb()+" "+subresources.Group+"/"+e.Name()] {
				may = append(may, role)
				if first != e.Resource && !rights[role][e.Verb()+" "+subresources.Group+"/"+first] {
					t.Errorf("%s may use %s, but not %s: the API server asks for that", role, e.Name(), first)
				}
			}
		}
		if len(may) == 0 {
			t.Errorf("%s is served, and nobody may use it", e.Name())
		}
		fmt.Fprintf(&got, "%-4s %s: %s %s\n", e.Method, e.Name(), e.Verb(), strings.Join(may, ","))
	}
	golden.Compare(t, "testdata/subresources.golden", got.String())
}
