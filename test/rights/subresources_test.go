package rights

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeqemu/kubeqemu/apiserver/subresources"
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
		for _, role := range roles {
			if rights[role][e.Verb()+" "+subresources.Group+"/"+e.Name()] {
				may = append(may, role)
			}
		}
		if len(may) == 0 {
			t.Errorf("%s is served, and nobody may use it", e.Name())
		}
		fmt.Fprintf(&got, "%-4s %s: %s %s\n", e.Method, e.Name(), e.Verb(), strings.Join(may, ","))
	}
	const golden = "testdata/subresources.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("who may what differs (-golden +now); go test ./test/rights -update rewrites it:\n%s", diff)
	}
}
