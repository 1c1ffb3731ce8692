package iso9660

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
	"unicode/utf16"
)

// The numbers of sections are ECMA-119's, 4th edition.

const (
	sector      = 2048
	primaryAt   = 16 // sectors of the volume descriptors: 16 to 18
	tablesStart = 19
	// padding follows the data, as much as other writers leave: readers read
	// ahead, and busybox's findfs gives up on a volume that ends before 68 KiB.
	padding = 150
)

// All times are 2000-01-01 00:00:00 UTC: the output has no clock in it.
var (
	recordTime = [7]byte{100, 1, 1}
	volumeTime = "2000010100000000\x00"
	noTime     = "0000000000000000\x00"
)

// volume is the layout: descriptors, path tables, directories, data. The two
// trees share the data.
type volume struct {
	label           string
	root            *node
	primary, joliet *tree
	files           []*node
	size            uint32 // in sectors
	// continued are the nodes whose names go on in the continuation area, which begins at a sector.
	continued []*node
	area      uint32
}

// tree is one of the two trees of directories.
type tree struct {
	joliet           bool
	dirs             []*node // in the order of the path table
	number           map[*node]int
	extent           map[*node]uint32
	length           map[*node]uint32 // in bytes
	tableLen         uint32           // in bytes
	tableLE, tableBE uint32           // sectors of the path tables
}

func newVolume(label string, root *node) *volume {
	v := &volume{label: label, root: root, size: tablesStart, primary: newTree(root, false), joliet: newTree(root, true)}
	for _, t := range []*tree{v.primary, v.joliet} {
		t.tableLen = uint32(len(t.pathTable(binary.LittleEndian)))
		t.tableLE = v.take(t.tableLen)
		t.tableBE = v.take(t.tableLen)
		for _, d := range t.dirs {
			t.length[d] = sectors(uint32(len(t.directory(d)))) * sector
			t.extent[d] = v.take(t.length[d])
		}
	}
	v.continueNames()
	for _, d := range v.primary.dirs {
		for _, c := range d.children {
			if c.file {
				v.files = append(v.files, c)
				if len(c.data) > 0 {
					c.extent = v.take(uint32(len(c.data)))
				}
			}
		}
	}
	v.size += padding
	return v
}

// continueNames gives the rest of each long name a place in the continuation area. A rest does not cross the end of a
// sector (P1281, 5.1: an area lies within a sector).
func (v *volume) continueNames() {
	end := uint32(0)
	for _, d := range v.primary.dirs {
		for _, c := range d.children {
			if len(c.name) <= maxInline {
				continue
			}
			length := uint32(len(restOfName(c.name)))
			if end%sector+length > sector {
				end = sectors(end) * sector
			}
			c.rest, end = end, end+length
			v.continued = append(v.continued, c)
		}
	}
	v.area = v.take(end)
	for _, c := range v.continued {
		c.rest += v.area * sector
	}
}

func sectors(length uint32) uint32 { return (length + sector - 1) / sector }

// take returns the first of as many sectors as length bytes need.
func (v *volume) take(length uint32) uint32 {
	start := v.size
	v.size += sectors(length)
	return start
}

func (v *volume) bytes() []byte {
	out := make([]byte, v.size*sector)
	put := func(at uint32, data []byte) { copy(out[at*sector:], data) }
	put(primaryAt, v.descriptor(v.primary))
	put(primaryAt+1, v.descriptor(v.joliet))
	put(primaryAt+2, []byte("\xffCD001\x01")) // 8.3
	for _, t := range []*tree{v.primary, v.joliet} {
		put(t.tableLE, t.pathTable(binary.LittleEndian))
		put(t.tableBE, t.pathTable(binary.BigEndian))
		for _, d := range t.dirs {
			put(t.extent[d], t.directory(d))
		}
	}
	for _, c := range v.continued {
		copy(out[c.rest:], restOfName(c.name))
	}
	for _, f := range v.files {
		put(f.extent, f.data) // an empty file has no extent and puts nothing
	}
	return out
}

// descriptor returns a volume descriptor: primary (8.4) or supplementary (8.5).
func (v *volume) descriptor(t *tree) []byte {
	b := make([]byte, sector)
	b[0] = 1
	if t.joliet {
		b[0] = 2
		copy(b[88:], "%/E") // UCS-2 level 3
	}
	copy(b[1:], "CD001\x01")
	t.text(b[8:40], "")
	label := v.label
	if t.joliet {
		label = cut(label, maxJolietLabel)
	}
	t.text(b[40:72], label)
	both32(b[80:], v.size)
	both16(b[120:], 1) // volumes in the set
	both16(b[124:], 1) // this volume's number
	both16(b[128:], sector)
	both32(b[132:], t.tableLen)
	binary.LittleEndian.PutUint32(b[140:], t.tableLE)
	binary.BigEndian.PutUint32(b[148:], t.tableBE)
	copy(b[156:], t.record("\x00", v.root, nil))
	for _, field := range [][2]int{{190, 318}, {318, 446}, {446, 574}, {574, 702}, {702, 739}, {739, 776}, {776, 813}} {
		t.text(b[field[0]:field[1]], "")
	}
	copy(b[813:], volumeTime) // made
	copy(b[830:], volumeTime) // changed
	copy(b[847:], noTime)     // expires
	copy(b[864:], noTime)     // takes effect
	b[881] = 1
	return b
}

func newTree(root *node, joliet bool) *tree {
	t := &tree{joliet: joliet, number: map[*node]int{}, extent: map[*node]uint32{}, length: map[*node]uint32{}}
	// By level, then by parent, then by name (9.4).
	t.dirs = []*node{root}
	for i := 0; i < len(t.dirs); i++ {
		t.number[t.dirs[i]] = i + 1
		for _, c := range t.sorted(t.dirs[i]) {
			if !c.file {
				t.dirs = append(t.dirs, c)
			}
		}
	}
	return t
}

// sorted returns the children in the order of their records (9.3): by name,
// then by extension.
func (t *tree) sorted(d *node) []*node {
	return slices.SortedFunc(slices.Values(d.children), func(a, b *node) int {
		if t.joliet {
			return strings.Compare(a.joliet, b.joliet)
		}
		aBase, aExt, _ := strings.Cut(a.short, ".")
		bBase, bExt, _ := strings.Cut(b.short, ".")
		return cmp.Or(strings.Compare(aBase, bBase), strings.Compare(aExt, bExt))
	})
}

// identifier returns a name as it is stored.
func (t *tree) identifier(n *node) string {
	switch {
	case n.parent == nil:
		return "\x00"
	case t.joliet:
		return ucs2(n.joliet)
	case n.file:
		return n.short + ";1"
	}
	return n.short
}

// pathTable lists all directories (9.4).
func (t *tree) pathTable(order binary.AppendByteOrder) []byte {
	var b []byte
	for _, d := range t.dirs {
		id, parent := t.identifier(d), 1
		if d.parent != nil {
			parent = t.number[d.parent]
		}
		b = append(b, byte(len(id)), 0)
		b = order.AppendUint32(b, t.extent[d])
		b = order.AppendUint16(b, uint16(parent))
		b = append(b, id...)
		if len(id)%2 == 1 {
			b = append(b, 0)
		}
	}
	return b
}

// directory returns the records of a directory (6.8.1).
func (t *tree) directory(d *node) []byte {
	parent := d
	if d.parent != nil {
		parent = d.parent
	}
	b := t.record("\x00", d, t.systemUse(d, d.parent == nil, nil))
	b = append(b, t.record("\x01", parent, t.systemUse(parent, false, nil))...)
	for _, c := range t.sorted(d) {
		r := t.record(t.identifier(c), c, t.systemUse(c, false, c))
		// A record does not cross the end of a sector.
		if left := sector - len(b)%sector; left < len(r) {
			b = append(b, make([]byte, left)...)
		}
		b = append(b, r...)
	}
	return b
}

// record returns a directory record (9.1).
func (t *tree) record(id string, n *node, systemUse []byte) []byte {
	b := make([]byte, 33, 254)
	extent, length := t.extent[n], t.length[n]
	if n.file {
		extent, length = n.extent, uint32(len(n.data))
	} else {
		b[25] = 2
	}
	both32(b[2:], extent)
	both32(b[10:], length)
	copy(b[18:], recordTime[:])
	both16(b[28:], 1)
	b[32] = byte(len(id))
	b = append(b, id...)
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	b = append(b, systemUse...)
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	b[0] = byte(len(b)) // at most 34+14 + 36+26 + 5+maxInline, or 34+128
	return b
}

// systemUse returns the entries of Rock Ridge (IEEE P1281 and P1282): POSIX attributes, times
// and the name of named, unless that is nil, and in the root the entries that announce Rock Ridge.
func (t *tree) systemUse(n *node, announce bool, named *node) []byte {
	if t.joliet {
		return nil
	}
	var b []byte
	if announce {
		b = append(b, "SP\x07\x01\xbe\xef\x00"...)
		b = append(b, "ER\x12\x01\x0a\x00\x00\x01RRIP_1991A"...)
	}
	mode, links := uint32(0o100444), uint32(1)
	if !n.file {
		mode, links = 0o40555, 2
		for _, c := range n.children {
			if !c.file {
				links++
			}
		}
	}
	px := make([]byte, 36)
	copy(px, "PX\x24\x01")
	both32(px[4:], mode)
	both32(px[12:], links) // owner and group are 0
	b = append(b, px...)
	b = append(b, "TF\x1a\x01\x0e"...) // modified, accessed, changed
	b = append(b, bytes.Repeat(recordTime[:], 3)...)
	switch {
	case named == nil:
	case len(named.name) <= maxInline:
		b = append(b, nameEntry(named.name, false)...)
	default:
		b = append(b, nameEntry(named.name[:firstPart], true)...)
		ce := make([]byte, 28)
		copy(ce, "CE\x1c\x01")
		both32(ce[4:], named.rest/sector)
		both32(ce[12:], named.rest%sector)
		both32(ce[20:], uint32(len(restOfName(named.name))))
		b = append(b, ce...)
	}
	return b
}

// A record has 254 bytes at most. A name that does not fit goes on in the continuation area, to
// which an entry of 28 bytes leads.
const (
	maxInline = 254 - 48 - 36 - 26 - 5
	firstPart = maxInline - 28
)

// restOfName returns what the continuation area holds of a long name.
func restOfName(name string) []byte { return nameEntry(name[firstPart:], false) }

// nameEntry returns an entry with a name, or with a part that another entry follows.
func nameEntry(part string, goesOn bool) []byte {
	flags := byte(0)
	if goesOn {
		flags = 1
	}
	return append([]byte{'N', 'M', byte(5 + len(part)), 1, flags}, part...)
}

// text fills a field of a descriptor, which is padded with spaces.
func (t *tree) text(field []byte, s string) {
	width := len(field)
	if t.joliet {
		width /= 2
	}
	s += strings.Repeat(" ", width-len(s))
	if t.joliet {
		s = ucs2(s)
	}
	copy(field, s)
}

func ucs2(s string) string {
	var b []byte
	for _, c := range utf16.Encode([]rune(s)) {
		b = binary.BigEndian.AppendUint16(b, c)
	}
	return string(b)
}

// both32 writes a number in both byte orders (7.3.3).
func both32(b []byte, n uint32) {
	binary.LittleEndian.PutUint32(b, n)
	binary.BigEndian.PutUint32(b[4:], n)
}

// both16 returns both32 for 16 bits (7.2.3).
func both16(b []byte, n uint16) {
	binary.LittleEndian.PutUint16(b, n)
	binary.BigEndian.PutUint16(b[2:], n)
}
