package v1

import (
	"math/bits"
)

// maxAPICID is the last number by which an interrupt finds a CPU without the host's help.
const maxAPICID = 254

// APICSockets returns how many sockets a machine can have: each level of a CPU's APIC ID takes whole bits, so that
// sockets of 3 cores have the numbers of 4.
func (c *CPU) APICSockets() uint32 {
	threadBits, coreBits := bits.Len32(max(c.Threads, 1)-1), bits.Len32(max(c.Cores, 1)-1)
	last := uint64(max(c.Cores, 1)-1)<<threadBits + uint64(max(c.Threads, 1)-1) // of a socket
	if last > maxAPICID {
		return 1
	}
	return uint32((maxAPICID-last)>>(threadBits+coreBits)) + 1
}

// LimitMaxSockets makes MaxSockets as large as a machine can have it. An instancetype does not know how a preference
// lays out its CPUs: 32 sockets of one core each are 32 sockets of 32 cores each with a preference for cores.
func (c *CPU) LimitMaxSockets() {
	if perSocket := uint64(c.Cores) * uint64(c.Threads); perSocket > 0 && uint64(c.MaxSockets)*perSocket > MaxVCPUs {
		c.MaxSockets = max(c.Sockets, uint32(MaxVCPUs/perSocket))
	}
	c.MaxSockets = min(c.MaxSockets, max(c.Sockets, c.APICSockets()))
}
