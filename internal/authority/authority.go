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

// ValidAt says whether a certificate is believed at a time. One whose time is
// yet to come is as useless as one that has expired: some clock was ahead when it
// was made.
func ValidAt(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && now.Before(c.NotAfter)
}

// settled says whether all who check certificates have heard of the authority.
func (a CA) settled(now time.Time) bool { return !now.Before(a.made().Add(SettleTime)) }

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

// most is how many authorities are kept: two in their turn, and some that clocks
// made that were wrong.
const most = 8

// Rotate puts a new authority in front of those that are valid when it is time,
// and drops the keys of those that sign no more. It returns its argument, and
// false, when there is nothing to do.
//
// Rotate keeps an authority that is not valid now until it makes a new authority
// while a settled one signs. So a clock that is ahead for a while, here or on another
// node, takes away nothing that is needed once the clock is right again. Two clocks
// that disagree do not undo each other's work in turn.
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

// bounded drops what is not valid, and farthest from it, where there is too much.
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

// newest is the index of the newest authority that is valid, or -1.
func (as CAs) newest(now time.Time) int {
	return slices.IndexFunc(as, func(a CA) bool { return ValidAt(a.Certificate, now) })
}

// Signing is the index of the authority that signs: of those that are valid, the
// newest that all have heard of by now, or else the oldest that has a key. It is
// -1 where there is none.
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

// Issue makes a certificate, in DER, of names and extended usages. A life of 0
// is the longest.
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
	as.sort()
	return as, nil
}

func (as CAs) sort() {
	slices.SortStableFunc(as, func(a, b CA) int { return b.Certificate.NotBefore.Compare(a.Certificate.NotBefore) })
}

// SameBundle says whether two bundles are the same but for white space.
func SameBundle(a, b []byte) bool { return bytes.Equal(bytes.TrimSpace(a), bytes.TrimSpace(b)) }
