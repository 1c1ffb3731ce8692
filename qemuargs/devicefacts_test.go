package qemuargs

import "testing"

func TestIsPCIAddress(t *testing.T) {
	for text, want := range map[string]bool{
		"0000:3b:02.1": true, "ffff:ff:1f.7": true, "0000:00:00.0": true,
		"0000:3b:2f.1": false, "0000:3b:02.8": false, "0000:3B:02.1": false, "000g:3b:02.1": false, "0000:3b:0:.1": false,
		"3b:02.1": false, "00000:3b:02.1": false, "0000-3b:02.1": false, "0000:3b:02:1": false, "0000:3b:02.1\n": false, "": false,
	} {
		if got := IsPCIAddress(text); got != want {
			t.Errorf("%q is a PCI address: %v, want %v", text, got, want)
		}
	}
}
