package virtcontroller

import (
	"fmt"
	"net/netip"
	"strings"
)

// addresses is a flag: blocks of addresses.
type addresses []string

func (a *addresses) String() string { return strings.Join(*a, ",") }

// Set parses blocks, as CIDRs with commas between them.
func (a *addresses) Set(list string) error {
	var blocks []string
	for block := range strings.SplitSeq(list, ",") {
		if block = strings.TrimSpace(block); block == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(block)
		if err != nil {
			return fmt.Errorf("read a block of addresses: %w", err)
		}
		blocks = append(blocks, prefix.Masked().String())
	}
	*a = blocks
	return nil
}
