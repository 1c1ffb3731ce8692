package kit

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestSooner: the shorter of two waits, and 0 is none.
func TestSooner(t *testing.T) {
	for a, cases := range map[time.Duration]map[time.Duration]time.Duration{0: {0: 0, 5: 5}, 3: {0: 3, 5: 3, 2: 2}} {
		for b, want := range cases {
			if got := Sooner(a, b); got != want {
				t.Errorf("Sooner(%d, %d) is %d", a, b, got)
			}
		}
	}
}

// TestIgnoreConflict: a write that came second, and one of an object that is gone, are no errors.
func TestIgnoreConflict(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	other := errors.New("other")
	for _, err := range []error{nil, apierrors.NewConflict(pods, "a", other), apierrors.NewNotFound(pods, "a")} {
		if got := IgnoreConflict(err); got != nil {
			t.Errorf("of %v: %v", err, got)
		}
	}
	if got := IgnoreConflict(other); got != other {
		t.Errorf("of another error: %v", got)
	}
}
