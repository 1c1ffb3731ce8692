package main

import (
	"encoding/binary"
	"fmt"
	"testing"
)

func TestParseRoutes(t *testing.T) {
	// 10.244.0.1 as the kernel of this machine writes it.
	native := fmt.Sprintf("%08X", binary.NativeEndian.Uint32([]byte{10, 244, 0, 1}))
	const title = "Iface\tDestination\tGateway \tFlags\n"
	for name, c := range map[string]struct {
		text4, text6, want string
		bad                bool
	}{
		"no routes": {title, "", "[]", false},
		"a bridge": {title + "eth0\t00000000\t" + native + "\t0003\neth0\t0000F40A\t00000000\t0001\n",
			"fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0\n" +
				"00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n",
			"[10.244.0.1 fd00::1]", false},
		"half a line":       {title + "eth0\t00000000\n", "", "[]", true},
		"no number":         {title + "eth0\t00000000\tx\n", "", "[]", true},
		"a long number":     {title + "eth0\t00000000\t0102030405\n", "", "[]", true},
		"half a line of 6":  {title, "00 00\n", "[]", true},
		"no number of IPv6": {title, "00 00 00 00 xyz\n", "[]", true},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := parseRoutes4(c.text4)
			if err == nil {
				more, err6 := parseRoutes6(c.text6)
				all, err = append(all, more...), err6
			}
			if got := fmt.Sprint(all); got != c.want || (err != nil) != c.bad {
				t.Errorf("%s, %v; want %s, an error: %v", got, err, c.want, c.bad)
			}
		})
	}
}

// TestGatewayFilesAreThere: the files are where the kernel has them.
func TestGatewayFilesAreThere(t *testing.T) {
	if _, err := gateways(); err != nil {
		t.Error(err)
	}
}
