package subresources

import (
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeqemu/kubeqemu/apiserver/web"
)

// TestPageIsServedToWhomRBACAllows: the page is served to whom RBAC lets get it, and to the API server only; there
// is nothing else at its path.
func TestPageIsServedToWhomRBACAllows(t *testing.T) {
	s := serve(t)
	const folder = root + "/ui"
	s.allowed = "ui"
	for path, want := range map[string]int{
		folder: 200, folder + "/": 200, folder + "/index.html": 200, folder + "/app.js": 200, folder + "/novnc.js": 200, folder + "/licenses.txt": 200,
		folder + "/none": 404, folder + "//": 404, folder + "/app.js/": 404, folder + "/page/app.js": 404, folder + "/%61pp.js": 404,
		folder + "/..": 404, folder + "/../ui/app.js": 404, folder + "/./app.js": 404, folder + "/web.go": 404, folder + "s": 404,
	} {
		s.asked = nil
		if code, _ := s.ask(true, "ann", http.MethodGet, path, ""); code != want || (len(s.asked) > 0) != (want == 200) {
			t.Errorf("%s: %d, want %d; RBAC was asked %+v", path, code, want, s.asked)
		}
		if len(s.asked) == 1 && (s.asked[0].ResourceAttributes.Resource != "ui" || s.asked[0].ResourceAttributes.Verb != "get" || s.asked[0].ResourceAttributes.Group != Group) {
			t.Errorf("%s: RBAC was asked %+v", path, s.asked[0].ResourceAttributes)
		}
		if code, _ := s.ask(false, "ann", http.MethodGet, path, ""); code != http.StatusUnauthorized {
			t.Errorf("%s without the front proxy's certificate: %d", path, code)
		}
		if want == 200 {
			if code, status := s.ask(true, "bob", http.MethodGet, path, ""); code != http.StatusForbidden || status.Kind != "Status" {
				t.Errorf("%s by another: %d %+v", path, code, status)
			}
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		if code, _ := s.ask(true, "ann", method, folder+"/", ""); code != http.StatusNotFound {
			t.Errorf("%s: %d", method, code)
		}
	}
	if code, _ := s.ask(true, "ann", http.MethodHead, folder+"/app.js", ""); code != http.StatusOK {
		t.Errorf("HEAD: %d", code)
	}
}

// TestOnlyTheOwnPageOpensWebsockets: programs, and the page itself, open websockets; pages of other sites do not.
func TestOnlyTheOwnPageOpensWebsockets(t *testing.T) {
	for name, c := range map[string]struct {
		origin, cookie string
		admitted       bool
		site           string
	}{
		"virtctl":               {"", "", true, ""},
		"the page":              {"http://localhost:8001", web.Cookie + "=1", true, ""},
		"another site":          {"https://evil.example", "", false, ""},
		"another local port":    {"http://localhost:3000", "", false, ""},
		"another's cookie":      {"https://evil.example", "other=1", false, ""},
		"a document of no site": {"null", "", false, ""},
		"an image of another":   {"", "", false, "cross-site"},
		"an image of its site":  {"", web.Cookie + "=1", true, "same-site"},
		"an image of the page":  {"", "", true, "same-origin"},
		"typed":                 {"", "", true, "none"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		if c.cookie != "" {
			r.Header.Set("Cookie", c.cookie)
		}
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
		}
		if err := upgradable(r, subprotocol); (err == nil) != c.admitted || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
