package schema

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestEmbeddedSchemasKnowTheCatalogue: each release is there, small, and knows what the catalogue uses.
func TestEmbeddedSchemasKnowTheCatalogue(t *testing.T) {
	for _, arch := range Architectures() {
		t.Run(arch, func(t *testing.T) { embedded(t, arch) })
	}
	if _, err := Embedded("x86_64", "1.0"); !errors.Is(err, ErrNotEmbedded) {
		t.Errorf("release 1.0: %v", err)
	}
	if _, err := Embedded("s390x", "11.1"); !errors.Is(err, ErrNotEmbedded) {
		t.Errorf("architecture s390x: %v", err)
	}
}

// what are words that a schema knows: machine type and property, CPU model and feature.
var what = map[string][4]string{"x86_64": {"q35", "vmport", "max", "avx2"}, "aarch64": {"virt", "gic-version", "max", "pauth-impdef"}}

func embedded(t *testing.T, arch string) {
	all, err := All(arch)
	if err != nil {
		t.Fatal(err)
	}
	knows := what[arch]
	for i, s := range all {
		if s.Release() != Releases()[i] || s.Arch != arch || !strings.HasPrefix(s.Package, "Debian ") {
			t.Errorf("%s: version %q, package %q, architecture %q", Releases()[i], s.Version, s.Package, s.Arch)
		}
		file, err := captures.ReadFile(captured(arch, Releases()[i]))
		if err != nil || len(file) > 40<<10 {
			t.Errorf("%s: %d bytes, %v", Releases()[i], len(file), err)
		}
		if again, err := Encode(s); err != nil || !bytes.Equal(again, file) {
			t.Errorf("%s: the file is not what Encode makes of it: %v", Releases()[i], err)
		}
		name, d, ok := s.Device("virtio-blk")
		if list := s.List(d.List); !ok || name != "virtio-blk-pci" || !d.Creatable || list["num-queues"] != "uint16" {
			t.Errorf("%s: virtio-blk is %q, %+v, its num-queues %q", s.Release(), name, d, list["num-queues"])
		}
		for _, command := range append(arguments(), "returns query-display-options") {
			if _, ok := s.Types[s.Commands[command]]; !ok {
				t.Errorf("%s: no type of %s", s.Release(), command)
			}
		}
		_, host := s.CPUs["host"] // as builds with KVM have
		if s.List(s.Machines[knows[0]].List)[knows[1]] == "" || s.List(s.CPUs[knows[2]].List)[knows[3]] == "" || !host || s.List(s.Accelerators["kvm"])["dirty-ring-size"] == "" || !s.HasFlag("device") || s.Options["m"]["size"] != "size" {
			t.Errorf("%s knows too little", s.Release())
		}
	}
}

// TestDecodeRefuses: a file that is no schema, or is of another format, is an error.
func TestDecodeRefuses(t *testing.T) {
	other, err := Encode(&Schema{Format: Format + 1})
	if err != nil {
		t.Fatal(err)
	}
	good, err := captures.ReadFile(captured("x86_64", "7.2"))
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(make([]byte, maxUnpacked+1)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	bomb := packed.Bytes()
	for name, file := range map[string][]byte{"empty": nil, "text": []byte("hello"), "another format": other, "cut": good[:len(good)/2], "bomb": bomb} {
		if s, err := Decode(file); err == nil {
			t.Errorf("%s: %+v", name, s.Version)
		}
	}
	if _, err := Decode(bomb); !errors.Is(err, errTooLong) {
		t.Errorf("a file that unpacks to very much: %v", err)
	}
}

// answers is a QEMU that is made up: by command, or by command and the name of a type.
type answers map[string]func(result any) error

func (a answers) ask(command string, arguments, result any) error {
	key := command
	if of, ok := arguments.(map[string]string); ok && of["typename"] != "" {
		key += " " + of["typename"]
	}
	if f := a[key]; f != nil {
		return f(result)
	}
	return nil
}

// TestCaptureSurvivesQEMUsDeaths: a device whose question ends QEMU is unknown, and the capture goes on with a new QEMU; one that is
// refused is unknown too. When each question ends it, the capture ends with an error.
func TestCaptureSurvivesQEMUsDeaths(t *testing.T) {
	dies := func(any) error { return fmt.Errorf("ask: %w", ErrEnded) }
	a := answers{
		"qom-list-types": func(result any) error {
			list := result.(*[]struct {
				Name, Parent string
				Abstract     bool
			})
			for _, name := range []string{"good", "refused", "deadly"} {
				*list = append(*list, struct {
					Name, Parent string
					Abstract     bool
				}{name, "device", false})
			}
			return nil
		},
		"device-list-properties good": func(result any) error {
			*result.(*[]listed) = []listed{{Name: "mode", Type: "OnOffAuto", Description: "on/off/auto"}, {Name: "wire", Type: "link<irq>"}, {Name: "untyped", Description: "on/off"}}
			return nil
		},
		"device-list-properties deadly":  dies,
		"device-list-properties refused": func(any) error { return ErrRefused },
	}
	connected := 0
	connect := func() (Ask, error) { connected++; return a.ask, nil }
	s, err := Capture(connect, "-device driver\n-M  x\n  -indented no option\n-h or -help     display\n-fda/-fdb file  use\n")
	if err != nil {
		t.Fatal(err)
	}
	if connected != 2 || s.Devices["deadly"].List != Unknown || s.Devices["refused"].List != Unknown || len(s.List(s.Devices["good"].List)) != 2 || !slices.Equal(s.Enums["OnOffAuto"], []string{"on", "off", "auto"}) {
		t.Errorf("%d QEMUs, %+v, %v", connected, s.Devices, s.Enums)
	}
	if want := []string{"M", "device", "fda", "fdb", "h", "help"}; !slices.Equal(s.Flags, want) {
		t.Errorf("flags %q, want %q", s.Flags, want)
	}
	a["query-version"] = dies
	if _, err := Capture(connect, ""); !errors.Is(err, ErrEnded) {
		t.Errorf("a QEMU that ends at once: %v", err)
	}
}

// FuzzDecode: no file makes Decode panic, or what is asked of its result.
func FuzzDecode(f *testing.F) {
	small, err := Encode(&Schema{Format: Format, Version: "1.2.3", Lists: []map[string]string{{"a": "b"}}, Devices: map[string]Device{"d": {List: 7, Alias: "e"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(small)
	f.Fuzz(func(t *testing.T, file []byte) {
		if s, err := Decode(file); err == nil {
			_, d, _ := s.Device("e")
			s.List(d.List)
			s.Release()
		}
	})
}
