package certificates

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"
)

const (
	// caLife is how long a certificate authority is good for. It is replaced
	// when two thirds are over, and believed until its end.
	caLife = 30 * 24 * time.Hour
	// settleTime is how long a new authority is only published: by then all who
	// check certificates have read it. The kubelet takes two minutes.
	settleTime = time.Hour
	// certificateLife is the longest life of a certificate.
	certificateLife = 24 * time.Hour
	// clockSkew is how far the clocks of two nodes may differ.
	clockSkew = 5 * time.Minute
)

// authority is one certificate authority. Old ones have no key.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// made is when the authority was made; its certificate is dated back.
func (a authority) made() time.Time { return a.certificate.NotBefore.Add(clockSkew) }

// renewAt is when the next authority, or certificate, is to be made.
func renewAt(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

// authorities are the certificate authorities that are believed, the newest first.
type authorities []authority

// newAuthority makes an authority for virt-handlers' certificates.
func newAuthority(now time.Time) (authority, error) { return makeAuthority("virt-handler", now) }

// makeAuthority makes an authority that certifies one component only.
func makeAuthority(component string, now time.Time) (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, fmt.Errorf("make CA key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: fmt.Sprintf("kubevirt.io %s %s", component, now.UTC().Format(time.RFC3339))},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(caLife),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return authority{}, fmt.Errorf("make CA certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	return authority{certificate, key}, err
}

func serial() *big.Int {
	random := make([]byte, 16)
	rand.Read(random) // never fails
	random[0] &= 0x7f // positive
	return new(big.Int).SetBytes(random)
}

// rotate drops authorities that are over, and the keys of those that sign no
// more, and puts a new one in front when it is time. It returns its argument,
// and false, when there is nothing to do.
func (as authorities) rotate(now time.Time, fresh func(time.Time) (authority, error)) (authorities, bool, error) {
	next := slices.DeleteFunc(slices.Clone(as), func(a authority) bool { return !now.Before(a.certificate.NotAfter) })
	if len(next) == 0 || !now.Before(renewAt(next[0].certificate)) || next[0].key == nil {
		a, err := fresh(now)
		if err != nil {
			return as, false, err
		}
		next = slices.Insert(next, 0, a)
	}
	retired := 0
	for i := next.signing(now) + 1; i < len(next); i++ {
		if next[i].key != nil {
			next[i].key = nil
			retired++
		}
	}
	if len(next) == len(as) && next[0] == as[0] && retired == 0 {
		return as, false, nil
	}
	return next, true, nil
}

// signing is the index of the authority that signs: the newest that all have
// heard of by now, or else the oldest that has a key.
func (as authorities) signing(now time.Time) int {
	last := 0
	for i, a := range as {
		if a.key == nil {
			break
		}
		last = i
		if !now.Before(a.made().Add(settleTime)) {
			break
		}
	}
	return last
}

// nextChange is when rotate will have something to do.
func (as authorities) nextChange(now time.Time) time.Time {
	next := renewAt(as[0].certificate)
	for i, a := range as {
		if i > 0 && a.key != nil {
			if settled := as[0].made().Add(settleTime); settled.Before(next) {
				next = settled
			}
		}
		if a.certificate.NotAfter.Before(next) {
			next = a.certificate.NotAfter
		}
	}
	return next
}

// sign makes the certificate, in PEM, of a request that was checked. Of the
// request it takes the key; all else is what virt-controller knows. A life of
// 0 is the longest.
func (as authorities) sign(w wanted, life time.Duration, now time.Time) ([]byte, error) {
	der, err := as.issue(&x509.Certificate{
		Subject: subject(w.role, w.node), DNSNames: w.role.dnsNames(w.node), ExtKeyUsage: []x509.ExtKeyUsage{w.role.extUsage()},
	}, w.key, life, now)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der}), nil
}

// issue makes a certificate, in DER, of names and extended usages. A life of 0
// is the longest.
func (as authorities) issue(names *x509.Certificate, key any, life time.Duration, now time.Time) ([]byte, error) {
	by := as[as.signing(now)]
	if by.key == nil {
		return nil, errors.New("sign certificate: there is no CA key")
	}
	if life <= 0 || life > certificateLife {
		life = certificateLife
	}
	end := now.Add(life)
	if end.After(by.certificate.NotAfter) {
		end = by.certificate.NotAfter
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: names.Subject, DNSNames: names.DNSNames,
		NotBefore: now.Add(-clockSkew), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: names.ExtKeyUsage, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.certificate, key, by.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return der, nil
}

const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "EC PRIVATE KEY"
)

// bundle is the PEM of the certificates, the newest first.
func (as authorities) bundle() []byte {
	var text []byte
	for _, a := range as {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: a.certificate.Raw})...)
	}
	return text
}

// keys is the PEM of the keys that there are.
func (as authorities) keys() ([]byte, error) {
	var text []byte
	for _, a := range as {
		if a.key == nil {
			continue
		}
		der, err := x509.MarshalECPrivateKey(a.key)
		if err != nil {
			return nil, fmt.Errorf("encode CA key: %w", err)
		}
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der})...)
	}
	return text, nil
}

// parseAuthorities reads what bundle and keys wrote.
func parseAuthorities(bundle, keys []byte) (authorities, error) {
	var as authorities
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read CA certificate: %w", err)
		}
		if !certificate.IsCA {
			return nil, fmt.Errorf("read CA certificate: %q is none", certificate.Subject)
		}
		as = append(as, authority{certificate: certificate})
	}
	for block, rest := pem.Decode(keys); block != nil; block, rest = pem.Decode(rest) {
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read CA key: %w", err)
		}
		for i := range as {
			if key.PublicKey.Equal(as[i].certificate.PublicKey) {
				as[i].key = key
			}
		}
	}
	slices.SortStableFunc(as, func(a, b authority) int { return b.certificate.NotBefore.Compare(a.certificate.NotBefore) })
	return as, nil
}

// same says whether two bundles are the same but for white space.
func same(a, b []byte) bool { return bytes.Equal(bytes.TrimSpace(a), bytes.TrimSpace(b)) }
