package remote

import (
	"errors"
	"net/netip"
	"testing"
)

// TestWhichAddressesASourceMayHave: which addresses a source may have.
func TestWhichAddressesASourceMayHave(t *testing.T) {
	t.Parallel()
	rules := Addresses{
		Node:      []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("::ffff:192.0.2.8")},
		Forbidden: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00:1::/64")},
		Permitted: []netip.Prefix{netip.MustParsePrefix("10.42.7.0/24"), netip.MustParsePrefix("169.254.9.9/32"), netip.MustParsePrefix("fe80::9/128")},
	}
	for address, good := range map[string]bool{
		"93.184.216.34": true, "10.0.0.1": true, "192.168.1.1": true, "2606:4700::1": true, "fd00:2::1": true,
		"127.0.0.1": false, "127.255.1.2": false, "::1": false, "::ffff:127.0.0.1": false,
		"169.254.169.254": false, "fe80::1": false, "fe80::1%eth0": false, "::ffff:169.254.169.254": false, "fd00:1::254": false,
		"0.0.0.0": false, "::": false, "0.1.2.3": false, "::ffff:0.0.0.0": false,
		"224.0.0.1": false, "ff02::1": false, "255.255.255.255": false,
		"192.0.2.7": false, "::ffff:192.0.2.7": false, "2001:db8::7": false, "192.0.2.8": false, "192.0.2.9": true,
		"10.42.1.1": false, "10.42.7.1": true, "::ffff:10.42.7.1": true, "169.254.9.9": true, "fe80::9%eth0": true,
		"64:ff9b::127.0.0.1": false, "64:ff9b::169.254.169.254": false, "64:ff9b::93.184.216.34": true,
		"fd00:ec2::254": false, "100.100.100.200": false, "64:ff9b:1::169.254.169.254": false, "::ffff:0:127.0.0.1": false,
		"2002:7f00:1::": false, "2002:5db8:d822::1": true, "::127.0.0.1": false,
	} {
		if err := rules.check(netip.MustParseAddr(address)); (err == nil) != good || err != nil && !errors.Is(err, ErrAddress) {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, dialled := range []string{"", "localhost:80", "1.2.3.4"} {
		if err := rules.control("tcp", dialled, nil); !errors.Is(err, ErrAddress) {
			t.Errorf("%q may be dialled: %v", dialled, err)
		}
	}
}
