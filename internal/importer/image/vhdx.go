package image

import (
	"bytes"
	"encoding/binary"
)

// vhdxRegions are the places of the table of regions and of its copy.
const (
	vhdxRegions     = 192 << 10
	vhdxRegionsCopy = 256 << 10
	vhdxTable       = 64 << 10
	vhdxMaxEntries  = 2047
)

// guid is a GUID as a vhdx image has it: the first three parts are little-endian.
type guid [16]byte

func newGUID(a uint32, b, c uint16, rest ...byte) (g guid) {
	binary.LittleEndian.PutUint32(g[:], a)
	binary.LittleEndian.PutUint16(g[4:], b)
	binary.LittleEndian.PutUint16(g[6:], c)
	copy(g[8:], rest)
	return g
}

// vhdx checks an image of Hyper-V. QEMU finds by itself that one is cut off. Both tables of regions are looked at: QEMU takes the second if the
// first's checksum is wrong.
func vhdx(h *header) (Header, error) {
	metadata := newGUID(0x8b7ca206, 0x4790, 0x4b9a, 0xb8, 0xfe, 0x57, 0x5f, 0x05, 0x0f, 0x88, 0x6e)
	size, found := int64(0), false
	for _, at := range []uint64{vhdxRegions, vhdxRegionsCopy} {
		table := h.part(at, vhdxTable)
		if table == nil {
			return Header{}, unusable("it is cut off within its header")
		}
		if string(table[:4]) != "regi" {
			continue
		}
		entries := uint64(little32(table, 8))
		if entries > vhdxMaxEntries {
			return Header{}, unusable("its table of regions has %d entries", entries)
		}
		for i := range entries {
			entry := table[16+32*i:][:32]
			if guid(entry[:16]) != metadata {
				continue
			}
			virtual, err := vhdxMetadata(h, little(entry, 16))
			if err != nil {
				return Header{}, err
			}
			if found && virtual != size {
				return Header{}, unusable("its two tables of regions contradict each other")
			}
			size, found = virtual, true
		}
	}
	if !found {
		return Header{}, unusable("it is corrupt: its metadata are missing")
	}
	return Header{Size: size}, nil
}

// vhdxMetadata reads the disk's size, and refuses a disk with a parent.
func vhdxMetadata(h *header, at uint64) (int64, error) {
	parameters := newGUID(0xcaa16737, 0xfa36, 0x4d43, 0xb3, 0xb6, 0x33, 0xf0, 0xaa, 0x44, 0xe7, 0x6b)
	virtual := newGUID(0x2fa54224, 0xcd1b, 0x4876, 0xb2, 0x11, 0x5d, 0xbe, 0xd8, 0x3b, 0xf4, 0xb8)
	parent := newGUID(0xa8d35f2d, 0xb30b, 0x454d, 0xab, 0xf7, 0xd3, 0xd8, 0x48, 0x34, 0xab, 0x0c)
	table := h.part(at, vhdxTable)
	if table == nil || !bytes.HasPrefix(table, []byte("metadata")) {
		return 0, unusable("it is cut off or corrupt: its metadata are outside of the file")
	}
	entries := uint64(binary.LittleEndian.Uint16(table[10:]))
	if entries > vhdxMaxEntries {
		return 0, unusable("its metadata have %d entries", entries)
	}
	size, block := uint64(0), uint64(0)
	for i := range entries {
		entry := table[32+32*i:][:32]
		id, offset := guid(entry[:16]), at+uint64(little32(entry, 16))
		if id == parent {
			return 0, unusable("it has a parent; flatten it")
		}
		if id != parameters && id != virtual {
			continue
		}
		value := h.part(offset, 8)
		switch {
		case value == nil:
			return 0, unusable("it is cut off: its metadata are outside of the file")
		case id == virtual:
			size = little(value, 0)
		case little32(value, 4)&2 != 0:
			return 0, unusable("it has a parent; flatten it")
		default:
			block = uint64(little32(value, 0))
		}
	}
	switch {
	case block < 1<<20 || block > 256<<20 || block&(block-1) != 0:
		return 0, unusable("its blocks have %d bytes", block)
	case size == 0 || size > maxVirtual || size%sector != 0:
		return 0, unusable("it claims that its disk has %d bytes", size)
	case size/block*8 > qcow2MaxL1:
		return 0, unusable("its table of blocks is too long")
	}
	return int64(size), nil
}
