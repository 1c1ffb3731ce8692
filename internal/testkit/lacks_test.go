package testkit

import (
	"fmt"
	"strings"
	"testing"
)

// verdict is a test that takes down how it ends.
type verdict struct {
	testing.TB
	said string
}

func (v *verdict) Fatalf(format string, args ...any) {
	v.said = "failed: " + fmt.Sprintf(format, args...)
}
func (v *verdict) Skipf(format string, args ...any) {
	v.said = "skipped: " + fmt.Sprintf(format, args...)
}

// TestLacksFailsWhereEverythingIsDemanded: what is skipped elsewhere is a failure in make test, and both name the command.
func TestLacksFailsWhereEverythingIsDemanded(t *testing.T) {
	for value, want := range map[string]string{"": "skipped: ", "1": "failed: "} {
		t.Setenv(everything, value)
		v := &verdict{TB: t}
		Lacks(v, "QEMU", "make packages", nil)
		if !strings.HasPrefix(v.said, want) || !strings.Contains(v.said, "make packages") {
			t.Errorf("with %s=%s the test %s", everything, value, v.said)
		}
	}
}
