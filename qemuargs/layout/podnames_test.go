package layout

import (
	"strings"
	"testing"
)

// TestPodNamesAreLabels: whatever a thing is called, its name in the pod is a DNS label that no other thing has.
func TestPodNamesAreLabels(t *testing.T) {
	long := strings.Repeat("a", 63)
	seen := map[string]string{}
	for _, c := range []struct{ kind, name, want string }{
		{"claim", "data", "claim-data"},
		{"disk", "data", "disk-data"},
		{"claim", long[:57], "claim-" + long[:57]},
		{"claim", long[:58], "claim-" + long[:46] + "-"},
		{"claim", long, "claim-" + long[:46] + "-"},
		{"claim", long[:45] + "-" + long[:17], "claim-" + long[:45] + "-"},
		{"passt", "default", "passt-default"},
		{"passt", "Lan_1", "passt-lan-1-"},
		{"passt", "lan_1", "passt-lan-1-"},
		{"passt", "lan-1", "passt-lan-1"},
		{"passt", "lan-", "passt-lan-"},
		{"passt", "_", "passt-"},
		{"passt", "ä", "passt-"},
	} {
		got := PodName(c.kind, c.name)
		if !isLabel(got) || len(got) > maxLabel {
			t.Errorf("%s %s: %s is no label", c.kind, c.name, got)
		}
		rest, begins := strings.CutPrefix(got, c.want)
		hash := 0
		if strings.HasSuffix(c.want, "-") {
			hash = hashLength
		}
		if !begins || len(rest) != hash {
			t.Errorf("%s %s: %s, want %s", c.kind, c.name, got, c.want)
		}
		if other, taken := seen[got]; taken {
			t.Errorf("%s %s and %s are both %s", c.kind, c.name, other, got)
		}
		seen[got] = c.kind + " " + c.name
	}
}
