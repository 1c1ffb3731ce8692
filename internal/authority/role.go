package authority

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Role is the purpose of a certificate, which has only one. In the subject, the organization is
// the role, and the common name is the name of the holder.
type Role string

const (
	// HandlerClient is for virt-handler as it dials; the name is its node's.
	HandlerClient Role = "kubevirt.io:virt-handler:client"
	// HandlerServer is for virt-handler as it is dialed, under ServerName.
	HandlerServer Role = "kubevirt.io:virt-handler:server"
	// ControllerServer is for virt-controller as it is scraped, under MetricsName.
	ControllerServer Role = "kubevirt.io:virt-controller:server"
	// APIClient is for virt-api as it dials virt-handlers; the name is APIName.
	APIClient Role = "kubevirt.io:virt-api:client"
)

// APIName is the name in virt-api's certificates.
const APIName = "virt-api"

// ControllerName is the name in virt-controller's certificates.
const ControllerName = "virt-controller"

// MetricsName is the DNS name of whatever serves metrics, in the certificates of
// all components: a scraper looks for one name on all its targets.
const MetricsName = "kubevirt-prometheus-metrics.kubevirt.svc"

// Published CAs: ConfigMaps in the namespace of the installation with the entry
// BundleEntry, PEM, the newest certificate first.
const (
	HandlerCA   = "kubevirt-ca" // certifies virt-handlers, and virt-controller's metrics
	APICA       = "virt-api-ca" // certifies virt-api, and nobody else
	BundleEntry = "ca-bundle"
)

// ServerName is the DNS name in the server certificate of a node's virt-handler. No DNS server
// resolves it: clients dial an address, and ask for this name.
func ServerName(node string) string { return node + ".virt-handler.kubevirt.io" }

// ExtUsage is the only extended usage of the role's certificates.
func (r Role) ExtUsage() x509.ExtKeyUsage {
	if r == HandlerServer || r == ControllerServer {
		return x509.ExtKeyUsageServerAuth
	}
	return x509.ExtKeyUsageClientAuth
}

// Peer returns the name of the other end, after checking that its certificate is
// of the role and nothing else. Use it with the state of a finished handshake.
func Peer(state tls.ConnectionState, r Role, roots *x509.CertPool, now time.Time) (name string, err error) {
	if len(state.PeerCertificates) == 0 {
		return "", errors.New("the peer showed no certificate")
	}
	leaf := state.PeerCertificates[0]
	name = leaf.Subject.CommonName
	options := x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{r.ExtUsage()}}
	if r == HandlerServer {
		options.DNSName = ServerName(name)
	}
	if _, err := leaf.Verify(options); err != nil {
		return "", fmt.Errorf("check the peer's certificate: %w", err)
	}
	if o := leaf.Subject.Organization; len(o) != 1 || o[0] != string(r) {
		return "", fmt.Errorf("the peer's certificate is %q's, want %s", o, r)
	}
	return name, nil
}

// Pool returns the CAs of a published bundle.
func Pool(bundle string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(bundle)) {
		return nil, errors.New("no CA has been published yet")
	}
	return pool, nil
}
