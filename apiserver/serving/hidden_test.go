package serving

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"
)

// TestEvictionWebhookPathIsSecret: one webhook's path gets a secret, whose key virt-api knows. The secret is another each
// day, and comes back when the path is taken away.
func TestEvictionWebhookPathIsSecret(t *testing.T) {
	s := newServings(t, true)
	s.validating.object.Webhooks = []admissionregistrationv1.ValidatingWebhook{
		{Name: "plain", ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Path: ptr.To("/plain")}}},
		{Name: "hidden", ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Path: ptr.To("/h")}}},
	}
	c := s.add()
	c.Hidden = map[string]Hidden{"hidden": {Purpose: func(now time.Time) string { return "p" + now.Format(time.DateOnly) }, Path: func(key []byte) string { return "/h/" + hex.EncodeToString(key) }}}
	path := func() string { return *s.validating.object.Webhooks[1].ClientConfig.Service.Path }
	known := func() bool {
		_, valid, err := c.Keys(c.Hidden["hidden"].Purpose(s.clock.Now()))
		if err != nil {
			t.Fatal(err)
		}
		secret, err := hex.DecodeString(strings.TrimPrefix(path(), "/h/"))
		return err == nil && has(valid, secret)
	}
	step(t, c)
	first := path()
	if first == "/h" || !known() || *s.validating.object.Webhooks[0].ClientConfig.Service.Path != "/plain" {
		t.Fatalf("the paths are %s and %s", *s.validating.object.Webhooks[0].ClientConfig.Service.Path, first)
	}
	s.validating.object.Webhooks[1].ClientConfig.Service.Path = ptr.To("/h")
	if step(t, c); path() != first {
		t.Errorf("the path is %s, and was %s", path(), first)
	}
	for end := s.clock.Now().Add(25 * 24 * time.Hour); s.clock.Now().Before(end); s.clock.SetTime(s.clock.Now().Add(30 * time.Minute)) {
		if step(t, c); !known() {
			t.Fatalf("%s: virt-api does not know the secret", s.clock.Now())
		}
	}
	if path() == first {
		t.Error("the secret of the first day is that of the last")
	}
	step(t, c)
	at := &admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://localhost:1/h")}
	cas, err := c.authorities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := c.Hidden["hidden"].lead(at, cas, s.clock.Now()); err != nil || !changed || *at.URL != "https://localhost:1"+path() {
		t.Errorf("a URL becomes %s: %v, %v", *at.URL, changed, err)
	}
	if changed, err := c.Hidden["hidden"].lead(at, cas, s.clock.Now()); err != nil || changed {
		t.Errorf("a URL that is right changes: %v, %v", changed, err)
	}
}
