package serving

import (
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// keyDelay is how long after a CA was made its key is not used for new signatures yet. By then all replicas of
// virt-api have read it.
const keyDelay = time.Minute

// Keys derives from the CAs' keys, which all replicas of virt-api have, symmetric keys for a purpose: the one
// for new signatures, and all that signatures may have. A CA keeps its key for an hour after the
// next one is made (authority.SettleTime), so a signature of the last minutes is always known.
func (c *Certificate) Keys(purpose string) (sign []byte, valid [][]byte, err error) {
	secret := c.CA.Get()
	if secret == nil {
		return nil, nil, fmt.Errorf("read virt-api's CA: there is no Secret %s", SecretName)
	}
	held, err := authority.Parse(secret.Data[caCertificates], secret.Data[caKeys])
	if err != nil {
		return nil, nil, fmt.Errorf("read virt-api's CA from Secret %s: %w", SecretName, err)
	}
	return keys(held, purpose, c.Clock.Now())
}

func keys(held authority.CAs, purpose string, now time.Time) (sign []byte, valid [][]byte, err error) {
	settled := false
	for _, ca := range held { // the newest first
		if ca.Key == nil {
			continue
		}
		private, err := ca.Key.Bytes()
		if err != nil {
			return nil, nil, fmt.Errorf("derive keys: %w", err)
		}
		key, err := hkdf.Key(sha256.New, private, nil, purpose, sha256.Size)
		if err != nil {
			return nil, nil, fmt.Errorf("derive keys: %w", err)
		}
		valid = append(valid, key)
		made := ca.Certificate.NotBefore.Add(authority.ClockSkew)
		if !settled { // the only one, and the first, is used at once
			sign, settled = key, !now.Before(made.Add(keyDelay))
		}
	}
	if sign == nil {
		return nil, nil, errors.New("derive keys: virt-api has no CA yet")
	}
	return sign, valid, nil
}
