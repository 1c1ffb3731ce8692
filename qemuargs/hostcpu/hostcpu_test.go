package hostcpu

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// node returns what a QEMU could say: its own CPU is a Haswell with more, in the eyes of a user.
func node() Answers {
	own := Props{"family": json.Number("6"), "model": json.Number("60"), "stepping": json.Number("0"), "vendor": "GenuineIntel", "model-id": "Intel, [fast]\\ CPU @ 2 GHz",
		"sse2": true, "avx": true, "avx2": true, "aes": true, "svm": false}
	return Answers{QEMUVersion: "11.1.0", Own: own, Unmovable: Props{"sse2": true, "invtsc": true}, PhysBits: 46,
		Definitions: []Definition{{Name: "max"}, {Name: "base"}, {Name: "Penryn-v1"}, {Name: "Haswell-v4"}, {Name: "Haswell-noTSX-IBRS", Alias: "Haswell-v4"},
			{Name: "Broadwell-v1"}, {Name: "EPYC-v1", Unavailable: []string{"svm"}}, {Name: "bad,name"}},
		Models: map[string]Props{
			"max": own, "base": {"family": json.Number("0")},
			"Penryn-v1":          {"family": json.Number("6"), "model": json.Number("23"), "sse2": true},
			"Haswell-v4":         {"family": json.Number("6"), "model": json.Number("60"), "sse2": true, "avx": true},
			"Haswell-noTSX-IBRS": {"family": json.Number("6"), "model": json.Number("60"), "sse2": true, "avx": true},
			"Broadwell-v1":       {"family": json.Number("6"), "model": json.Number("61"), "sse2": true, "avx": true, "avx2": true},
		}}
}

func TestReadNodesCPU(t *testing.T) {
	got, err := Read(node())
	if err != nil {
		t.Fatal(err)
	}
	want := CPU{QEMUVersion: "11.1.0",
		Flags: []string{"aes=on", "avx2=on", "avx=on", "family=6", "model-id=Intel fast CPU @ 2 GHz", "model=60", "sse2=on", "stepping=0", "vendor=GenuineIntel", "phys-bits=46"},
		Told: Told{Vendor: "Intel", Models: []string{"Broadwell-v1", "Haswell-noTSX-IBRS", "Haswell-v4", "Penryn-v1", "base", "max"},
			Features: []string{"aes", "avx", "avx2", "invtsc", "sse2"}, HostModel: "Haswell-noTSX-IBRS", Required: []string{"aes", "avx2"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReadRefuses(t *testing.T) {
	for name, change := range map[string]func(*Answers){
		"no properties":       func(a *Answers) { a.Own = nil },
		"a property's name":   func(a *Answers) { a.Own["a,b"] = true },
		"a fraction":          func(a *Answers) { a.Own["family"] = json.Number("1.5") },
		"too many properties": func(a *Answers) { a.Definitions = make([]Definition, maxProps+1) },
	} {
		a := node()
		change(&a)
		if cpu, err := Read(a); err == nil {
			t.Errorf("%s: %+v", name, cpu)
		}
	}
}

// TestNearestByFeatures: no model has the family of the node's own.
func TestNearestByFeatures(t *testing.T) {
	a := node()
	a.Own["family"] = json.Number("25")
	cpu, err := Read(a)
	if err != nil || cpu.HostModel != "Broadwell-v1" || !slices.Equal(cpu.Required, []string{"aes"}) {
		t.Errorf("%s %q, %v", cpu.HostModel, cpu.Required, err)
	}
}

// TestNearestOfVendor: a model of the node's vendor comes nearer than one of another vendor with more features.
func TestNearestOfVendor(t *testing.T) {
	a := node()
	a.Own["family"], a.Own["vendor"] = json.Number("26"), "AuthenticAMD"
	a.Definitions = append(a.Definitions, Definition{Name: "Opteron_G3"})
	a.Models["Broadwell-v1"]["vendor"] = "GenuineIntel"
	a.Models["Opteron_G3"] = Props{"family": json.Number("16"), "vendor": "AuthenticAMD", "sse2": true}
	if cpu, err := Read(a); err != nil || cpu.HostModel != "Opteron_G3" {
		t.Errorf("%s, %v", cpu.HostModel, err)
	}
}

// TestNearestHas64Bits: QEMU's max has the family and the model of its qemu32.
func TestNearestHas64Bits(t *testing.T) {
	a := node()
	a.Own["lm"] = true
	a.Models["Broadwell-v1"]["lm"] = true
	if cpu, err := Read(a); err != nil || cpu.HostModel != "Broadwell-v1" {
		t.Errorf("%s, %v", cpu.HostModel, err)
	}
}

func TestReadWhatALeaseTells(t *testing.T) {
	for text, ok := range map[string]bool{`{"vendor":"AMD"}`: true, `{}`: true, `{`: false, `[]`: false, `{"tsc":{"hertz":1.5}}`: false,
		`{"vendor":"` + strings.Repeat("x", MaxTold) + `"}`: false} {
		if told, err := ReadTold(text); (err == nil) != ok {
			t.Errorf("%.40s: %+v, %v", text, told, err)
		}
	}
}

func FuzzReadTold(f *testing.F) {
	f.Add(`{"vendor":"AMD","models":["max"],"tsc":{"hertz":1}}`)
	f.Fuzz(func(_ *testing.T, text string) { ReadTold(text) })
}
