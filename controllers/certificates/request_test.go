package certificates

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/kubeqemu/kubeqemu/internal/authority"
)

func newKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// filed is a request as the API server shows it: who filed it, from where.
func filed(user, node string, r Role, text []byte) *certificatesv1.CertificateSigningRequest {
	csr := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: SignerName, Username: user, Request: text, Usages: usages(r)}}
	if node != "" {
		csr.Spec.Extra = map[string]certificatesv1.ExtraValue{nodeClaim: {node}}
	}
	return csr
}

func request(t *testing.T, template *x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: requestBlock, Bytes: der})
}

func TestCheckAccepts(t *testing.T) {
	key := newKey(t, elliptic.P256())
	for _, r := range roles {
		for _, node := range []string{"node-1.example", strings.Repeat("n", 253)} { // the longest name
			text, err := newRequest(r, node, key)
			if err != nil {
				t.Fatal(err)
			}
			got, err := check(filed(Requester, node, r, text))
			if err != nil || got.role != r || got.node != node || !got.key.Equal(key.Public()) {
				t.Errorf("%s: got %+v, %v", r, got, err)
			}
		}
	}
}

// Each case is a good request but for one thing.
func TestCheckRefuses(t *testing.T) {
	const node = "node-1"
	key := newKey(t, elliptic.P256())
	good := func(r Role) []byte {
		text, err := newRequest(r, node, key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	client := func(edit func(*x509.CertificateRequest)) *certificatesv1.CertificateSigningRequest {
		template := &x509.CertificateRequest{Subject: subject(Client, node)}
		edit(template)
		return filed(Requester, node, Client, request(t, template, key))
	}
	server := func(names ...string) *certificatesv1.CertificateSigningRequest {
		return filed(Requester, node, Server, request(t, &x509.CertificateRequest{Subject: subject(Server, node), DNSNames: names}, key))
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	withUsages := func(usages ...certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
		csr := filed(Requester, node, Client, good(Client))
		csr.Spec.Usages = usages
		return csr
	}
	twoNodes := filed(Requester, node, Client, good(Client))
	twoNodes.Spec.Extra[nodeClaim] = certificatesv1.ExtraValue{node, "node-2"}
	forgedSignature := good(Client)
	block, _ := pem.Decode(forgedSignature)
	block.Bytes[len(block.Bytes)-1] ^= 1
	for name, c := range map[string]struct {
		csr    *certificatesv1.CertificateSigningRequest
		reason string
		says   string
	}{
		"another account":      {filed("system:serviceaccount:tenant:virt-handler", node, Client, good(Client)), "NotVirtHandler", "tenant:virt-handler"},
		"virt-controller":      {filed("system:serviceaccount:kubevirt:virt-controller", node, Client, good(Client)), "NotVirtHandler", ""},
		"no user":              {filed("", node, Client, good(Client)), "NotVirtHandler", ""},
		"no node claim":        {filed(Requester, "", Client, good(Client)), "NoNodeName", ""},
		"two node claims":      {twoNodes, "NoNodeName", ""},
		"another node":         {filed(Requester, "node-2", Client, good(Client)), "BadRequest", `node "node-2"`},
		"another node, server": {filed(Requester, "node-2", Server, good(Server)), "BadRequest", `node "node-2"`},
		"another case":         {filed(Requester, "NODE-1", Client, good(Client)), "BadRequest", "subject"},
		"client as server":     {filed(Requester, node, Server, good(Client)), "BadRequest", "usages"},
		"server as client":     {filed(Requester, node, Client, good(Server)), "BadRequest", "usages"},
		"both usages":          {withUsages("digital signature", "client auth", "server auth"), "BadRequest", "usages"},
		"signing usage":        {withUsages("digital signature", "cert sign"), "BadRequest", "usages"},
		"no usages":            {withUsages(), "BadRequest", "usages"},
		"two organizations":    {client(func(r *x509.CertificateRequest) { r.Subject.Organization = []string{string(Client), string(Server)} }), "BadRequest", "subject"},
		"no organization":      {client(func(r *x509.CertificateRequest) { r.Subject.Organization = nil }), "BadRequest", "subject"},
		"masters": {client(func(r *x509.CertificateRequest) {
			r.Subject = pkix.Name{Organization: []string{"system:masters"}, CommonName: node}
		}), "BadRequest", "subject"},
		"unit besides":         {client(func(r *x509.CertificateRequest) { r.Subject.OrganizationalUnit = []string{"x"} }), "BadRequest", "subject"},
		"client with DNS name": {client(func(r *x509.CertificateRequest) { r.DNSNames = []string{authority.ServerName(node)} }), "BadRequest", "DNS names"},
		"client with IP":       {client(func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }), "BadRequest", "other names"},
		"client with URI":      {client(func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }), "BadRequest", "other names"},
		"client with email":    {client(func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b"} }), "BadRequest", "other names"},
		"an extension": {client(func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{{Id: []int{2, 5, 29, 19}, Value: []byte{0x30, 3, 1, 1, 0xff}}} // CA: true
		}), "BadRequest", "1 extensions"},
		"server without name":        {server(), "BadRequest", "DNS names"},
		"server with half its names": {server(authority.ServerName(node)), "BadRequest", "DNS names"},
		"server of another node":     {server(authority.ServerName("node-2")), "BadRequest", "DNS names"},
		"server with another name":   {server(authority.ServerName(node), "virt-api.kubevirt.svc"), "BadRequest", "DNS names"},
		"server with a wildcard":     {server("*.virt-handler.kubevirt.io"), "BadRequest", "DNS names"},
		"RSA":                        {filed(Requester, node, Client, request(t, &x509.CertificateRequest{Subject: subject(Client, node)}, rsaKey)), "BadRequest", "P-256"},
		"P-224":                      {filed(Requester, node, Client, request(t, &x509.CertificateRequest{Subject: subject(Client, node)}, newKey(t, elliptic.P224()))), "BadRequest", "P-256"},
		"signature of another key":   {filed(Requester, node, Client, pem.EncodeToMemory(block)), "BadRequest", "signature"},
		"nothing":                    {filed(Requester, node, Client, nil), "BadRequest", "PEM"},
		"two blocks":                 {filed(Requester, node, Client, append(good(Client), good(Server)...)), "BadRequest", "PEM"},
		"another block":              {filed(Requester, node, Client, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})), "BadRequest", "PEM"},
		"garbage":                    {filed(Requester, node, Client, pem.EncodeToMemory(&pem.Block{Type: requestBlock, Bytes: []byte("x")})), "BadRequest", "read request"},
		"long":                       {filed(Requester, node, Client, append(good(Client), bytes.Repeat([]byte("\n"), maxRequest)...)), "BadRequest", "bytes"},
	} {
		_, err := check(c.csr)
		var refused *refusal
		if !errors.As(err, &refused) || refused.reason != c.reason || !strings.Contains(refused.message, c.says) {
			t.Errorf("%s: %v, want %s: …%s…", name, err, c.reason, c.says)
		}
	}
}

// FuzzParse: what anybody may file never takes virt-controller down, and what
// is taken has the node's subject.
func FuzzParse(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	for _, r := range roles {
		text, err := newRequest(r, "node", key)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, "node")
	}
	f.Fuzz(func(t *testing.T, text []byte, node string) {
		if w, err := parse(text, node); err == nil && (w.node != node || w.key == nil || w.role == "") {
			t.Errorf("took %+v for node %q", w, node)
		}
	})
}
