// Package authority rotates CAs: a new CA is trusted before it signs, and an old CA for as long
// as the certificates that it signed.
package authority

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
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
	// Life is how long a CA is valid. A new CA replaces it after two thirds of its life; it
	// stays trusted until its end.
	Life = 30 * 24 * time.Hour
	// SettleTime is how long a new CA is only published, and does not sign. By then everyone
	// who checks certificates has read it; the kubelet takes two minutes.
	SettleTime = time.Hour
	// CertificateLife is the longest life of a certificate.
	CertificateLife = 24 * time.Hour
	// ClockSkew is how far the clocks of two nodes may differ.
	ClockSkew = 5 * time.Minute
)

// CA is one certificate authority. A CA that no longer signs has no key.
type CA struct {
	Certificate *x509.Certificate
	Key         *ecdsa.PrivateKey
}

// made is when the CA was made. Its certificate is dated back by ClockSkew.
func (a CA) made() time.Time { return a.Certificate.NotBefore.Add(ClockSkew) }

// ValidAt says whether a certificate is valid at a time. A certificate that is not valid yet is
// as useless as an expired one: a clock was ahead when it was made.
func ValidAt(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && now.Before(c.NotAfter)
}

// settled says whether everyone who checks certificates has read the CA.
func (a CA) settled(now time.Time) bool { return !now.Before(a.made().Add(SettleTime)) }

// RenewAt is when a CA, or a certificate, is due for replacement: after two thirds of its life.
func RenewAt(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

// CAs are the trusted certificate authorities, the newest first.
type CAs []CA

// New returns a function that makes CAs for one component.
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

// most is how many CAs are kept: two that rotate, and some that were made by wrong clocks.
const most = 8

// Rotate adds a new CA when it is time, and drops the keys of CAs that no longer sign. It
// returns its argument, and false, when there is nothing to do.
//
// Rotate keeps a CA that is not valid now, until it makes a new CA while a settled one signs.
// So a clock that is ahead for a while, here or on another node, takes away nothing that is
// needed once the clock is right again. Two clocks that disagree do not undo each other's work
// in turn.
func (as CAs) Rotate(now time.Time, fresh func(time.Time) (CA, error)) (CAs, bool, error) {
	next := slices.Clone(as)
	changed := false
	if newest := as.newest(now); newest < 0 || as[newest].Key == nil || !now.Before(RenewAt(as[newest].Certificate)) {
		a, err := fresh(now)
		if err != nil {
			return as, false, err
		}
		if signer := as.Signing(now); signer >= 0 && as[signer].settled(now) {
			next = slices.DeleteFunc(next, func(a CA) bool { return !ValidAt(a.Certificate, now) })
		}
		next = slices.Insert(next, 0, a)
		next.sort()
		next, changed = next.bounded(now), true
	}
	signer := next.Signing(now)
	for i := signer + 1; i < len(next) && next[signer].settled(now); i++ {
		if next[i].Key != nil && ValidAt(next[i].Certificate, now) {
			next[i].Key, changed = nil, true
		}
	}
	if !changed {
		return as, false, nil
	}
	return next, true, nil
}

// bounded drops CAs until at most most are left: first those farthest from being valid.
func (as CAs) bounded(now time.Time) CAs {
	distance := func(a CA) time.Duration {
		if ValidAt(a.Certificate, now) {
			return -1
		}
		return max(a.Certificate.NotBefore.Sub(now), now.Sub(a.Certificate.NotAfter))
	}
	for len(as) > most {
		farthest := 0
		for i := range as {
			if distance(as[i]) >= distance(as[farthest]) {
				farthest = i
			}
		}
		as = slices.Delete(as, farthest, farthest+1)
	}
	return as
}

// newest is the index of the newest valid CA, or -1.
func (as CAs) newest(now time.Time) int {
	return slices.IndexFunc(as, func(a CA) bool { return ValidAt(a.Certificate, now) })
}

// Signing is the index of the CA that signs: the newest valid CA that is settled, or else the
// oldest valid CA with a key. It is -1 if there is none.
func (as CAs) Signing(now time.Time) int {
	last := -1
	for i, a := range as {
		if !ValidAt(a.Certificate, now) {
			continue
		}
		if a.Key == nil {
			break
		}
		last = i
		if a.settled(now) {
			break
		}
	}
	return last
}

// NextChange is when Rotate may have something to do.
func (as CAs) NextChange(now time.Time) time.Time {
	newest := as.newest(now)
	if newest < 0 || as[newest].Key == nil {
		return now
	}
	next := RenewAt(as[newest].Certificate)
	for i, a := range as {
		switch {
		case now.Before(a.Certificate.NotBefore):
			next = earlier(next, a.Certificate.NotBefore)
		case i > newest && a.Key != nil && ValidAt(a.Certificate, now):
			next = earlier(next, as[newest].made().Add(SettleTime))
		}
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Issue makes a certificate, in DER, with the subject, DNS names and extended usages of names.
// A life of 0 means CertificateLife.
func (as CAs) Issue(names *x509.Certificate, key any, life time.Duration, now time.Time) ([]byte, error) {
	signer := as.Signing(now)
	if signer < 0 {
		return nil, errors.New("sign certificate: there is no CA that is valid now and has a key")
	}
	by := as[signer]
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

// Certify makes a key, and a certificate for it as Issue does, with the longest life.
func (as CAs) Certify(names *x509.Certificate, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	der, err := as.Issue(names, &key.PublicKey, 0, now)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
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

// Keys is the PEM of the CAs' keys, of those that have one.
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
	as.sort()
	return as, nil
}

func (as CAs) sort() {
	slices.SortStableFunc(as, func(a, b CA) int { return b.Certificate.NotBefore.Compare(a.Certificate.NotBefore) })
}

// SameBundle says whether two bundles are the same but for white space.
func SameBundle(a, b []byte) bool { return bytes.Equal(bytes.TrimSpace(a), bytes.TrimSpace(b)) }
