package virtcontroller

import "testing"

func TestAddressListFlag(t *testing.T) {
	for list, want := range map[string]string{"": "", "10.0.0.0/8": "10.0.0.0/8", " 10.1.2.3/8, fd00::1/64 ,": "10.0.0.0/8,fd00::/64"} {
		var a addresses
		if err := a.Set(list); err != nil || a.String() != want {
			t.Errorf("%q: %q (%v), want %q", list, a.String(), err, want)
		}
	}
	for _, list := range []string{"10.0.0.1", "example.com/8", "10.0.0.0/33", "fe80::1%eth0/64"} {
		var a addresses
		if err := a.Set(list); err == nil {
			t.Errorf("%q: %q", list, a.String())
		}
	}
}
