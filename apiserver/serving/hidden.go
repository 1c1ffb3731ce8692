package serving

import (
	"bytes"
	"fmt"
	"net/url"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// Hidden is a webhook whose path has a secret, which tells the API server from others that ask
// virt-api.
type Hidden struct {
	// Purpose of the keys at a time; see Certificate.Keys.
	Purpose func(now time.Time) string
	// Path returns the path with the secret of a key.
	Path func(key []byte) string
}

// lead sets the path that the API server asks at, and returns whether that changed something.
func (h Hidden) lead(config *admissionregistrationv1.WebhookClientConfig, cas authority.CAs, now time.Time) (bool, error) {
	key, valid, err := keys(cas, h.Purpose(now), now)
	if err != nil {
		return false, err
	}
	path := h.Path(key)
	// While a new CA settles, another replica may sign with it already, or not yet. Its path is kept.
	if was := pathOf(config); !bytes.Equal(key, valid[0]) && slices.ContainsFunc(valid, func(k []byte) bool { return h.Path(k) == was }) {
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
