package e2e

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	served "github.com/kubeqemu/kubeqemu/apiserver/subresources"
)

// matrix is who may use which endpoint, by its line without the users: what
// test/rights writes down from the shipped roles.
func matrix(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../rights/testdata/subresources.golden")
	if err != nil {
		t.Fatal(err)
	}
	may := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		// GET  virtualmachineinstances/console: get admin,edit
		endpoint, rest, _ := strings.Cut(strings.TrimSpace(line), ": ")
		_, users, _ := strings.Cut(rest, " ")
		may[strings.Join(strings.Fields(endpoint), " ")] = strings.Split(users, ",")
	}
	return may
}

// TestEveryEndpointByEveryRole: every endpoint, through the API server, by a user of every role: a
// VM that does not exist is not found by those who may, and forbidden to others.
func TestEveryEndpointByEveryRole(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	may := matrix(t)
	clusterRoles := map[string]string{"admin": "admin", "edit": "edit", "view": "view", "migrate": "kubevirt.io:migrate", "nobody": ""}
	for role, clusterRole := range clusterRoles {
		if clusterRole != "" {
			kubectl(t, "-n", ns, "create", "rolebinding", role, "--clusterrole="+clusterRole, "--user="+role+"-"+ns)
		}
	}
	asked := func(e served.Endpoint, role string) (int, string) {
		path := e.Path(ns, "none")
		if e.Parameters > 0 {
			path += "/22"
		}
		code, status := ask(t, configOf(t, role+"-"+ns), e.Method, path, nil)
		return code, status.Message
	}
	// The API server's authorizer hears of a role's binding a moment later.
	if err := poll(func() error {
		for _, e := range served.Table() {
			for _, role := range may[e.Method+" "+e.Name()] {
				if code, message := asked(e, role); code == http.StatusForbidden {
					return fmt.Errorf("%s of %s by %s: %s", e.Method, e.Name(), role, message)
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, e := range served.Table() {
		users, ok := may[e.Method+" "+e.Name()]
		if !ok {
			t.Errorf("%s of %s is not in the golden file", e.Method, e.Name())
		}
		for role := range clusterRoles {
			code, message := asked(e, role)
			allowed := code == http.StatusNotFound || code == http.StatusBadRequest
			if !allowed && code != http.StatusForbidden {
				t.Errorf("%s of %s by %s: %d %s", e.Method, e.Name(), role, code, message)
			} else if want := slices.Contains(users, role) || slices.Contains(users, "default"); allowed != want {
				t.Errorf("%s of %s by %s: %d %s, want it allowed: %v", e.Method, e.Name(), role, code, message, want)
			}
		}
	}
}
