package libvirt

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/compare"
)

// shown are the domains that testdata shows.
var shown = []string{"arm64-graphics-tcg", "cdrom-scsi-tcg", "graphics-tcg", "interface-multiqueue-kvm", "interface-sriov-place-tcg", "timer-pit-delay-kvm", "volume-claim-block-kvm", "volume-no-direct-tcg"}

// TestEachVMIHasALibvirtDomain: each VMI of the catalogue can be described to libvirt.
func TestEachVMIHasALibvirtDomain(t *testing.T) {
	for _, f := range catalogue(t, qemuargs.TCG, qemuargs.KVM) {
		text := f.domain(t, "/usr/bin/"+f.machine.Arch.Program())
		var again Domain
		if err := xml.Unmarshal([]byte(text), &again); err != nil {
			t.Errorf("%s: read the XML again: %v", f.name, err)
		}
		if slices.Contains(shown, f.name) {
			golden.Compare(t, filepath.Join("testdata/domains", f.name+".xml"), text)
		}
	}
}

func TestDiskName(t *testing.T) {
	for n, want := range map[int]string{0: "vda", 25: "vdz", 26: "vdaa", 51: "vdaz", 52: "vdba", 701: "vdzz", 702: "vdaaa"} {
		if got := diskName("vd", n); got != want {
			t.Errorf("disk %d is %s, want %s", n, got, want)
		}
	}
}

func TestSATAPort(t *testing.T) {
	for bus, want := range map[string][2]int{"ide.0": {0, 0}, "ide.5": {0, 5}, "ahci2.3": {2, 3}} {
		if c, p, err := sataPort(bus); err != nil || c != want[0] || p != want[1] {
			t.Errorf("%s is controller %d port %d (%v), want %v", bus, c, p, err, want)
		}
	}
	for _, bus := range []string{"", "ide", "ide.x", "ahcix.1"} {
		if c, p, err := sataPort(bus); err == nil {
			t.Errorf("%q is controller %d port %d, want an error", bus, c, p)
		}
	}
}

func TestWhichDifferencesAPatternCovers(t *testing.T) {
	d := compare.Difference{Argument: "-blockdev file", Place: "somewhere", Property: "filename", Before: "/dev/fdset/N", After: "/a/b"}
	for name, c := range map[string]struct {
		pattern Pattern
		want    bool
	}{
		"exact":            {Pattern{Argument: "-blockdev file", Property: "filename", Ours: "/dev/fdset/N", Libvirt: "/a/b"}, true},
		"wild":             {Pattern{Argument: "-blockdev *", Property: "*", Ours: "*/N", Libvirt: "/*b"}, true},
		"another argument": {Pattern{Argument: "-device *", Property: "*", Ours: "*", Libvirt: "*"}, false},
		"another property": {Pattern{Argument: "*", Property: "file", Ours: "*", Libvirt: "*"}, false},
		"our value":        {Pattern{Argument: "*", Property: "*", Ours: "unset", Libvirt: "*"}, false},
		"libvirt's value":  {Pattern{Argument: "*", Property: "*", Ours: "*", Libvirt: "/a"}, false},
		"the domain":       {Pattern{Argument: "*", Property: "*", Ours: "*", Libvirt: "*", Domain: "disk-*-kvm"}, true},
		"another domain":   {Pattern{Argument: "*", Property: "*", Ours: "*", Libvirt: "*", Domain: "disk-*-tcg"}, false},
	} {
		if got := c.pattern.Covers("disk-sata-kvm", d); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestBadReviewIsRefused: a list that says too little, or what nobody reads, is refused.
func TestBadReviewIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "list.yaml")
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"whole":          {"[{title: t, reason: r, differences: [{argument: -S, ours: there, libvirt: unset}]}]", true},
		"no reason":      {"[{title: t, differences: [{argument: -S, ours: there, libvirt: unset}]}]", false},
		"no title":       {"[{reason: r, differences: [{argument: -S, ours: there, libvirt: unset}]}]", false},
		"no differences": {"[{title: t, reason: r}]", false},
		"misspelt":       {"[{title: t, reason: r, differences: [{argument: -S, our: there, libvirt: unset}]}]", false},
		"no YAML":        {"{", false},
	} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Reviewed(file); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Reviewed(file + ".absent"); err == nil {
		t.Error("a list that is not there is none")
	}
}
