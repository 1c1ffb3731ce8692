package iso9660

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

func TestMain(m *testing.M) { golden.Main(m, "testdata/*.golden") }

func cases() map[string]struct {
	label string
	files []File
} {
	long := strings.Repeat("n", 60)
	var many []File
	for i := range 120 { // more than one sector of records
		many = append(many, File{fmt.Sprintf("d/%s%03d", long, i), []byte{byte(i)}})
	}
	// Names that Joliet cannot hold, and names around the length from which one goes on elsewhere: the continuation
	// area has more than a sector.
	names := []File{{"Key", []byte("1")}, {"key", []byte("2")}, {"KEY", nil}, {"key-1", []byte("3")}}
	for i := range 30 {
		names = append(names, File{fmt.Sprintf("%s%d.conf", strings.Repeat("n", 247-len(fmt.Sprint(i))), i), []byte{byte(i)}})
	}
	for _, length := range []int{64, 65, maxInline - 1, maxInline, maxInline + 1, maxInline + 2, maxName} {
		names = append(names, File{"lengths/" + strings.Repeat("l", length), fmt.Append(nil, length)})
	}
	names = append(names, File{strings.Repeat("folder-", 30) + "/file", []byte("4")})
	return map[string]struct {
		label string
		files []File
	}{
		"nocloud":     {"cidata", []File{{"meta-data", []byte(`{"instance-id":"i-1","local-hostname":"vm.example"}` + "\n")}, {"user-data", []byte("#cloud-config\n")}, {"network-config", []byte("version: 2\n")}}},
		"configdrive": {"config-2", []File{{"openstack/latest/meta_data.json", []byte(`{"instance_id":"vm.team-a","hostname":"vm","uuid":"u-1"}` + "\n")}, {"openstack/latest/user_data", []byte("#cloud-config\n")}, {"openstack/latest/network_data.json", []byte("{}")}}},
		"config-2":    {"config-2", []File{{"openstack/latest/meta_data.json", []byte("{}")}, {"openstack/latest/user_data", bytes.Repeat([]byte("x"), 5000)}, {"openstack/2012-08-10/meta_data.json", []byte("{ }")}, {"ec2/latest/meta-data.json", nil}}},
		"names":       {strings.Repeat("Label-of-32.", 3)[:MaxLabel], names},
		"empty":       {"cfgdata", nil},
		"many":        {"CIDATA", many},
		"shapes":      {"cidata", []File{{"a", nil}, {"a.b.c", []byte("1")}, {"user-data-1", []byte("2")}, {"user-data-2", []byte("3")}, {".hidden", []byte("4")}, {"sector", make([]byte, 2048)}, {"sector1", make([]byte, 2049)}, {"max", bytes.Repeat([]byte("m"), MaxFileSize)}}},
	}
}

func want(files []File) map[string]string {
	m := map[string]string{}
	for _, f := range files {
		m[f.Path] = string(f.Data)
	}
	return m
}

// exact reports whether Joliet holds all of the files' names as they are.
func exact(files []File) bool {
	seen := map[string]string{}
	for _, f := range files {
		for _, part := range strings.Split(f.Path, "/") {
			if was, ok := seen[strings.ToLower(part)]; ok && was != part || len(part) > maxJolietName {
				return false
			}
			seen[strings.ToLower(part)] = part
		}
	}
	return true
}

// data returns the contents of files, for trees where the names are others.
func data(files map[string]string) map[string]string {
	m := map[string]string{}
	for i, data := range slices.Sorted(maps.Values(files)) {
		m[fmt.Sprint(i)] = data
	}
	return m
}

func same(t *testing.T, from string, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s: got files %q, want %q", from, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

func image(t *testing.T, label string, files []File) []byte {
	t.Helper()
	image, err := Image(label, files)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func TestGolden(t *testing.T) {
	for name, c := range cases() {
		image := image(t, c.label, c.files)
		got := fmt.Sprintf("sha256 %x\nsize %d\n", sha256.Sum256(image), len(image))
		for _, tree := range []uint32{16, 17} {
			for _, f := range read(t, image, tree) {
				got += fmt.Sprintf("%d %-40s %q sector %d, %d bytes\n", tree, f.path, f.id, f.extent, len(f.data))
			}
		}
		golden.Compare(t, "testdata/"+name+".golden", got)
	}
}

func TestErrors(t *testing.T) {
	big := make([]byte, MaxFileSize)
	for _, c := range []struct {
		label string
		files []File
		want  error
	}{
		{"", nil, ErrLabel},
		{"a b", nil, ErrLabel},
		{strings.Repeat("l", 33), nil, ErrLabel},
		{"cidata", make([]File, MaxFiles+1), ErrFileCount},
		{"cidata", []File{{"", nil}}, ErrName},
		{"cidata", []File{{"/a", nil}}, ErrName},
		{"cidata", []File{{"a/../b", nil}}, ErrName},
		{"cidata", []File{{"a b", nil}}, ErrName},
		{"cidata", []File{{"ü", nil}}, ErrName},
		{"cidata", []File{{strings.Repeat("n", 254), nil}}, ErrName},
		{"cidata", []File{{"1/2/3/4/5/6/7/8", nil}}, ErrDepth},
		{"cidata", []File{{"a", nil}, {"a", nil}}, ErrDuplicate},
		{"cidata", []File{{"a", nil}, {"a/b", nil}}, ErrDuplicate},
		{"cidata", []File{{"a/b", nil}, {"a", nil}}, ErrDuplicate},
		{"cidata", []File{{"a", append(big, 0)}}, ErrFileSize},
		{"cidata", []File{{"a", big}, {"b", big}, {"c", big}, {"d", big}, {"e", []byte{0}}}, ErrSize},
	} {
		_, err := Image(c.label, c.files)
		if !errors.Is(err, c.want) {
			t.Errorf("label %q: error %v, want %v", c.label, err, c.want)
		}
		var f *FileError
		if isFile := errors.As(err, &f); isFile != (c.want != ErrLabel && c.want != ErrFileCount && c.want != ErrSize) {
			t.Errorf("%v: is a *FileError: %v", err, isFile)
		}
	}
}

// TestLinuxMountsTheImage has Linux read the volume, once by each tree.
func TestLinuxMountsTheImage(t *testing.T) {
	exec.Command("modprobe", "isofs").Run() // it may be built in
	if kernel, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(kernel), "iso9660") {
		t.Skip("THE KERNEL HAS NO iso9660: mounting the seed is not tested here")
	}
	for name, c := range cases() {
		path := filepath.Join(t.TempDir(), "seed.iso")
		if err := os.WriteFile(path, image(t, c.label, c.files), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, options := range []string{"loop,ro", "loop,ro,norock"} {
			t.Run(name+","+options, func(t *testing.T) {
				dir := t.TempDir()
				run(t, "mount", "-t", "iso9660", "-o", options, path, dir)
				t.Cleanup(func() { run(t, "umount", dir) })
				got, want := readDir(t, dir), want(c.files)
				if strings.HasSuffix(options, "norock") && !exact(c.files) {
					got, want = data(got), data(want)
				}
				same(t, options, got, want)
			})
		}
	}
}

func readDir(t *testing.T, dir string) map[string]string {
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		got[rel] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestIsoinfoReadsTheImage has another reader list both trees and extract the files.
func TestIsoinfoReadsTheImage(t *testing.T) {
	if _, err := exec.LookPath("isoinfo"); err != nil {
		t.Fatal("isoinfo is missing: install Debian's genisoimage")
	}
	for name, c := range cases() {
		path := filepath.Join(t.TempDir(), "seed.iso")
		if err := os.WriteFile(path, image(t, c.label, c.files), 0o600); err != nil {
			t.Fatal(err)
		}
		if label := run(t, "blkid", "-p", "-o", "value", "-s", "LABEL", path); strings.TrimSpace(label) != c.label {
			t.Errorf("blkid: label %q, want %q", label, c.label)
		}
		for _, tree := range []string{"-R", "-J"} {
			listing := strings.Fields(run(t, "isoinfo", tree, "-f", "-i", path))
			for _, f := range c.files {
				if !slices.Contains(listing, "/"+f.Path) && (tree == "-R" || exact(c.files)) {
					t.Errorf("%s %s: no %s in %q", name, tree, f.Path, listing)
				}
			}
		}
		for _, f := range c.files {
			if got := run(t, "isoinfo", "-R", "-i", path, "-x", "/"+f.Path); got != string(f.Data) {
				t.Errorf("%s: %s has %d bytes, want %d", name, f.Path, len(got), len(f.Data))
			}
		}
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, stderr.String())
	}
	return string(out)
}

func FuzzImage(f *testing.F) {
	f.Add("cidata", "user-data", []byte("u"), "meta-data", []byte("m"))
	f.Add("config-2", "openstack/latest/user_data", []byte("u"), "openstack/latest/user_datb", []byte{})
	f.Add("x", "a.bcd", []byte{}, "a.bcde", make([]byte, 2048))
	f.Add("x", "Key", []byte{1}, "key", []byte{2})
	f.Add("x", strings.Repeat("n", 253), []byte{1}, strings.Repeat("n", 140), []byte{2})
	f.Fuzz(func(t *testing.T, label, name1 string, data1 []byte, name2 string, data2 []byte) {
		files := []File{{name1, data1}, {name2, data2}}
		image, err := Image(label, files)
		if err != nil {
			return
		}
		for _, tree := range []uint32{16, 17} {
			got := map[string]string{}
			for _, e := range read(t, image, tree) {
				got[e.path] = e.data
			}
			want := want(files)
			if tree == 17 && !exact(files) {
				got, want = data(got), data(want)
			}
			same(t, fmt.Sprint(tree), got, want)
		}
	})
}

type entry struct {
	path, id, data string
	extent         uint32
}

// read returns a second opinion on the format: it checks what it walks over.
func read(t *testing.T, image []byte, descriptor uint32) []entry {
	t.Helper()
	d := image[descriptor*2048:]
	if string(d[1:6]) != "CD001" || int(both(t, d[80:]))*2048 != len(image) {
		t.Fatal("bad descriptor")
	}
	var found []entry
	var walk func(prefix string, record []byte, depth int)
	walk = func(prefix string, record []byte, depth int) {
		extent, size := both(t, record[2:]), both(t, record[10:])
		dir := image[extent*2048:][:size]
		last := ""
		for at, n := 0, 0; at < len(dir); n++ {
			length := int(dir[at])
			if length == 0 {
				at = (at/2048 + 1) * 2048
				continue
			}
			if at%2048+length > 2048 || length%2 == 1 {
				t.Fatalf("record of %d bytes at %d", length, at)
			}
			r := dir[at:][:length]
			at += length
			if n == 0 && both(t, r[2:]) != extent {
				t.Fatal("the first record is not the directory")
			}
			if n < 2 {
				continue
			}
			id := string(r[33:][:r[32]])
			if !ordered(last, id, descriptor) {
				t.Fatalf("%q after %q", id, last)
			}
			last = id
			path := prefix + name(t, image, id, r, descriptor)
			if r[25]&2 != 0 {
				walk(path+"/", r, depth+1)
				continue
			}
			e := entry{path: path, id: id, extent: both(t, r[2:])}
			e.data = string(image[e.extent*2048:][:both(t, r[10:])])
			found = append(found, e)
		}
	}
	walk("", d[156:190], 1)
	return found
}

// ordered reports whether the record of b follows that of a (ECMA-119, 9.3): by
// name and, in the primary tree, then by extension, the shorter filled up with
// spaces, which are less than all that a name may hold. "0.;1" precedes "0.0;1".
func ordered(a, b string, descriptor uint32) bool {
	if descriptor == 17 {
		return a < b
	}
	aName, aExtension, _ := strings.Cut(strings.TrimSuffix(a, ";1"), ".")
	bName, bExtension, _ := strings.Cut(strings.TrimSuffix(b, ";1"), ".")
	return aName < bName || aName == bName && aExtension < bExtension
}

func name(t *testing.T, image []byte, id string, record []byte, descriptor uint32) string {
	if descriptor == 17 {
		var u []uint16
		for i := 0; i < len(id); i += 2 {
			u = append(u, binary.BigEndian.Uint16([]byte(id[i:])))
		}
		return string(utf16.Decode(u))
	}
	use, name := record[33+len(id)+(1-len(id)%2):], ""
	for len(use) > 4 {
		length := int(use[2])
		switch string(use[:2]) {
		case "NM":
			name += string(use[5:length])
			if use[4]&1 == 0 {
				return name
			}
		case "CE":
			at, of, n := both(t, use[4:]), both(t, use[12:]), both(t, use[20:])
			if of+n > 2048 {
				t.Fatalf("a continuation of %d bytes at %d crosses the end of a sector", n, of)
			}
			use = image[at*2048+of:][:n]
			continue
		}
		use = use[length:]
	}
	return name
}

func both(t *testing.T, b []byte) uint32 {
	n := binary.LittleEndian.Uint32(b)
	if n != binary.BigEndian.Uint32(b[4:]) {
		t.Fatal("byte orders differ")
	}
	return n
}
