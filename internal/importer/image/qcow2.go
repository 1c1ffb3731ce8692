package image

// Incompatible features of qcow2 (QEMU: docs/interop/qcow2.rst) that are accepted: an image that was
// not closed (its reference counts may be wrong, which reading does not use), the compression's type,
// and extended L2 entries. A corrupt image, one with an external data file and what is not known are
// refused.
const qcow2Features = 1<<0 | 1<<3 | 1<<4

const (
	qcow2MaxSnapshots = 1024
	// qcow2MaxL1 is half of what QEMU takes: qemu-img holds the table in memory.
	qcow2MaxL1 = 16 << 20
	// qcow2MaxRefcounts is what QEMU takes.
	qcow2MaxRefcounts = 8 << 20
)

// Header extensions of qcow2 that are refused, although QEMU would need more than them to open another
// file.
const (
	qcow2DataFile = 0x44415441
	qcow2Crypto   = 0x0537be77
)

func qcow2(h *header) (Header, error) {
	p := h.part(0, 72)
	if p == nil {
		return Header{}, unusable("it is cut off within its header")
	}
	version, bits, virtual := big32(p, 4), big32(p, 20), big(p, 24)
	l1, l1At := uint64(big32(p, 36))*8, big(p, 40)
	refcountsAt, refcounts := big(p, 48), uint64(big32(p, 56))
	snapshots, snapshotsAt := big32(p, 60), big(p, 64)
	switch {
	case version != 2 && version != 3:
		return Header{}, unusable("it has version %d; 2 and 3 are known", version)
	case big(p, 8) != 0 || big32(p, 16) != 0:
		return Header{}, unusable("it has a backing file; flatten it by qemu-img convert")
	case big32(p, 32) != 0:
		return Header{}, unusable("it is encrypted")
	case bits < 9 || bits > 21:
		return Header{}, unusable("its clusters have 2^%d bytes", bits)
	case virtual == 0 || virtual > maxVirtual:
		return Header{}, unusable("it claims that its disk has %d bytes", virtual)
	case l1 > qcow2MaxL1 || refcounts > qcow2MaxRefcounts>>bits+1:
		return Header{}, unusable("its tables are too large: an L1 table of %d bytes, a reference count table of %d clusters", l1, refcounts)
	case l1 < qcow2L1(virtual, bits, 8):
		return Header{}, unusable("its L1 table is too short for its disk")
	case l1At == 0 || l1At%(1<<bits) != 0 || !h.inside(l1At, l1):
		return Header{}, unusable("it is cut off or corrupt: its L1 table is outside of the file")
	case refcountsAt == 0 || refcountsAt%(1<<bits) != 0 || !h.inside(refcountsAt, refcounts<<bits):
		return Header{}, unusable("it is cut off or corrupt: its reference count table is outside of the file")
	case snapshots > qcow2MaxSnapshots || snapshots > 0 && !h.inside(snapshotsAt, uint64(snapshots)*40):
		return Header{}, unusable("it is cut off or corrupt: its table of %d snapshots is too long, or outside of the file", snapshots)
	case virtual%512 != 0:
		return Header{}, unusable("its disk has %d bytes, which are no whole sectors", virtual)
	}
	length := uint64(72)
	if version == 3 {
		if p = h.part(0, 104); p == nil {
			return Header{}, unusable("it is cut off within its header")
		}
		length = uint64(big32(p, 100))
		if features := big(p, 72); features&^qcow2Features != 0 {
			return Header{}, unusable("it has the incompatible features %#x: corrupt, with an external data file, or unknown", features)
		}
		if length < 104 || length > 1<<bits {
			return Header{}, unusable("its header claims %d bytes", length)
		}
	}
	return Header{Size: int64(virtual), Cluster: 1 << bits}, qcow2Extensions(h, length, 1<<bits)
}

// qcow2L1 is how many bytes an L1 table has at least, if an L2 entry takes so many bytes.
func qcow2L1(virtual uint64, bits uint32, entry uint64) uint64 {
	covers := uint64(1) << bits / entry << bits
	return (virtual + covers - 1) / covers * 8
}

// qcow2Extensions looks at the header's extensions, which are in the first cluster.
func qcow2Extensions(h *header, at, end uint64) error {
	for at+8 <= end {
		p := h.part(at, 8)
		if p == nil {
			return unusable("it is cut off within its header")
		}
		kind, length := big32(p, 0), uint64(big32(p, 4))
		switch {
		case kind == 0:
			return nil
		case length > end-at-8:
			return unusable("an extension of its header claims %d bytes", length)
		case kind == qcow2DataFile:
			return unusable("it has an external data file")
		case kind == qcow2Crypto:
			return unusable("it is encrypted")
		}
		at += 8 + (length+7)/8*8
	}
	return nil
}
