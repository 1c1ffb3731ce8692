package upload

import (
	"strings"
	"testing"
	"time"
)

var (
	now     = time.Unix(4000000000, 0)
	granted = grant{Namespace: "ns", Claim: "disk", UID: "u", Until: now.Add(tokenLife).Unix()}
	keys    = Keys{Sign: []byte("one"), Valid: [][]byte{[]byte("two"), []byte("one")}}
)

func signed(t *testing.T, k Keys, g grant) string {
	t.Helper()
	token, err := k.sign(g)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestOnlyAValidTokenIsGood(t *testing.T) {
	good := signed(t, keys, granted)
	payload, signature, _ := strings.Cut(good, ".")
	other := granted
	other.Namespace = "kube-system"
	another, _, _ := strings.Cut(signed(t, keys, other), ".")
	for name, c := range map[string]struct {
		token string
		at    time.Time
		good  bool
	}{
		"good":                             {good, now, true},
		"at the end":                       {good, now.Add(tokenLife - time.Second), true},
		"expired":                          {good, now.Add(tokenLife), false},
		"of a clock that is a little fast": {good, now.Add(-time.Minute), true},
		"of the future":                    {good, now.Add(-time.Hour), false},
		"none":                             {"", now, false},
		"no signature":                     {payload, now, false},
		"an empty signature":               {payload + ".", now, false},
		"a signature alone":                {"." + signature, now, false},
		"a part of the signature":          {good[:len(good)-4], now, false},
		"another payload":                  {another + "." + signature, now, false},
		"another signature":                {payload + "." + encoding.EncodeToString(mac([]byte("one"), payload+"x")), now, false},
		"another key":                      {signed(t, Keys{Sign: []byte("three")}, granted), now, false},
		"no key":                           {signed(t, Keys{}, granted), now, false},
		"more parts":                       {good + "." + signature, now, false},
		"padded":                           {payload + "=." + signature, now, false},
		"much too long":                    {strings.Repeat("a", maxToken) + "." + signature, now, false},
		"without a claim":                  {signed(t, keys, grant{Namespace: "ns", UID: "u", Until: granted.Until}), now, false},
		"without a UID":                    {signed(t, keys, grant{Namespace: "ns", Claim: "c", Until: granted.Until}), now, false},
		"not JSON":                         {encoding.EncodeToString([]byte("x")) + "." + encoding.EncodeToString(mac([]byte("one"), encoding.EncodeToString([]byte("x")))), now, false},
	} {
		g, err := keys.verify(c.token, c.at)
		if (err == nil) != c.good || c.good && g != granted || !c.good && g != (grant{}) {
			t.Errorf("%s: %+v, %v", name, g, err)
		}
	}
	if _, err := (Keys{}).verify(good, now); err == nil {
		t.Error("without keys a token is good")
	}
	if _, err := keys.sign(grant{Claim: strings.Repeat("a", maxToken)}); err == nil {
		t.Error("a token without bound")
	}
}

func FuzzToken(f *testing.F) {
	token, err := keys.sign(granted)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token)
	f.Add("a.b")
	f.Fuzz(func(t *testing.T, text string) {
		if g, err := keys.verify(text, now); err == nil && g != granted {
			t.Errorf("%q permits %+v", text, g)
		}
	})
}
