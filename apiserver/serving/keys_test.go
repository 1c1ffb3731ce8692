package serving

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

// TestNewKeysOfOthersAreKnownInMinutes: for three weeks, in which the CA is replaced, whatever one virt-api signs another one knows minutes later, even if that one has
// not seen the newest CA yet.
func TestNewKeysOfOthersAreKnownInMinutes(t *testing.T) {
	s := newServings(t, false)
	a, late := s.add(), s.add()
	if _, _, err := a.Keys("p"); err == nil {
		t.Error("keys without a CA")
	}
	step(t, a)
	behind := *s.secret // as the other one has seen the Secret
	late.CA = &behind
	used := map[string]bool{}
	const day = 24 * time.Hour
	for s.clock.Now().Before(start.Add(21 * day)) {
		sign, _, err := a.Keys("p")
		if err != nil {
			t.Fatal(err)
		}
		used[string(sign)] = true
		_, valid, err := late.Keys("p") // at once
		if err != nil || !has(valid, sign) {
			t.Fatalf("%s: the other one does not know the key (%v)", s.clock.Now(), err)
		}
		pause := 15 * time.Minute // longer than a token lives
		if after := s.clock.Now().Sub(start); after > 3*time.Hour && after < 20*day-4*time.Hour {
			pause = time.Hour // nothing happens
		}
		s.clock.SetTime(s.clock.Now().Add(pause))
		behind = *s.secret
		step(t, a)
		if _, valid, err = a.Keys("p"); err != nil || !has(valid, sign) {
			t.Fatalf("%s: the key of a quarter of an hour ago is not known (%v)", s.clock.Now(), err)
		}
	}
	if len(used) < 2 {
		t.Errorf("%d keys were used: no CA was replaced", len(used))
	}
	one, _, _ := a.Keys("p")
	if other, _, _ := a.Keys("q"); bytes.Equal(one, other) || len(one) != 32 {
		t.Error("another purpose has the same key")
	}
}

func has(keys [][]byte, key []byte) bool {
	return slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
}
