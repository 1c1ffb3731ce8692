package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"time"
)

const certLifetime = 365 * 24 * time.Hour

// keyPair is a PEM certificate with its PEM key, and both parsed for signing.
type keyPair struct {
	certPEM, keyPEM []byte
	cert            *x509.Certificate
	key             *ecdsa.PrivateKey
}

// identity says whose certificate it is: Kubernetes takes the user from the
// common name and the groups from the organizations.
type identity struct {
	user   string
	groups []string
	dns    []string
	ips    []netip.Addr
}

func newAuthority(name string, now time.Time) (keyPair, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	return sign(template, nil, now)
}

// issue makes a certificate for both ends of a connection: its names tell a server from a
// client.
func (ca keyPair) issue(id identity, now time.Time) (keyPair, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: id.user, Organization: id.groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:    id.dns,
	}
	for _, ip := range id.ips {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	return sign(template, &ca, now)
}

func sign(template *x509.Certificate, ca *keyPair, now time.Time) (keyPair, error) {
	fail := func(err error) (keyPair, error) {
		return keyPair{}, fmt.Errorf("make certificate for %q: %w", template.Subject.CommonName, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return fail(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fail(err)
	}
	template.SerialNumber = serial
	template.NotBefore = now.Add(-time.Minute)
	template.NotAfter = now.Add(certLifetime)
	parent, signer := template, key
	if ca != nil {
		parent, signer = ca.cert, ca.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return fail(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return fail(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fail(err)
	}
	return keyPair{
		certPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		keyPEM:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
		cert:    cert,
		key:     key,
	}, nil
}

// write makes path.crt and path.key.
func (k keyPair) write(path string) error {
	if err := os.WriteFile(path+".crt", k.certPEM, 0o644); err != nil {
		return err
	}
	return os.WriteFile(path+".key", k.keyPEM, 0o600)
}

// writeCertificates fills dir/pki, the control plane's kubeconfigs and each
// node's folder.
func (p Plan) writeCertificates(now time.Time) error {
	ca, err := newAuthority("kubeqemu-test-ca", now)
	if err != nil {
		return err
	}
	// The front proxy has a CA of its own: clients with its certificates may claim any user in
	// a header.
	proxyCA, err := newAuthority("kubeqemu-test-front-proxy-ca", now)
	if err != nil {
		return err
	}
	// Only its key is used, to sign service account tokens.
	tokens, err := newAuthority("service-accounts", now)
	if err != nil {
		return err
	}
	if err := write(map[string]keyPair{p.pki("ca"): ca, p.pki("front-proxy-ca"): proxyCA, p.pki("service-accounts"): tokens}); err != nil {
		return err
	}
	servers := []struct {
		file string
		ca   keyPair
		id   identity
	}{
		{"apiserver", ca, identity{
			user: "kube-apiserver",
			dns:  []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"},
			ips:  []netip.Addr{p.API, p.ServiceAPI(), p.Loopback},
		}},
		{"apiserver-kubelet-client", ca, identity{user: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}}},
		{"front-proxy-client", proxyCA, identity{user: "front-proxy-client"}},
	}
	for _, s := range servers {
		pair, err := s.ca.issue(s.id, now)
		if err != nil {
			return err
		}
		if err := pair.write(p.pki(s.file)); err != nil {
			return err
		}
	}
	clients := map[string]identity{
		p.Kubeconfig():                    {user: "admin", groups: []string{"system:masters"}},
		p.conf("kube-controller-manager"): {user: "system:kube-controller-manager"},
		p.conf("kube-scheduler"):          {user: "system:kube-scheduler"},
	}
	for _, n := range p.Nodes {
		dir := p.nodeDir(n)
		clients[dir+"/kubelet.kubeconfig"] = identity{user: "system:node:" + n.Name, groups: []string{"system:nodes"}}
		clients[dir+"/"+multusKubeconfig] = identity{user: "multus"}
		clients[dir+"/kube-proxy.kubeconfig"] = identity{user: "system:kube-proxy"}
		serving, err := ca.issue(identity{user: "kubelet " + n.Name, dns: []string{n.Name}, ips: []netip.Addr{n.Address}}, now)
		if err != nil {
			return err
		}
		if err := serving.write(dir + "/kubelet"); err != nil {
			return err
		}
		if err := os.WriteFile(dir+"/ca.crt", ca.certPEM, 0o644); err != nil {
			return err
		}
	}
	for file, id := range clients {
		pair, err := ca.issue(id, now)
		if err != nil {
			return err
		}
		text, err := p.kubeconfig(id.user, ca, pair)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
		if id.user == "admin" {
			if err := pair.write(p.pki("admin")); err != nil {
				return err
			}
		}
	}
	return nil
}

func write(pairs map[string]keyPair) error {
	for file, pair := range pairs {
		if err := pair.write(file); err != nil {
			return err
		}
	}
	return nil
}
