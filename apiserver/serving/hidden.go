package serving

import (
	"bytes"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// Hidden is a webhook whose path has a secret. The API server shows no certificate when it asks webhooks. So virt-api adds the
// secret to the path that the webhook's configuration names, and trusts a question that has the secret.
//
// Where the webhook's failurePolicy is Fail, the message of a question that fails has the path, and the account whose request it
// was reads the message. Such a webhook is asked for accounts only that may have a guest ended anyway. Nobody reads the message where
// the failurePolicy is Ignore.
type Hidden struct {
	// Path is where virt-api serves the webhook. The secret is the element after it.
	Path string
	// Purpose names what the keys of the secrets are for. Another purpose has other keys.
	Purpose string
}

// on returns the purpose of the keys of a day.
func (h Hidden) on(day time.Time) string { return h.Purpose + " " + day.UTC().Format(time.DateOnly) }

// Purposes returns those whose secrets are known: of today, of yesterday, and of tomorrow for a replica whose clock is behind.
func (h Hidden) Purposes(now time.Time) []string {
	const day = 24 * time.Hour
	return []string{h.on(now), h.on(now.Add(-day)), h.on(now.Add(day))}
}

// SecretPath returns the path with the secret of a key.
func (h Hidden) SecretPath(key []byte) string { return h.Path + "/" + hex.EncodeToString(key) }

// Trusts reports whether a path has the secret of one of the keys.
func (h Hidden) Trusts(path string, keys [][]byte) bool {
	secret, ok := strings.CutPrefix(path, h.Path+"/")
	if !ok {
		return false
	}
	found := 0
	for _, key := range keys {
		found |= subtle.ConstantTimeCompare([]byte(secret), []byte(hex.EncodeToString(key)))
	}
	return found == 1
}

// HiddenKeys returns the keys of all secrets that the path of a webhook may have now.
func (c *Certificate) HiddenKeys(h Hidden) ([][]byte, error) {
	var all [][]byte
	for _, purpose := range h.Purposes(c.Clock.Now()) {
		_, valid, err := c.Keys(purpose)
		if err != nil {
			return nil, err
		}
		all = append(all, valid...)
	}
	return all, nil
}

// lead sets the path that the API server asks at, and returns whether that changed something.
func (h Hidden) lead(config *admissionregistrationv1.WebhookClientConfig, cas authority.CAs, now time.Time) (bool, error) {
	key, valid, err := keys(cas, h.on(now), now)
	if err != nil {
		return false, err
	}
	path := h.SecretPath(key)
	// While a new CA settles, another replica may sign with it already, or not yet. Its path is kept.
	if was := pathOf(config); !bytes.Equal(key, valid[0]) && slices.ContainsFunc(valid, func(k []byte) bool { return h.SecretPath(k) == was }) {
		return false, nil
	}
	switch {
	case config.Service != nil:
		if ptr.Deref(config.Service.Path, "") == path {
			return false, nil
		}
		config.Service.Path = &path
	case config.URL != nil:
		at, err := url.Parse(*config.URL)
		if err != nil {
			return false, fmt.Errorf("read the URL of a webhook: %w", err)
		}
		if at.Path == path {
			return false, nil
		}
		at.Path = path
		config.URL = ptr.To(at.String())
	}
	return true, nil
}

// pathOf is the path that the API server asks at.
func pathOf(config *admissionregistrationv1.WebhookClientConfig) string {
	if config.Service != nil {
		return ptr.Deref(config.Service.Path, "")
	}
	at, err := url.Parse(ptr.Deref(config.URL, ""))
	if err != nil {
		return ""
	}
	return at.Path
}
