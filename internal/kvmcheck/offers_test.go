package kvmcheck

import (
	"errors"
	"io/fs"
	"slices"
	"testing"
)

func TestInterfaces(t *testing.T) {
	got := interfaces([]uint32{0x10, 0x40000106, 0x40000000, 0x40000002}, true, false)
	if want := []string{"base", "reenlightenment", "tlbflush", "vpindex"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestAsk asks the machine's own KVM, if it has one: also a KVM that runs no guest well tells its frequency.
func TestAsk(t *testing.T) {
	offers, err := Ask()
	if errors.Is(err, fs.ErrNotExist) {
		t.Logf("this machine has no KVM: %v", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if offers.TSCHertz < 500_000_000 || offers.TSCHertz > 10_000_000_000 {
		t.Errorf("%+v", offers)
	}
	t.Logf("%+v", offers)
}
