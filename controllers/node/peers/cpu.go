package peers

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// CPU is what matters of a node's processor to a guest under KVM.
type CPU struct {
	// Vendor, Family and Model are those of /proc/cpuinfo.
	Vendor string `json:"vendor"`
	Family string `json:"family"`
	Model  string `json:"model"`
	// Flags are sorted.
	Flags []string `json:"flags"`
	// PhysBits is the width of physical addresses; 0 where it is not known.
	PhysBits int `json:"physBits,omitempty"`
}

// ReadCPU reads the first processor of a /proc/cpuinfo.
func ReadCPU(from io.Reader) (CPU, error) {
	var c CPU
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), ":")
		if !ok {
			break // an empty line ends a processor
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "vendor_id":
			c.Vendor = value
		case "cpu family":
			c.Family = value
		case "model":
			c.Model = value
		case "flags":
			c.Flags = strings.Fields(value)
			slices.Sort(c.Flags)
		case "address sizes":
			fmt.Sscanf(value, "%d bits physical", &c.PhysBits) // else it is not known
		}
	}
	if err := lines.Err(); err != nil {
		return c, fmt.Errorf("read /proc/cpuinfo: %w", err)
	}
	if c.Vendor == "" || len(c.Flags) == 0 {
		return c, fmt.Errorf("read /proc/cpuinfo: it names no vendor, or no flags")
	}
	return c, nil
}

// Takes returns why this processor cannot go on with a guest that began on another; empty if it can. The guest may
// use all that its processor has. With the host's own model, it also knows which processor that is. Named models have
// QEMU's width of physical addresses, whatever their node's is.
func (c CPU) Takes(from CPU, guest qemuargs.CPU) string {
	for _, flag := range from.Flags {
		if _, has := slices.BinarySearch(c.Flags, flag); !has {
			return fmt.Sprintf("the source's processor has %.32q, and the target's has not", flag)
		}
	}
	if bits := physBits(guest, from); c.PhysBits > 0 && bits > c.PhysBits {
		return fmt.Sprintf("the guest has physical addresses of %d bits, and the target's processor of %d", bits, c.PhysBits)
	}
	if guest.Model == "host" && (c.Vendor != from.Vendor || c.Family != from.Family || c.Model != from.Model) {
		return fmt.Sprintf("the guest has its node's own CPU model, and the processors differ: %.64q and %.64q", from.kind(), c.kind())
	}
	return ""
}

// physBits returns the width of a guest's physical addresses; 0 for QEMU's own, which every node has.
func physBits(guest qemuargs.CPU, source CPU) (bits int) {
	if guest.Model == "host" || guest.Model == "max" || slices.Contains(guest.Flags, "host-phys-bits=on") {
		bits = source.PhysBits
	}
	for _, flag := range guest.Flags {
		if text, ok := strings.CutPrefix(flag, "phys-bits="); ok {
			if n, err := strconv.Atoi(text); err == nil && n > 0 {
				bits = n
			}
		}
	}
	return bits
}

func (c CPU) kind() string { return c.Vendor + " " + c.Family + " " + c.Model }
