package subresources

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
)

// user is who asks, as the API server says.
type user struct {
	name   string
	groups []string
	extra  map[string][]string
}

// FrontProxy is how the API server proves to be itself, and in which headers it
// says for whom it asks: the ConfigMap extension-apiserver-authentication of
// kube-system, which every API server writes.
//
// k8s.io/apiserver has an authenticator for it. Package headerrequest, where it
// is, links client-go's typed clients and with them every kind of Kubernetes:
// 18 MiB of memory.
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

var errUnauthenticated = errors.New("request is not authenticated")

// Verify returns an error, which wraps errUnauthenticated, unless a peer shows the
// front proxy's certificate: its CA's, for clients, and in one of the allowed
// names. No allowed names are all names, as for Kubernetes' own servers.
func (p *FrontProxy) Verify(state tls.ConnectionState, now time.Time) error {
	if len(state.PeerCertificates) == 0 {
		return errUnauthenticated
	}
	leaf, intermediates := state.PeerCertificates[0], x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: p.roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fmt.Errorf("%w: %w", errUnauthenticated, err)
	}
	if len(p.names) > 0 && !slices.Contains(p.names, leaf.Subject.CommonName) {
		return fmt.Errorf("%w: %q is not a front proxy", errUnauthenticated, leaf.Subject.CommonName)
	}
	return nil
}

// authenticate returns who asks, or an error that wraps errUnauthenticated.
// Headers count only from the front proxy.
func (p *FrontProxy) authenticate(state *tls.ConnectionState, header http.Header, now time.Time) (user, error) {
	if state == nil {
		return user{}, errUnauthenticated
	}
	if err := p.Verify(*state, now); err != nil {
		return user{}, err
	}
	who := user{name: first(header, p.userHeaders), extra: map[string][]string{}}
	if who.name == "" {
		return user{}, fmt.Errorf("%w: no user is named", errUnauthenticated)
	}
	for _, h := range p.groupHeaders {
		who.groups = append(who.groups, header.Values(h)...)
	}
	for _, prefix := range p.extraHeads {
		who.addExtra(header, http.CanonicalHeaderKey(prefix))
	}
	return who, nil
}

// needed is what is looked at of a request once it is known who asks. The rest is
// the client's, and up to a megabyte where its fields are short; net/http would keep
// it for as long as a stream lasts.
func needed(header http.Header) http.Header {
	kept := http.Header{}
	for _, name := range []string{"Connection", "Upgrade", "Sec-Websocket-Key", "Sec-Websocket-Version", "Sec-Websocket-Protocol", "Expect",
		"Origin", "Cookie", "Sec-Fetch-Site", "Accept-Encoding", "If-None-Match", "If-Modified-Since", "If-Range", "Range"} {
		if values, ok := header[name]; ok {
			kept[name] = values
		}
	}
	return kept
}

// first is the first header that says something.
func first(header http.Header, names []string) string {
	for _, h := range names {
		if v := strings.TrimSpace(header.Get(h)); v != "" {
			return v
		}
	}
	return ""
}

// addExtra reads what more is known of the user. The key is escaped as in URLs,
// for headers bear few letters.
func (u *user) addExtra(header http.Header, prefix string) {
	for h, values := range header {
		key, ok := strings.CutPrefix(h, prefix)
		if !ok || key == "" {
			continue
		}
		key = strings.ToLower(key)
		if plain, err := url.PathUnescape(key); err == nil {
			key = plain
		}
		u.extra[key] = append(u.extra[key], values...)
	}
}
