package v1

import (
	"fmt"
	"testing"
)

func TestRealtimeCPUs(t *testing.T) {
	for _, tt := range []struct {
		mask string
		n    int
		want string // the CPUs; empty for an error
	}{
		{"", 3, "[0 1 2]"}, {"0", 3, "[0]"}, {"0-2", 3, "[0 1 2]"}, {"0-2,^1", 3, "[0 2]"}, {"^1,0-2", 3, "[0 1 2]"},
		{"2,0", 3, "[0 2]"},
		{"3", 3, ""}, {"2-1", 3, ""}, {"0-3", 3, ""}, {"^0", 3, ""}, {"0,^0", 3, ""}, {"x", 3, ""}, {"0,", 3, ""},
		{"-1", 3, ""}, {"1000", 3, ""},
	} {
		cpus, err := (&Realtime{Mask: tt.mask}).CPUs(tt.n)
		if got := fmt.Sprint(cpus); (err != nil) != (tt.want == "") || err == nil && got != tt.want {
			t.Errorf("mask %q of %d CPUs: %s, %v, want %q", tt.mask, tt.n, got, err, tt.want)
		}
	}
}
