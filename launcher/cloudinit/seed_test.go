package cloudinit

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

	"github.com/kubeqemu/kubeqemu/internal/golden"
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
	return map[string]struct {
		label string
		files []File
	}{
		"nocloud":     {"cidata", NoCloud(Instance{ID: "i-1", Hostname: "vm.example"}, []byte("#cloud-config\n"), []byte("version: 2\n"))},
		"configdrive": {ConfigDriveLabel, ConfigDrive(Instance{ID: "vm.team-a", UUID: "u-1", Hostname: "vm"}, []byte("#cloud-config\n"), []byte("{}"))},
		"config-2":    {"config-2", []File{{"openstack/latest/meta_data.json", []byte("{}")}, {"openstack/latest/user_data", bytes.Repeat([]byte("x"), 5000)}, {"openstack/2012-08-10/meta_data.json", []byte("{ }")}, {"ec2/latest/meta-data.json", nil}}},
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

func same(t *testing.T, from string, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s: got files %q, want %q", from, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

func seed(t *testing.T, label string, files []File) []byte {
	t.Helper()
	image, err := Seed(label, files)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func TestGolden(t *testing.T) {
	for name, c := range cases() {
		image := seed(t, c.label, c.files)
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
		{"a.b", nil, ErrLabel},
		{strings.Repeat("l", 17), nil, ErrLabel},
		{"cidata", make([]File, MaxFiles+1), ErrFileCount},
		{"cidata", []File{{"", nil}}, ErrName},
		{"cidata", []File{{"/a", nil}}, ErrName},
		{"cidata", []File{{"a/../b", nil}}, ErrName},
		{"cidata", []File{{"a b", nil}}, ErrName},
		{"cidata", []File{{"ü", nil}}, ErrName},
		{"cidata", []File{{strings.Repeat("n", 65), nil}}, ErrName},
		{"cidata", []File{{"1/2/3/4/5/6/7/8", nil}}, ErrDepth},
		{"cidata", []File{{"a", nil}, {"A", nil}}, ErrDuplicate},
		{"cidata", []File{{"a", nil}, {"a/b", nil}}, ErrDuplicate},
		{"cidata", []File{{"a/b", nil}, {"a", nil}}, ErrDuplicate},
		{"cidata", []File{{"a", append(big, 0)}}, ErrFileSize},
		{"cidata", []File{{"a", big}, {"b", big}, {"c", big}, {"d", big}, {"e", []byte{0}}}, ErrSeedSize},
	} {
		_, err := Seed(c.label, c.files)
		if !errors.Is(err, c.want) {
			t.Errorf("label %q: error %v, want %v", c.label, err, c.want)
		}
		var f *FileError
		if isFile := errors.As(err, &f); isFile != (c.want != ErrLabel && c.want != ErrFileCount && c.want != ErrSeedSize) {
			t.Errorf("%v: is a *FileError: %v", err, isFile)
		}
	}
}

func TestNoCloud(t *testing.T) {
	same(t, "with", want(NoCloud(Instance{ID: "i\"1", Hostname: "h"}, []byte("u"), []byte("n"))),
		map[string]string{"meta-data": `{"instance-id":"i\"1","local-hostname":"h"}` + "\n", "user-data": "u", "network-config": "n"})
	if _, ok := want(NoCloud(Instance{ID: "i", Hostname: "h"}, nil, nil))["network-config"]; ok {
		t.Error("network-config without network data")
	}
	same(t, "with keys", want(NoCloud(Instance{ID: "i", Hostname: "h", Keys: []string{"ssh-ed25519 A a@b", "ssh-rsa B"}}, nil, nil)), map[string]string{
		"meta-data": `{"instance-id":"i","local-hostname":"h","public-keys":{"0":"ssh-ed25519 A a@b","1":"ssh-rsa B"}}` + "\n", "user-data": ""})
}

func TestConfigDrive(t *testing.T) {
	same(t, "with all", want(ConfigDrive(Instance{ID: "vm.team-a", UUID: "u-1", Hostname: "h", Keys: []string{"ssh-rsa B"}}, []byte("u"), []byte("{}"))), map[string]string{
		"openstack/latest/meta_data.json":    `{"instance_id":"vm.team-a","hostname":"h","uuid":"u-1","public_keys":{"0":"ssh-rsa B"}}` + "\n",
		"openstack/latest/user_data":         "u",
		"openstack/latest/network_data.json": "{}"})
	same(t, "with little", want(ConfigDrive(Instance{ID: "i", UUID: "u", Hostname: "h"}, nil, nil)), map[string]string{
		"openstack/latest/meta_data.json": `{"instance_id":"i","hostname":"h","uuid":"u"}` + "\n", "openstack/latest/user_data": ""})
}

// TestMount has Linux read the volume, once by each tree.
func TestMount(t *testing.T) {
	exec.Command("modprobe", "isofs").Run() // it may be built in
	if kernel, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(kernel), "iso9660") {
		t.Skip("THE KERNEL HAS NO iso9660: mounting the seed is not tested here")
	}
	for name, c := range cases() {
		path := filepath.Join(t.TempDir(), "seed.iso")
		if err := os.WriteFile(path, seed(t, c.label, c.files), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, options := range []string{"loop,ro", "loop,ro,norock"} {
			t.Run(name+","+options, func(t *testing.T) {
				dir := t.TempDir()
				run(t, "mount", "-t", "iso9660", "-o", options, path, dir)
				t.Cleanup(func() { run(t, "umount", dir) })
				same(t, options, readDir(t, dir), want(c.files))
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

// TestIsoinfo has another reader list both trees and extract the files.
func TestIsoinfo(t *testing.T) {
	if _, err := exec.LookPath("isoinfo"); err != nil {
		t.Fatal("isoinfo is missing: install Debian's genisoimage")
	}
	for name, c := range cases() {
		path := filepath.Join(t.TempDir(), "seed.iso")
		if err := os.WriteFile(path, seed(t, c.label, c.files), 0o600); err != nil {
			t.Fatal(err)
		}
		if label := run(t, "blkid", "-p", "-o", "value", "-s", "LABEL", path); strings.TrimSpace(label) != c.label {
			t.Errorf("blkid: label %q, want %q", label, c.label)
		}
		for _, tree := range []string{"-R", "-J"} {
			listing := strings.Fields(run(t, "isoinfo", tree, "-f", "-i", path))
			for _, f := range c.files {
				if !slices.Contains(listing, "/"+f.Path) {
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

func FuzzSeed(f *testing.F) {
	f.Add("cidata", "user-data", []byte("u"), "meta-data", []byte("m"))
	f.Add("config-2", "openstack/latest/user_data", []byte("u"), "openstack/latest/user_datb", []byte{})
	f.Add("x", "a.bcd", []byte{}, "a.bcde", make([]byte, 2048))
	f.Fuzz(func(t *testing.T, label, name1 string, data1 []byte, name2 string, data2 []byte) {
		files := []File{{name1, data1}, {name2, data2}}
		image, err := Seed(label, files)
		if err != nil {
			return
		}
		for _, tree := range []uint32{16, 17} {
			got := map[string]string{}
			for _, e := range read(t, image, tree) {
				got[e.path] = e.data
			}
			same(t, fmt.Sprint(tree), got, want(files))
		}
	})
}

type entry struct {
	path, id, data string
	extent         uint32
}

// read is a second opinion on the format: it checks what it walks over.
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
			path := prefix + name(id, r, descriptor)
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

// ordered says whether the record of b follows that of a (ECMA-119, 9.3): by
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

func name(id string, record []byte, descriptor uint32) string {
	if descriptor == 17 {
		var u []uint16
		for i := 0; i < len(id); i += 2 {
			u = append(u, binary.BigEndian.Uint16([]byte(id[i:])))
		}
		return string(utf16.Decode(u))
	}
	use := record[33+len(id)+(1-len(id)%2):]
	for len(use) > 4 {
		if string(use[:2]) == "NM" {
			return string(use[5:use[2]])
		}
		use = use[use[2]:]
	}
	return ""
}

func both(t *testing.T, b []byte) uint32 {
	n := binary.LittleEndian.Uint32(b)
	if n != binary.BigEndian.Uint32(b[4:]) {
		t.Fatal("byte orders differ")
	}
	return n
}
