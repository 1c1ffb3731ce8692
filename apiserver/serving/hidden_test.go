package serving

import (
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"
)

// TestWebhookPathIsSecret: one webhook's path gets a secret, whose key virt-api knows. The secret is another each
// day, and comes back when the path is taken away.
func TestWebhookPathIsSecret(t *testing.T) {
	s := newServings(t, true)
	s.validating.object.Webhooks = []admissionregistrationv1.ValidatingWebhook{
		{Name: "plain", ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Path: ptr.To("/plain")}}},
		{Name: "hidden", ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Path: ptr.To("/h")}}},
	}
	c := s.add()
	hidden := Hidden{Path: "/h", Purpose: "p"}
	c.Hidden = map[string]Hidden{"hidden": hidden}
	path := func() string { return *s.validating.object.Webhooks[1].ClientConfig.Service.Path }
	known := func() bool {
		keys, err := c.HiddenKeys(hidden)
		if err != nil {
			t.Fatal(err)
		}
		return hidden.Trusts(path(), keys)
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
	if changed, err := hidden.lead(at, cas, s.clock.Now()); err != nil || !changed || *at.URL != "https://localhost:1"+path() {
		t.Errorf("a URL becomes %s: %v, %v", *at.URL, changed, err)
	}
	if changed, err := hidden.lead(at, cas, s.clock.Now()); err != nil || changed {
		t.Errorf("a URL that is right changes: %v, %v", changed, err)
	}
}

func TestOnlySecretPathsAreTrusted(t *testing.T) {
	h := Hidden{Path: "/h", Purpose: "p"}
	one, two := []byte("one"), []byte("two")
	for path, want := range map[string]bool{
		h.SecretPath(one): true, h.SecretPath(two): true, h.SecretPath([]byte("three")): false, h.Path: false, h.Path + "/": false, "/x" + h.SecretPath(one): false,
		h.SecretPath(one) + "/": false, h.SecretPath(one)[:len(h.SecretPath(one))-1]: false, "": false, Hidden{Path: "/other"}.SecretPath(one): false,
	} {
		if got := h.Trusts(path, [][]byte{one, two}); got != want {
			t.Errorf("%q is trusted: %v, want %v", path, got, want)
		}
	}
	if h.Trusts(h.SecretPath(nil), nil) || h.Trusts(h.SecretPath(one), nil) {
		t.Error("a path is trusted without keys")
	}
}
