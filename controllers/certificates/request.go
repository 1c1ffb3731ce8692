// Package certificates gives every virt-handler its certificates. virt-handler makes a key
// that never leaves its memory, and files a CertificateSigningRequest. virt-controller signs
// it if the requester's token proves that the requester is the virt-handler of the node in the
// request.
//
// Each Role has a certificate of its own.
package certificates

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/kubeqemu/kubeqemu/internal/authority"
)

const (
	// SignerName is the signer of virt-handler's certificates.
	SignerName = "kubevirt.io/virt-handler"
	// Requester is the user that may file requests for these certificates.
	Requester = "system:serviceaccount:kubevirt:virt-handler"
	// nodeClaim is where the API server reports the node of a token that is bound to a pod.
	// The holder of the token cannot change it.
	nodeClaim = "authentication.kubernetes.io/node-name"
)

// Role is what a certificate is good for.
type Role = authority.Role

// Roles of virt-handler.
const (
	Client = authority.HandlerClient
	Server = authority.HandlerServer
)

// roles are all roles of virt-handler.
var roles = [...]Role{Client, Server}

func usages(r Role) []certificatesv1.KeyUsage {
	if r == Server {
		return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	}
	return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
}

func dnsNames(r Role, node string) []string {
	if r == Server {
		return []string{authority.ServerName(node), authority.MetricsName}
	}
	return nil
}

func subject(r Role, node string) pkix.Name {
	return pkix.Name{Organization: []string{string(r)}, CommonName: node}
}

// newRequest returns the PEM of a request for a node's certificate of a role.
func newRequest(r Role, node string, key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject(r, node), DNSNames: dnsNames(r, node)}, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: requestBlock, Bytes: der}), nil
}

const (
	requestBlock = "CERTIFICATE REQUEST"
	// maxRequest bounds a request, in bytes. A good request has about 500 bytes, and verifying
	// one with a key of a million bits takes minutes.
	maxRequest = 2048
)

// wanted is what a good request asks for.
type wanted struct {
	role Role
	node string
	key  *ecdsa.PublicKey
}

// refusal is why a request is denied.
type refusal struct{ reason, message string }

func (r *refusal) Error() string { return r.reason + ": " + r.message }

// check returns what a request of SignerName asks for, or a *refusal. It is pure. Who asks is
// known from the fields of the CertificateSigningRequest that the API server writes; the
// request itself must match them to the letter.
func check(csr *certificatesv1.CertificateSigningRequest) (wanted, error) {
	if csr.Spec.Username != Requester {
		return wanted{}, &refusal{"NotVirtHandler", fmt.Sprintf("%q is not virt-handler", csr.Spec.Username)}
	}
	claim := csr.Spec.Extra[nodeClaim]
	if len(claim) != 1 || claim[0] == "" {
		return wanted{}, &refusal{"NoNodeName", "the requester's token is bound to no node"}
	}
	w, err := parse(csr.Spec.Request, claim[0])
	if err != nil {
		return wanted{}, &refusal{"BadRequest", err.Error()}
	}
	if !slices.Equal(csr.Spec.Usages, usages(w.role)) {
		return wanted{}, &refusal{"BadRequest", fmt.Sprintf("usages are %q, want %q", csr.Spec.Usages, usages(w.role))}
	}
	return w, nil
}

// parse reads the PEM of a request, which must be for the node.
func parse(text []byte, node string) (wanted, error) {
	if len(text) > maxRequest {
		return wanted{}, fmt.Errorf("the request has %d bytes, more than %d", len(text), maxRequest)
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != requestBlock || len(block.Headers) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		return wanted{}, errors.New("the request is not one PEM block")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return wanted{}, fmt.Errorf("read request: %w", err)
	}
	w := wanted{node: node}
	if w.key, err = requestKey(request); err != nil {
		return wanted{}, err
	}
	for _, r := range roles {
		if der, err := asn1.Marshal(subject(r, node).ToRDNSequence()); err != nil {
			return wanted{}, fmt.Errorf("encode subject: %w", err)
		} else if bytes.Equal(der, request.RawSubject) {
			w.role = r
		}
	}
	if w.role == "" {
		return wanted{}, fmt.Errorf("the subject is %q, which is no role of virt-handler on node %q, where the requester is", request.Subject, node)
	}
	return w, checkNames(request, w)
}

// requestKey returns the request's key. The request's signature proves that the requester
// holds the key.
func requestKey(request *x509.CertificateRequest) (*ecdsa.PublicKey, error) {
	key, ok := request.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("the key is of type %s, want ECDSA P-256", request.PublicKeyAlgorithm)
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("check signature of the request: %w", err)
	}
	return key, nil
}

// checkNames checks the subject's alternative names, and that the request asks for nothing
// else.
func checkNames(request *x509.CertificateRequest, w wanted) error {
	names := dnsNames(w.role, w.node)
	others := len(request.EmailAddresses) + len(request.IPAddresses) + len(request.URIs)
	// All names are in one extension, subjectAltName.
	if !slices.Equal(request.DNSNames, names) || others > 0 || len(request.Extensions) != min(len(names), 1) {
		return fmt.Errorf("the request has the DNS names %q, %d other names and %d extensions, want the DNS names %q and nothing else",
			request.DNSNames, others, len(request.Extensions), names)
	}
	return nil
}
