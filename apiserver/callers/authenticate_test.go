package callers

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/apiserver/callers/callerstest"
)

// TestAuthenticate: headers are believed from the front proxy and from nobody
// else, whatever other certificate is shown (CVE-2025-64432).
func TestAuthenticate(t *testing.T) {
	front, other := callerstest.NewCA(t), callerstest.NewCA(t)
	expired, _ := front.Issue(&x509.Certificate{Subject: pkix.Name{CommonName: "front-proxy-client"}, NotBefore: callerstest.Now.Add(-2 * time.Hour), NotAfter: callerstest.Now.Add(-time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	server, _ := front.Issue(&x509.Certificate{Subject: pkix.Name{CommonName: "front-proxy-client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	named := http.Header{"X-Remote-User": {"ann"}, "X-Remote-Group": {"a", "system:masters"}, "X-Remote-Extra-Scopes": {"x", "y"}, "X-Remote-Extra-Acme.com%2fProject": {"p"}}
	for name, c := range map[string]struct {
		shown   *x509.Certificate
		allowed string
		header  http.Header
		ok      bool
	}{
		"the front proxy":      {front.Client("front-proxy-client"), `["front-proxy-client"]`, named, true},
		"one of two":           {front.Client("b"), `["a","b"]`, named, true},
		"no names are all":     {front.Client("anybody"), `[]`, named, true},
		"no entry is all":      {front.Client("anybody"), ``, named, true},
		"another name":         {front.Client("kubelet"), `["front-proxy-client"]`, named, false},
		"another CA":           {other.Client("front-proxy-client"), `["front-proxy-client"]`, named, false},
		"expired":              {expired, `["front-proxy-client"]`, named, false},
		"not for clients":      {server, `["front-proxy-client"]`, named, false},
		"no certificate":       {nil, `["front-proxy-client"]`, named, false},
		"no user":              {front.Client("front-proxy-client"), `["front-proxy-client"]`, http.Header{"X-Remote-Group": {"system:masters"}}, false},
		"an empty user":        {front.Client("front-proxy-client"), `["front-proxy-client"]`, http.Header{"X-Remote-User": {" "}}, false},
		"a user in other ways": {front.Client("front-proxy-client"), `["front-proxy-client"]`, http.Header{"Impersonate-User": {"ann"}, "Authorization": {"Bearer x"}}, false},
	} {
		proxy, err := ParseFrontProxy(front.Published(c.allowed))
		if err != nil {
			t.Fatal(err)
		}
		state := &tls.ConnectionState{}
		if c.shown != nil {
			state.PeerCertificates = []*x509.Certificate{c.shown}
		}
		who, err := proxy.Authenticate(state, c.header, callerstest.Now)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("%s: %+v, %v", name, who, err)
		}
		if c.ok && (who.Name != "ann" || !slices.Equal(who.Groups, []string{"a", "system:masters"}) || len(who.Extra) != 2 ||
			!slices.Equal(who.Extra["scopes"], []string{"x", "y"}) || !slices.Equal(who.Extra["acme.com/project"], []string{"p"})) {
			t.Errorf("%s: %+v", name, who)
		}
	}
	proxy, err := ParseFrontProxy(front.Published(``))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := proxy.Authenticate(nil, named, callerstest.Now); err == nil {
		t.Error("a connection without TLS")
	}
}

func TestParseFrontProxy(t *testing.T) {
	good := callerstest.NewCA(t).Published(`["a"]`)
	for entry, value := range map[string]string{clientCAEntry: "", namesEntry: "{", userEntry: "", groupEntry: "7"} {
		bad := map[string]string{}
		for k, v := range good {
			bad[k] = v
		}
		bad[entry] = value
		if _, err := ParseFrontProxy(bad); err == nil {
			t.Errorf("%s=%q was taken", entry, value)
		}
	}
}
