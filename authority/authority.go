// Package authority keeps certificate authorities that replace each other
// without anybody noticing: a new one is believed for a while before it signs,
// and an old one for as long as what it signed.
package authority

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
	// Life is how long a certificate authority is good for. It is replaced
	// when two thirds are over, and believed until its end.
	Life = 30 * 24 * time.Hour
	// SettleTime is how long a new authority is only published: by then all who
	// check certificates have read it. The kubelet takes two minutes.
	SettleTime = time.Hour
	// CertificateLife is the longest life of a certificate.
	CertificateLife = 24 * time.Hour
	// ClockSkew is how far the clocks of two nodes may differ.
	ClockSkew = 5 * time.Minute
)

// CA is one certificate authority. Old ones have no key.
type CA struct {
	Certificate *x509.Certificate
	Key         *ecdsa.PrivateKey
}

// made is when the authority was made; its certificate is dated back.
func (a CA) made() time.Time { return a.Certificate.NotBefore.Add(ClockSkew) }

// RenewAt is when the next authority, or certificate, is to be made.
func RenewAt(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

// CAs are the certificate authorities that are believed, the newest first.
type CAs []CA

// New returns what makes authorities that certify one component only.
func New(component string) func(now time.Time) (CA, error) {
	return func(now time.Time) (CA, error) { return newCA(component, now) }
}

func newCA(component string, now time.Time) (CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return CA{}, fmt.Errorf("make CA key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: fmt.Sprintf("kubevirt.io %s %s", component, now.UTC().Format(time.RFC3339))},
		NotBefore: now.Add(-ClockSkew), NotAfter: now.Add(Life),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return CA{}, fmt.Errorf("make CA certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	return CA{certificate, key}, err
}

func serial() *big.Int {
	random := make([]byte, 16)
	rand.Read(random) // never fails
	random[0] &= 0x7f // positive
	return new(big.Int).SetBytes(random)
}

// Rotate drops authorities that are over, and the keys of those that sign no
// more, and puts a new one in front when it is time. It returns its argument,
// and false, when there is nothing to do.
func (as CAs) Rotate(now time.Time, fresh func(time.Time) (CA, error)) (CAs, bool, error) {
	next := slices.DeleteFunc(slices.Clone(as), func(a CA) bool { return !now.Before(a.Certificate.NotAfter) })
	if len(next) == 0 || !now.Before(RenewAt(next[0].Certificate)) || next[0].Key == nil {
		a, err := fresh(now)
		if err != nil {
			return as, false, err
		}
		next = slices.Insert(next, 0, a)
	}
	retired := 0
	for i := next.Signing(now) + 1; i < len(next); i++ {
		if next[i].Key != nil {
			next[i].Key = nil
			retired++
		}
	}
	if len(next) == len(as) && next[0] == as[0] && retired == 0 {
		return as, false, nil
	}
	return next, true, nil
}

// Signing is the index of the authority that signs: the newest that all have
// heard of by now, or else the oldest that has a key.
func (as CAs) Signing(now time.Time) int {
	last := 0
	for i, a := range as {
		if a.Key == nil {
			break
		}
		last = i
		if !now.Before(a.made().Add(SettleTime)) {
			break
		}
	}
	return last
}

// NextChange is when Rotate will have something to do.
func (as CAs) NextChange(now time.Time) time.Time {
	next := RenewAt(as[0].Certificate)
	for i, a := range as {
		if i > 0 && a.Key != nil {
			if settled := as[0].made().Add(SettleTime); settled.Before(next) {
				next = settled
			}
		}
		if a.Certificate.NotAfter.Before(next) {
			next = a.Certificate.NotAfter
		}
	}
	return next
}

// Issue makes a certificate, in DER, of names and extended usages. A life of 0
// is the longest.
func (as CAs) Issue(names *x509.Certificate, key any, life time.Duration, now time.Time) ([]byte, error) {
	by := as[as.Signing(now)]
	if by.Key == nil {
		return nil, errors.New("sign certificate: there is no CA key")
	}
	if life <= 0 || life > CertificateLife {
		life = CertificateLife
	}
	end := now.Add(life)
	if end.After(by.Certificate.NotAfter) {
		end = by.Certificate.NotAfter
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: names.Subject, DNSNames: names.DNSNames,
		NotBefore: now.Add(-ClockSkew), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: names.ExtKeyUsage, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.Certificate, key, by.Key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return der, nil
}

const (
	CertificateBlock = "CERTIFICATE"
	keyBlock         = "EC PRIVATE KEY"
)

// Bundle is the PEM of the certificates, the newest first.
func (as CAs) Bundle() []byte {
	var text []byte
	for _, a := range as {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: CertificateBlock, Bytes: a.Certificate.Raw})...)
	}
	return text
}

// Keys is the PEM of the keys that there are.
func (as CAs) Keys() ([]byte, error) {
	var text []byte
	for _, a := range as {
		if a.Key == nil {
			continue
		}
		der, err := x509.MarshalECPrivateKey(a.Key)
		if err != nil {
			return nil, fmt.Errorf("encode CA key: %w", err)
		}
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der})...)
	}
	return text, nil
}

// Parse reads what Bundle and Keys wrote.
func Parse(bundle, keys []byte) (CAs, error) {
	var as CAs
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read CA certificate: %w", err)
		}
		if !certificate.IsCA {
			return nil, fmt.Errorf("read CA certificate: %q is none", certificate.Subject)
		}
		as = append(as, CA{Certificate: certificate})
	}
	for block, rest := pem.Decode(keys); block != nil; block, rest = pem.Decode(rest) {
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read CA key: %w", err)
		}
		for i := range as {
			if key.PublicKey.Equal(as[i].Certificate.PublicKey) {
				as[i].Key = key
			}
		}
	}
	slices.SortStableFunc(as, func(a, b CA) int { return b.Certificate.NotBefore.Compare(a.Certificate.NotBefore) })
	return as, nil
}

// SameBundle says whether two bundles are the same but for white space.
func SameBundle(a, b []byte) bool { return bytes.Equal(bytes.TrimSpace(a), bytes.TrimSpace(b)) }
