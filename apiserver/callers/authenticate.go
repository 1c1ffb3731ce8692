// Package callers has the steps before virt-api serves a user's request: finding out the user
// (authenticate.go), asking for the user's rights (rights.go), counting the user's requests
// (limits.go), and wording the errors (answer.go).
package callers

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// User is the user of a request, as the API server names it in headers.
type User struct {
	Name   string
	Groups []string
	Extra  map[string][]string
}

// FrontProxy verifies that a peer is the API server, and knows the headers in which the API
// server names its user. Both come from the ConfigMap extension-apiserver-authentication of
// kube-system, which every API server writes.
//
// k8s.io/apiserver has such an authenticator, in package headerrequest. That package links
// client-go's typed clients, and with them every kind of Kubernetes: 18 MiB of memory.
type FrontProxy struct {
	roots                                 *x509.CertPool
	names                                 []string
	userHeaders, groupHeaders, extraHeads []string
}

// Entries of the ConfigMap.
const (
	clientCAEntry = "requestheader-client-ca-file"
	namesEntry    = "requestheader-allowed-names"
	userEntry     = "requestheader-username-headers"
	groupEntry    = "requestheader-group-headers"
	extraEntry    = "requestheader-extra-headers-prefix"
)

// ParseFrontProxy reads the ConfigMap's data.
func ParseFrontProxy(data map[string]string) (*FrontProxy, error) {
	p := &FrontProxy{roots: x509.NewCertPool()}
	if !p.roots.AppendCertsFromPEM([]byte(data[clientCAEntry])) {
		return nil, errors.New("the API server publishes no CA of its front proxy: it has no --requestheader-client-ca-file")
	}
	for entry, into := range map[string]*[]string{namesEntry: &p.names, userEntry: &p.userHeaders, groupEntry: &p.groupHeaders, extraEntry: &p.extraHeads} {
		if data[entry] == "" {
			continue
		}
		if err := json.Unmarshal([]byte(data[entry]), into); err != nil {
			return nil, fmt.Errorf("read %s: %w", entry, err)
		}
	}
	if len(p.userHeaders) == 0 {
		return nil, fmt.Errorf("%s is empty", userEntry)
	}
	return p, nil
}

// ErrUnauthenticated says that nothing proves which user sent a request.
var ErrUnauthenticated = errors.New("request is not authenticated")

// Verify returns an error that wraps ErrUnauthenticated, unless the peer shows the front
// proxy's certificate: a client certificate of its CA, with an allowed common name. An empty
// list allows all names, as in Kubernetes' own servers.
func (p *FrontProxy) Verify(state tls.ConnectionState, now time.Time) error {
	if len(state.PeerCertificates) == 0 {
		return ErrUnauthenticated
	}
	leaf, intermediates := state.PeerCertificates[0], x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: p.roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	if len(p.names) > 0 && !slices.Contains(p.names, leaf.Subject.CommonName) {
		return fmt.Errorf("%w: %q is not a front proxy", ErrUnauthenticated, leaf.Subject.CommonName)
	}
	return nil
}

// Authenticate returns the user of a request, or an error that wraps ErrUnauthenticated. User
// headers count only from the front proxy.
func (p *FrontProxy) Authenticate(state *tls.ConnectionState, header http.Header, now time.Time) (User, error) {
	if state == nil {
		return User{}, ErrUnauthenticated
	}
	if err := p.Verify(*state, now); err != nil {
		return User{}, err
	}
	who := User{Name: first(header, p.userHeaders), Extra: map[string][]string{}}
	if who.Name == "" {
		return User{}, fmt.Errorf("%w: no user is named", ErrUnauthenticated)
	}
	for _, h := range p.groupHeaders {
		who.Groups = append(who.Groups, header.Values(h)...)
	}
	for _, prefix := range p.extraHeads {
		who.addExtra(header, http.CanonicalHeaderKey(prefix))
	}
	return who, nil
}

// Identify returns the user of a request. The error is a ServiceUnavailable while virt-api has not
// read how the API server proves to be itself, and else wraps ErrUnauthenticated.
func Identify(r *http.Request, frontProxy func() (*FrontProxy, error), now time.Time) (User, error) {
	proxy, err := frontProxy()
	if err != nil {
		return User{}, apierrors.NewServiceUnavailable(err.Error())
	}
	return proxy.Authenticate(r.TLS, r.Header, now)
}

// first returns the first header value that is not blank.
func first(header http.Header, names []string) string {
	for _, h := range names {
		if v := strings.TrimSpace(header.Get(h)); v != "" {
			return v
		}
	}
	return ""
}

// addExtra reads the user's extra attributes, from the headers with a prefix. Their keys are
// escaped as in URLs, because header names allow few characters.
func (u *User) addExtra(header http.Header, prefix string) {
	for h, values := range header {
		key, ok := strings.CutPrefix(h, prefix)
		if !ok || key == "" {
			continue
		}
		key = strings.ToLower(key)
		if plain, err := url.PathUnescape(key); err == nil {
			key = plain
		}
		u.Extra[key] = append(u.Extra[key], values...)
	}
}
