package kvmcheck

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHyperVInterfaces(t *testing.T) {
	got := interfaces([]uint32{0x10, 0x40000106, 0x40000000, 0x40000002}, true, false)
	if want := []string{"base", "reenlightenment", "tlbflush", "vpindex"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestAskThisMachinesKVM asks the machine's own KVM, if it has one: also a KVM that runs no guest well tells its frequency.
func TestAskThisMachinesKVM(t *testing.T) {
	offers, err := Checker{}.Ask(t.Context())
	if _, missing := os.Stat(device); missing != nil {
		if err == nil || !strings.Contains(err.Error(), "open "+device) {
			t.Errorf("without a KVM: %v", err)
		}
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

// TestAskingASilentKVMEnds: a KVM that does not answer does not hold up who asks.
func TestAskingASilentKVMEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := (Checker{Args: []string{"spin"}}).Ask(ctx); err == nil {
		t.Error("a child that never answers has an answer")
	}
	if _, err := (Checker{Args: []string{"loops", "1"}}).Ask(t.Context()); err == nil {
		t.Error("what is no offer is taken for one")
	}
}
