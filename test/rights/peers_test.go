package rights

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/apiserver/subresources"
	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/authority/authoritytest"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

// subject of a certificate: organization is a role, or what else there is.
type subject struct {
	by           *authoritytest.CA
	organization string
	name         string
	server       bool
	dns          []string
}

func (s subject) certificate() *tls.Certificate {
	if s.by == nil {
		return &tls.Certificate{}
	}
	usage := x509.ExtKeyUsageClientAuth
	if s.server {
		usage = x509.ExtKeyUsageServerAuth
	}
	return s.by.Certify(authority.Role(s.organization), s.name, usage, s.dns...)
}

// peers are a cluster's CAs, and everybody who has a certificate of one, or
// might be given one by mistake.
type peers struct {
	t                             *testing.T
	nodes, api, frontProxy, kubes *authoritytest.CA
	names                         []string
	subjects                      map[string]subject
}

func newPeers(t *testing.T) *peers {
	p := &peers{t: t, nodes: authoritytest.New(t, "virt-handler"), api: authoritytest.New(t, "virt-api"), frontProxy: authoritytest.New(t, "front-proxy"), kubes: authoritytest.New(t, "kubernetes"),
		subjects: map[string]subject{}}
	const apiRole, clientRole, serverRole = string(authority.APIClient), string(authority.HandlerClient), string(authority.HandlerServer)
	for _, c := range []struct {
		name string
		subject
	}{
		{"nobody (a launcher has no certificate)", subject{}},
		{"virt-api", subject{p.api, apiRole, authority.APIName, false, nil}},
		{"virt-api as it serves the API server", subject{p.api, "", authority.APIName, true, []string{"virt-api.kubevirt.svc"}}},
		{"virt-api's role in another name", subject{p.api, apiRole, "n1", false, nil}},
		{"virt-api's role, to serve", subject{p.api, apiRole, authority.APIName, true, nil}},
		{"virt-api's name without a role", subject{p.api, "", authority.APIName, false, nil}},
		{"virt-api's role by virt-handlers' CA", subject{p.nodes, apiRole, authority.APIName, false, nil}},
		{"virt-api's role by the front proxy's CA", subject{p.frontProxy, apiRole, authority.APIName, false, nil}},
		{"virt-api's role by the cluster's CA", subject{p.kubes, apiRole, authority.APIName, false, nil}},
		{"virt-handler of n1 as it dials", subject{p.nodes, clientRole, "n1", false, nil}},
		{"virt-handler of n1 as it serves", subject{p.nodes, serverRole, "n1", true, []string{authority.ServerName("n1")}}},
		{"virt-handler of n2 as it dials", subject{p.nodes, clientRole, "n2", false, nil}},
		{"virt-handler of n2 as it serves", subject{p.nodes, serverRole, "n2", true, []string{authority.ServerName("n2")}}},
		{"virt-handler of n2 that serves as n1", subject{p.nodes, serverRole, "n2", true, []string{authority.ServerName("n1")}}},
		{"virt-handler of n1 as it dials, with the name that it serves under", subject{p.nodes, clientRole, "n1", false, []string{authority.ServerName("n1")}}},
		{"virt-handler's role by virt-api's CA, to dial", subject{p.api, clientRole, "n1", false, nil}},
		{"virt-handler's role by virt-api's CA, to serve", subject{p.api, serverRole, "n1", true, []string{authority.ServerName("n1")}}},
		{"virt-handler's role by the cluster's CA, to serve", subject{p.kubes, serverRole, "n1", true, []string{authority.ServerName("n1")}}},
		{"front proxy", subject{p.frontProxy, "", "front-proxy-client", false, nil}},
		{"front proxy's CA, another name", subject{p.frontProxy, "", "kubelet", false, nil}},
		{"front proxy's name, to serve", subject{p.frontProxy, "", "front-proxy-client", true, []string{authority.ServerName("n1")}}},
		{"front proxy's name by the cluster's CA", subject{p.kubes, "", "front-proxy-client", false, nil}},
		{"front proxy's name by virt-api's CA", subject{p.api, "", "front-proxy-client", false, nil}},
		{"administrator", subject{p.kubes, "system:masters", "admin", false, nil}},
		{"kubelet of n1", subject{p.kubes, "system:nodes", "system:node:n1", false, nil}},
	} {
		p.names = append(p.names, c.name)
		p.subjects[c.name] = c.subject
	}
	return p
}

// handler serves with virt-handler's configuration.
func (p *peers) handler(shown func(*tls.ClientHelloInfo) (*tls.Certificate, error)) (port int) {
	p.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusOK) })}
	go server.Serve(tls.NewListener(listener, handlerapi.ServerConfig(shown, p.api.Pool, time.Now)))
	p.t.Cleanup(func() { server.Close() })
	return listener.Addr().(*net.TCPAddr).Port
}

func (p *peers) client(port int, shown *tls.Certificate) *handlerapi.Client {
	return &handlerapi.Client{Port: port, Now: time.Now, Roots: p.nodes.Pool,
		Certificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown, nil }}
}

var target = handlerapi.Target{Address: "127.0.0.1", Node: "n1", Namespace: "ns", Name: "vm", UID: "u"}

// dialHandler says whether virt-handler of n1 answers who dials it.
func (p *peers) dialHandler(as *tls.Certificate) bool {
	port := p.handler(func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return p.subjects["virt-handler of n1 as it serves"].certificate(), nil
	})
	err := p.client(port, as).Do(p.t.Context(), target, handlerapi.Pause, nil)
	var said *handlerapi.Error
	return err == nil || errors.As(err, &said)
}

// answerAPI says whether virt-api believes to have reached virt-handler of n1.
func (p *peers) answerAPI(as *tls.Certificate) bool {
	if len(as.Certificate) == 0 {
		return false // there is no TLS without one
	}
	port := p.handler(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return as, nil })
	return p.client(port, p.subjects["virt-api"].certificate()).Do(p.t.Context(), target, handlerapi.Pause, nil) == nil
}

// group serves subresources.kubevirt.io, of which nobody may have anything.
func (p *peers) group() string {
	p.t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(&authorizationv1.SubjectAccessReview{TypeMeta: metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}})
	}))
	p.t.Cleanup(api.Close)
	config := &rest.Config{Host: api.URL}
	rights, err := callers.NewRights(config)
	if err != nil {
		p.t.Fatal(err)
	}
	server, err := subresources.New(config, subresources.Options{Rights: rights, Now: time.Now, Log: logr.Discard(), FrontProxy: func() (*callers.FrontProxy, error) {
		return callers.ParseFrontProxy(map[string]string{
			"requestheader-client-ca-file":       string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.frontProxy.CAs[0].Certificate.Raw})),
			"requestheader-allowed-names":        `["front-proxy-client"]`,
			"requestheader-username-headers":     `["X-Remote-User"]`,
			"requestheader-group-headers":        `["X-Remote-Group"]`,
			"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
		})
	}})
	if err != nil {
		p.t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(server)
	front.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	front.StartTLS()
	p.t.Cleanup(front.Close)
	return front.URL
}

// dialAPI says whether virt-api believes on whose behalf it is asked, at every
// endpoint or at none.
func (p *peers) dialAPI(url string, as *tls.Certificate) bool {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return as, nil }}}}
	codes := map[int]int{}
	table := subresources.Table()
	for _, e := range table {
		path := e.Path("ns", "vm")
		if e.Parameters > 0 {
			path += "/22"
		}
		request, err := http.NewRequestWithContext(p.t.Context(), e.Method, url+path, nil)
		if err != nil {
			p.t.Fatal(err)
		}
		request.Header.Set("X-Remote-User", "admin")
		request.Header.Set("X-Remote-Group", "system:masters")
		response, err := client.Do(request)
		if err != nil {
			p.t.Fatal(err)
		}
		response.Body.Close()
		codes[response.StatusCode]++
	}
	if codes[http.StatusForbidden]+codes[http.StatusUnauthorized] != len(table) || len(codes) != 1 {
		p.t.Errorf("%d endpoints answer %v", len(table), codes)
	}
	return codes[http.StatusForbidden] > 0
}

// TestWhoIsLetInByWhom: who is let in where, everybody by everybody: one each (CVE-2025-64432,
// CVE-2025-64434).
func TestWhoIsLetInByWhom(t *testing.T) {
	p := newPeers(t)
	url := p.group()
	word := map[bool]string{true: "yes", false: "-"}
	var got strings.Builder
	const row = "%-67s %-13s %-12s %s\n"
	fmt.Fprintf(&got, row, "certificate", "dials handler", "dials api", "answers api for handler")
	for _, name := range p.names {
		as := p.subjects[name].certificate()
		fmt.Fprintf(&got, row, name, word[p.dialHandler(as)], word[p.dialAPI(url, as)], word[p.answerAPI(as)])
	}
	golden.Compare(t, "testdata/peers.golden", got.String())
}
