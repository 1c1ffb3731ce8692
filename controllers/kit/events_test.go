package kit

import (
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/client-go/tools/events"
)

func TestBoundedEvents(t *testing.T) {
	for name, text := range map[string]string{
		"short":             "all is well, 100%",
		"as long as can be": strings.Repeat("x", noteLimit),
		"too long":          strings.Repeat("x", noteLimit+1),
		"of wide letters":   strings.Repeat("€", noteLimit),
	} {
		t.Run(name, func(t *testing.T) {
			to := events.NewFakeRecorder(1)
			BoundedEvents(to).Eventf(nil, nil, "Warning", "Reason", "Action", "%s", text)
			note := strings.TrimPrefix(<-to.Events, "Warning Reason ")
			if len(text) <= noteLimit && note != text || len(note) > noteLimit || !utf8.ValidString(note) {
				t.Errorf("the note has %d bytes: %q", len(note), note)
			}
			if kept := strings.TrimSuffix(note, "…"); !strings.HasPrefix(text, kept) || len(text) > noteLimit && (kept == note || len(kept) < noteLimit-6) {
				t.Errorf("of %d bytes, %d are kept: %q", len(text), len(kept), note)
			}
		})
	}
}
