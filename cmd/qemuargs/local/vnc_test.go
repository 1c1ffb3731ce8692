package local

import "testing"

func TestParseVNC(t *testing.T) {
	for text, want := range map[string]string{
		"": "", UnixVNC: UnixVNC, "5901": "127.0.0.1:5901", ":5901": "127.0.0.1:5901", "0.0.0.0:5901": "0.0.0.0:5901", "[::1]:5901": "[::1]:5901",
	} {
		if got, err := ParseVNC(text); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"x", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:vnc", "::1:5901"} {
		if got, err := ParseVNC(text); err == nil {
			t.Errorf("%q: %q, want an error", text, got)
		}
	}
}
