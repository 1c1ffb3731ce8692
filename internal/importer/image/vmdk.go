package image

import (
	"bytes"
	"strings"
)

const (
	sector = 512
	// vmdkAtEnd as the place of the grain directory says that the header is once more at the file's end,
	// with the true place.
	vmdkAtEnd = 1<<64 - 1
	// vmdkCompressed is the flag of grains that are compressed.
	vmdkCompressed = 1 << 16
	// vmdkMaxDescriptor is more than the description of one file takes.
	vmdkMaxDescriptor = 128 << 10
)

// vmdk checks an image in one file. QEMU opens other files when the header has no size of its own but a
// description, or when the description names a parent.
func vmdk(h *header) (Header, error) {
	p := h.part(0, sector)
	if p == nil {
		return Header{}, unusable("it is cut off within its header")
	}
	if err := vmdkHeader(p); err != nil {
		return Header{}, err
	}
	capacity, at, length := little(p, 12), little(p, 28), little(p, 36)
	found := Header{Size: int64(capacity * sector), Cluster: int64(little(p, 20) * sector)}
	if little32(p, 8)&vmdkCompressed != 0 {
		// QEMU does not know how long a compressed grain is.
		found.Behind = 2 * found.Cluster
	}
	if little(p, 56) == vmdkAtEnd {
		found.Cluster = 0 // QEMU looks for the footer too
		// The footer is the last but one sector: a marker is before it, and another after it.
		end := (uint64(h.size) &^ (sector - 1))
		footer := h.part(end-2*sector, sector)
		if end < 4*sector || footer == nil || !bytes.Equal(footer[:4], p[:4]) {
			return Header{}, unusable("it is cut off: its footer is missing")
		}
		if err := vmdkHeader(footer); err != nil {
			return Header{}, err
		}
		if little(footer, 12) != capacity {
			return Header{}, unusable("its header and its footer contradict each other")
		}
	}
	if at == 0 || length == 0 || length > vmdkMaxDescriptor/sector || at > uint64(h.size) {
		return Header{}, unusable("it has no description of itself, or one that is too long")
	}
	description := h.part(at*sector, length*sector)
	if description == nil {
		return Header{}, unusable("it is cut off: its description is outside of the file")
	}
	// QEMU reads up to the first zero byte, wherever that is. Behind it is what is left of a longer description: QEMU writes
	// the description anew when the image's number (CID) has changed.
	text, _, ended := bytes.Cut(description, []byte{0})
	if !ended {
		return Header{}, unusable("its description has no end")
	}
	return found, vmdkDescription(string(text))
}

// vmdkHeader checks a header of one extent.
func vmdkHeader(p []byte) error {
	version, flags := little32(p, 4), little32(p, 8)
	capacity, grain, entries := little(p, 12), little(p, 20), little32(p, 44)
	compressed := flags&vmdkCompressed != 0
	switch {
	case version < 1 || version > 3:
		return unusable("it has version %d; 1, 2 and 3 are known", version)
	case capacity == 0:
		return unusable("its content is in other files; make it monolithicSparse")
	case capacity > maxVirtual/sector:
		return unusable("it claims that its disk has %d sectors", capacity)
	case grain == 0 || grain > 4096 || grain&(grain-1) != 0:
		return unusable("its grains have %d sectors", grain)
	case entries == 0 || entries > 512:
		return unusable("its grain tables have %d entries", entries)
	case compressed && (p[77] != 1 || p[78] != 0): // a number of two bytes; 1 is DEFLATE
		return unusable("it is compressed in an unknown way")
	}
	// QEMU holds a table with 4 bytes for each grain table.
	if capacity/(grain*uint64(entries)) > qcow2MaxL1/4 {
		return unusable("its tables are too large")
	}
	return nil
}

// vmdkDescription checks the text that describes the disk.
func vmdkDescription(text string) error {
	extents := 0
	created := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		name, value, isField := strings.Cut(line, "=")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.Trim(strings.TrimSpace(value), `"`)
		switch {
		case line == "" || line[0] == '#':
		case isField && name == "createtype":
			created = value
		case isField && name == "parentcid" && !strings.EqualFold(value, "ffffffff"),
			isField && strings.HasPrefix(name, "parentfilenamehint"):
			return unusable("it has a parent; flatten it by qemu-img convert")
		case !isField || vmdkExtent(line):
			extents++
		}
	}
	switch created {
	case "monolithicSparse", "streamOptimized":
	default:
		return unusable("its type is %.40q; monolithicSparse and streamOptimized are known", created)
	}
	if extents > 1 {
		return unusable("its content is in other files; make it monolithicSparse")
	}
	return nil
}

// vmdkExtent says whether a line of a description names a file.
func vmdkExtent(line string) bool {
	access, _, _ := strings.Cut(line, " ")
	return access == "RW" || access == "RDONLY" || access == "NOACCESS"
}
