package image

import "bytes"

// vdi checks an image of VirtualBox.
func vdi(h *header) (Header, error) {
	p := h.part(0, sector)
	if p == nil {
		return Header{}, unusable("it is cut off within its header")
	}
	version, kind := little32(p, 0x44), little32(p, 0x4c)
	tableAt, dataAt := uint64(little32(p, 0x154)), uint64(little32(p, 0x158))
	virtual, block, blocks := little(p, 0x170), uint64(little32(p, 0x178)), uint64(little32(p, 0x180))
	var none [16]byte
	switch {
	case version != 1<<16|1:
		return Header{}, unusable("it has version %d.%d; 1.1 is known", version>>16, version&0xffff)
	case kind == 4 || !bytes.Equal(p[0x1a8:0x1b8], none[:]) || !bytes.Equal(p[0x1b8:0x1c8], none[:]):
		return Header{}, unusable("it has a parent; flatten it")
	case kind != 1 && kind != 2:
		return Header{}, unusable("it has the type %d; 1 and 2, dynamic and static, are known", kind)
	case virtual == 0 || virtual > maxVirtual:
		return Header{}, unusable("it claims that its disk has %d bytes", virtual)
	case block != 1<<20:
		return Header{}, unusable("its blocks have %d bytes; 1 MiB is known", block)
	case blocks != (virtual+block-1)/block:
		return Header{}, unusable("it has %d blocks, and its disk needs %d", blocks, (virtual+block-1)/block)
	case blocks*4 > qcow2MaxL1:
		return Header{}, unusable("its table of %d blocks is too long", blocks)
	case tableAt%sector != 0 || dataAt%sector != 0 || !h.inside(tableAt, blocks*4) || dataAt > uint64(h.size):
		return Header{}, unusable("it is cut off or corrupt: its table is outside of the file")
	}
	// QEMU takes a size that is no whole sectors for the next whole ones.
	return Header{Size: int64((virtual + sector - 1) &^ (sector - 1)), Cluster: int64(block)}, nil
}
