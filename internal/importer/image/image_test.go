package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestDetectFormat(t *testing.T) {
	t.Parallel()
	at := func(offset int, text string) string { return strings.Repeat("\x00", offset) + text }
	for name, c := range map[string]struct {
		head string
		want Format
		why  string
	}{
		"raw":          {at(510, "\x55\xaa"), Raw, ""},
		"short":        {"x", Raw, ""},
		"iso":          {at(32769, "CD001"), Raw, ""},
		"qcow2":        {"QFI\xfb\x00\x00\x00\x03", QCOW2, ""},
		"vmdk":         {"KDMV\x01", VMDK, ""},
		"vhdx":         {"vhdxfile", VHDX, ""},
		"vdi":          {at(64, "\x7f\x10\xda\xbe"), VDI, ""},
		"gzip":         {"\x1f\x8b\x08", Gzip, ""},
		"xz":           {"\xfd7zXZ\x00", XZ, ""},
		"zstd":         {"\x28\xb5\x2f\xfd", Zstd, ""},
		"empty":        {"", "", "empty"},
		"text of vmdk": {"# Disk DescriptorFile\nversion=1\n", "", "in other files"},
		"old vmdk":     {"COWD", "", "old version"},
		"vhd":          {"conectix", "", "vhd"},
		"zip":          {"PK\x03\x04", "", "zip"},
		"bzip2":        {"BZh91AY", "", "bzip2"},
		"tar":          {at(257, "ustar"), "", "tar"},
		"page":         {"\n <!DOCTYPE html>\n<html>", "", "web page"},
		"other page":   {"<HTML>", "", "web page"},
	} {
		got, err := Detect([]byte(c.head))
		if got != c.want || (err == nil) != (c.why == "") || err != nil && (!strings.Contains(err.Error(), c.why) || !errors.Is(err, ErrUnusable)) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

const virtual = 40 << 20

// sample makes an image of a format by qemu-img, with a little content.
func sample(t testing.TB, format string, more ...string) string {
	t.Helper()
	folder := t.TempDir()
	raw, path := filepath.Join(folder, "raw"), filepath.Join(folder, "image."+format)
	content := bytes.Repeat([]byte("content "), 1<<17)
	f, err := os.Create(raw)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(content, 3<<20)
	if err := errors.Join(err, f.Truncate(virtual), f.Close()); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"convert", "-f", "raw", "-O", format}, append(more, raw, path)...)
	if out, err := exec.Command("qemu-img", args...).CombinedOutput(); err != nil {
		t.Fatalf("qemu-img %v: %v: %s", args, err, out)
	}
	return path
}

// kinds are images that are good, made by qemu-img with these arguments.
func kinds() map[string][]string {
	return map[string][]string{
		"qcow2":                {"qcow2"},
		"qcow2, compressed":    {"qcow2", "-c"},
		"qcow2, zstd":          {"qcow2", "-c", "-o", "compression_type=zstd"},
		"qcow2, version 2":     {"qcow2", "-o", "compat=0.10"},
		"qcow2, extended":      {"qcow2", "-o", "extended_l2=on,cluster_size=128k"},
		"qcow2, small":         {"qcow2", "-o", "cluster_size=512"},
		"qcow2, large":         {"qcow2", "-o", "cluster_size=2M"},
		"vmdk":                 {"vmdk"},
		"vmdk, stream":         {"vmdk", "-o", "subformat=streamOptimized"},
		"vhdx":                 {"vhdx"},
		"vhdx, fixed":          {"vhdx", "-o", "subformat=fixed"},
		"vdi":                  {"vdi"},
		"vdi, static":          {"vdi", "-o", "static=on"},
		"qcow2, lazy refcount": {"qcow2", "-o", "lazy_refcounts=on"},
	}
}

// TestCutImageIsNotGood: what qemu-img makes is good, and cut off it is not.
func TestCutImageIsNotGood(t *testing.T) {
	t.Parallel()
	for name, args := range kinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content, err := os.ReadFile(sample(t, args[0], args[1:]...))
			if err != nil {
				t.Fatal(err)
			}
			format, err := Detect(content)
			if err != nil || string(format) != args[0] {
				t.Fatalf("it is %q: %v", format, err)
			}
			if h, err := Check(format, bytes.NewReader(content), int64(len(content))); h.Size != virtual || err != nil {
				t.Errorf("its header is %+v: %v", h, err)
			}
			for _, length := range []int{1, 71, 90, 400, 600} {
				if _, err := Check(format, bytes.NewReader(content[:length]), int64(length)); !errors.Is(err, ErrUnusable) {
					t.Errorf("cut off after %d bytes: %v", length, err)
				}
			}
		})
	}
}

// describe changes the description in a vmdk image of qemu-img's. The end of a longer description stays behind a shorter one.
func describe(p []byte, change func([]byte) []byte) []byte {
	text, _, _ := bytes.Cut(p[sector:], []byte{0})
	copy(p[sector:], change(bytes.Clone(text)))
	return p
}

// TestCheckIgnoresALeftoverDescription: QEMU leaves the end of a longer description behind a shorter one. It does so in one of 256 images that it
// converts.
func TestCheckIgnoresALeftoverDescription(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(sample(t, "vmdk"))
	if err != nil {
		t.Fatal(err)
	}
	content = describe(content, func(text []byte) []byte { return append(text[:len(text)-8], "\n\x00RW 1\n"...) })
	if h, err := Check(VMDK, bytes.NewReader(content), int64(len(content))); err != nil || h.Size != virtual {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestCheckRefuses: each change of a good image makes it one that is refused.
func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	big := func(at int, value any) func([]byte) []byte {
		return func(p []byte) []byte {
			text, _ := binary.Append(nil, binary.BigEndian, value)
			copy(p[at:], text)
			return p
		}
	}
	little := func(at int, value any) func([]byte) []byte {
		return func(p []byte) []byte {
			text, _ := binary.Append(nil, binary.LittleEndian, value)
			copy(p[at:], text)
			return p
		}
	}
	swap := func(from, to string) func([]byte) []byte {
		return func(p []byte) []byte {
			if !bytes.Contains(p[:64<<10], []byte(from)) {
				panic("the image has no " + from)
			}
			return bytes.Replace(p, []byte(from), []byte(to), 1)
		}
	}
	// flags sets the flag of a parent in a vhdx image's parameters.
	parent := func(p []byte) []byte {
		guid := []byte{0x37, 0x67, 0xa1, 0xca, 0x36, 0xfa, 0x43, 0x4d}
		entry := bytes.Index(p, guid)
		table := bytes.LastIndex(p[:entry], []byte("metadata"))
		p[table+int(binary.LittleEndian.Uint32(p[entry+16:]))+4] |= 2
		return p
	}
	locator := func(p []byte) []byte {
		guid := []byte{0x37, 0x67, 0xa1, 0xca, 0x36, 0xfa, 0x43, 0x4d}
		copy(p[bytes.Index(p, guid):], []byte{0x2d, 0x5f, 0xd3, 0xa8, 0x0b, 0xb3, 0x4d, 0x45, 0xab, 0xf7, 0xd3, 0xd8, 0x48, 0x34, 0xab, 0x0c})
		return p
	}
	regions := func(change func([]byte)) func([]byte) []byte {
		return func(p []byte) []byte { change(p[vhdxRegions:]); change(p[vhdxRegionsCopy:]); return p }
	}
	for name, c := range map[string]struct {
		format string
		change func([]byte) []byte
		want   string
	}{
		"qcow2: version":           {"qcow2", big(4, uint32(4)), "version"},
		"qcow2: backing file":      {"qcow2", big(8, uint64(512)), "backing file"},
		"qcow2: backing name":      {"qcow2", big(16, uint32(9)), "backing file"},
		"qcow2: encrypted":         {"qcow2", big(32, uint32(2)), "encrypted"},
		"qcow2: small clusters":    {"qcow2", big(20, uint32(8)), "clusters"},
		"qcow2: large clusters":    {"qcow2", big(20, uint32(63)), "clusters"},
		"qcow2: no disk":           {"qcow2", big(24, uint64(0)), "0 bytes"},
		"qcow2: 2^63":              {"qcow2", big(24, uint64(1<<63)), "9223372036854775808"},
		"qcow2: 2^64-1":            {"qcow2", big(24, uint64(1<<64-1)), "18446744073709551615"},
		"qcow2: odd size":          {"qcow2", big(24, uint64(virtual-1)), "sectors"},
		"qcow2: short L1":          {"qcow2", big(24, uint64(1<<40)), "L1"},
		"qcow2: 10^9 clusters":     {"qcow2", big(36, uint32(1e9)), "L1"},
		"qcow2: L1 outside":        {"qcow2", big(40, uint64(1<<62)), "L1"},
		"qcow2: L1 nowhere":        {"qcow2", big(40, uint64(0)), "L1"},
		"qcow2: L1 askew":          {"qcow2", big(40, uint64(196609)), "L1"},
		"qcow2: counts outside":    {"qcow2", big(48, uint64(1<<63)), "count"},
		"qcow2: many counts":       {"qcow2", big(56, uint32(1<<31)), "count"},
		"qcow2: 65536 snapshots":   {"qcow2", big(60, uint32(65536)), "snapshots"},
		"qcow2: snapshots outside": {"qcow2", func(p []byte) []byte { return big(64, uint64(1<<60))(big(60, uint32(1))(p)) }, "snapshots"},
		"qcow2: data file":         {"qcow2", big(72, uint64(4)), "incompatible"},
		"qcow2: corrupt":           {"qcow2", big(72, uint64(2)), "incompatible"},
		"qcow2: unknown feature":   {"qcow2", big(72, uint64(1<<40)), "incompatible"},
		"qcow2: long header":       {"qcow2", big(100, uint32(1<<31)), "header"},
		"qcow2: short header":      {"qcow2", big(100, uint32(100)), "header"},
		"qcow2: data file name":    {"qcow2", big(112, []uint32{qcow2DataFile, 4}), "external data file"},
		"qcow2: crypto":            {"qcow2", big(112, []uint32{qcow2Crypto, 16}), "encrypted"},
		"qcow2: long extension":    {"qcow2", big(112, []uint32{7, 1 << 31}), "extension"},

		"vmdk: version":        {"vmdk", little(4, uint32(9)), "version"},
		"vmdk: no size":        {"vmdk", little(12, uint64(0)), "other files"},
		"vmdk: 2^63":           {"vmdk", little(12, uint64(1<<63)), "sectors"},
		"vmdk: grains":         {"vmdk", little(20, uint64(100)), "grains"},
		"vmdk: large grains":   {"vmdk", little(20, uint64(1<<40)), "grains"},
		"vmdk: tables":         {"vmdk", little(44, uint32(1<<30)), "tables"},
		"vmdk: many tables":    {"vmdk", func(p []byte) []byte { return little(12, uint64(1<<36))(little(44, uint32(1))(p)) }, "tables are too large"},
		"vmdk: no description": {"vmdk", little(28, uint64(0)), "description"},
		"vmdk: outside":        {"vmdk", little(28, uint64(1<<50)), "description"},
		"vmdk: long":           {"vmdk", little(36, uint64(1<<50)), "description"},
		"vmdk: flat":           {"vmdk", swap("monolithicSparse", "monolithicFlat"), "type"},
		"vmdk: foreign extent": {"vmdk", swap("# Extent description\n", "RW 1 FLAT \"/etc/a\" 0\n"), "other files"},
		"vmdk: parent":         {"vmdk", swap("parentCID=ffffffff", "parentCID=12345678"), "parent"},
		"vmdk: parent's name":  {"vmdk", swap("# Extent description", "parentFileNameHint=/x"), "parent"},
		"vmdk: footer missing": {"vmdk", little(56, uint64(1<<64-1)), "footer"},
		"vmdk: endless": {"vmdk", func(p []byte) []byte {
			return describe(p, func(text []byte) []byte { return append(text, bytes.Repeat([]byte("#"), 20*sector-len(text))...) })
		}, "no end"},
		"vmdk: no type":         {"vmdk", swap("createType", "createTipe"), "type"},
		"vdi: version":          {"vdi", little(0x44, uint32(2)), "version"},
		"vdi: differencing":     {"vdi", little(0x4c, uint32(4)), "parent"},
		"vdi: linked":           {"vdi", little(0x1a8, uint32(4)), "parent"},
		"vdi: parent":           {"vdi", little(0x1b8, uint32(4)), "parent"},
		"vdi: type":             {"vdi", little(0x4c, uint32(9)), "type"},
		"vdi: 2^63":             {"vdi", little(0x170, uint64(1<<63)), "9223372036854775808"},
		"vdi: blocks":           {"vdi", little(0x178, uint32(512)), "blocks"},
		"vdi: 10^9 blocks":      {"vdi", little(0x180, uint32(1e9)), "1000000000 blocks"},
		"vdi: table outside":    {"vdi", little(0x154, uint32(1<<31)), "outside"},
		"vhdx: parent":          {"vhdx", parent, "parent"},
		"vhdx: locator":         {"vhdx", locator, "parent"},
		"vhdx: no regions":      {"vhdx", regions(func(p []byte) { p[0] = 0 }), "missing"},
		"vhdx: many regions":    {"vhdx", regions(func(p []byte) { p[10] = 0xff }), "entries"},
		"vhdx: metadata beyond": {"vhdx", regions(func(p []byte) { p[16+16+7], p[48+16+7] = 0x7f, 0x7f }), "metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content, err := os.ReadFile(sample(t, c.format))
			if err != nil {
				t.Fatal(err)
			}
			content = c.change(content)
			if _, err := Check(Format(c.format), bytes.NewReader(content), int64(len(content))); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want something with %q", err, c.want)
			}
		})
	}
	if _, err := Check(Raw, bytes.NewReader(nil), 0); err == nil {
		t.Error("raw can be converted")
	}
}

// TestWholeFileEndsWithItsLastSector: a file has zeros up to the end of its last sector, and nothing behind.
func TestWholeFileEndsWithItsLastSector(t *testing.T) {
	t.Parallel()
	r, size := Header{Cluster: 4, Behind: 4}.Whole(bytes.NewReader([]byte("0123456789")), 10)
	if size != maxFile {
		t.Errorf("a size of %d", size)
	}
	for _, c := range []struct {
		offset int64
		length int
		want   string
	}{
		{0, 10, "0123456789"}, {3, 2, "34"}, {8, 8, "89\x00\x00\x00\x00\x00\x00"}, {512, 4, "\x00\x00\x00\x00"},
		{512, 5, ""}, {516, 1, ""}, {maxFile - 1, 1, ""},
	} {
		p := bytes.Repeat([]byte("x"), c.length)
		n, err := r.ReadAt(p, c.offset)
		if string(p[:n]) != c.want || errors.Is(err, ErrUnusable) != (c.want == "") {
			t.Errorf("%d bytes at %d: %q, %v", c.length, c.offset, p[:n], err)
		}
	}
	if r, _ := (Header{Cluster: 8}).Whole(broken{}, 10); r != nil {
		if _, err := r.ReadAt(make([]byte, 4), 0); !errors.Is(err, errBroken) {
			t.Errorf("a broken file: %v", err)
		}
	}
	if _, size := (Header{}).Whole(bytes.NewReader(nil), 10); size != 10 {
		t.Errorf("a size of %d", size)
	}
}

type broken struct{}

var errBroken = errors.New("broken")

func (broken) ReadAt([]byte, int64) (int, error) { return 0, errBroken }

// TestUnreadableImageIsNotCalledUnusable: an image that cannot be read is not called unusable.
func TestUnreadableImageIsNotCalledUnusable(t *testing.T) {
	t.Parallel()
	for _, format := range []Format{QCOW2, VMDK, VHDX, VDI} {
		if _, err := Check(format, broken{}, 1<<30); !errors.Is(err, errBroken) || errors.Is(err, ErrUnusable) {
			t.Errorf("%s: %v", format, err)
		}
	}
}

// FuzzCheck: no header makes a check panic, or believe a size that cannot be.
func FuzzCheck(f *testing.F) {
	for _, format := range []string{"qcow2", "vmdk", "vhdx", "vdi"} {
		content, err := os.ReadFile(sample(f, format))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content[:min(len(content), 512)], content[min(len(content), 192<<10):min(len(content), 193<<10)], uint32(len(content)))
	}
	f.Fuzz(func(t *testing.T, first, far []byte, size uint32) {
		// The parts that are looked at are far from each other.
		content := make([]byte, min(int(size), 3<<20))
		copy(content, first)
		for _, at := range []int{vhdxRegions, vhdxRegionsCopy, 2 << 20} {
			if at < len(content) {
				copy(content[at:], far)
			}
		}
		for _, format := range []Format{QCOW2, VMDK, VHDX, VDI} {
			h, err := Check(format, bytes.NewReader(content), int64(size))
			if err == nil && (h.Size <= 0 || h.Size > maxVirtual || h.Size%512 != 0 || h.Cluster < 0 || h.Cluster > 2<<20) {
				t.Errorf("%s: %+v", format, h)
			}
		}
	})
}

// FuzzDescription: no description makes the check panic, and none that QEMU would look for a parent in is
// good.
func FuzzDescription(f *testing.F) {
	f.Add("createType=\"monolithicSparse\"\nRW 1 SPARSE \"x\"\n")
	f.Add("parentCID=0\nparentFileNameHint=\"/x\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		if err := vmdkDescription(text); err == nil && strings.Contains(text, "\nparentFileNameHint=") {
			t.Errorf("%q is good", text)
		}
	})
}
