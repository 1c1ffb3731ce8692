package hostfile

import (
	"bytes"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// full returns a host in which each field is set.
func full() resolve.Host {
	blocks := &qemuargs.BlockSizes{Logical: 512, Physical: 4096, DiscardGranularity: ptr.To[uint32](0)}
	return resolve.Host{
		Accelerator: qemuargs.KVM, QEMUVersion: "11.1.3", OverlayDirect: true, OverlayBlocks: blocks,
		ContainerDisks: map[string]qemuargs.ImageFacts{"root": {Path: "/disk/disk.qcow2", HandedOut: true,
			Format: qemuargs.QCOW2, VirtualSize: 1 << 30, Direct: true, Error: "a: \"text\" # and\nmore \x1b[2J"}},
		Claims: map[string]qemuargs.VolumeFacts{"data": {Path: "/data", Block: true, DiskSize: 1, Missing: true, Size: 2,
			Free: 3, Taken: 4, Blank: true, Incoming: "0x10", Direct: true, SCSI: true, Blocks: blocks, Error: "e"}},
		ConfigVolumes: map[string]qemuargs.ConfigFacts{"on": {Size: 512, Error: "yes"}},
		AIO:           qemuargs.AIOFacts{Native: true, NativePlenty: true, IOURing: true},
		Kernel:        &qemuargs.KernelFacts{Path: "/kernel", Initrd: "/initrd", Error: "null"},
		VhostNet:      true, NoHyperV: true, HostModel: []string{"aes=on", "vendor=Genuine Intel", "level=13", "off", "1e3"},
		TSCFrequency: 2_000_000_000, NoFreePageReporting: true, FirmwareDir: "/firmware", Now: 1767225600,
		SMBIOS: qemuargs.SMBIOS{Manufacturer: "M", Product: "1.10", Version: "0x1", SKU: "~", Family: "F: f",
			Serial: "S"},
		ZoneOffset: ptr.To[int64](-3600), CPUNodes: []int{0, 1}, Root: "/root",
		NICs: map[string]resolve.NIC{"default": {MTU: 1450, MAC: "02:00:00:00:00:01", Device: "0000:3b:00.0",
			RefreshLink: true, User: &qemuargs.UserNetwork{Network: netip.MustParsePrefix("10.0.2.0/24"),
				Router: netip.MustParseAddr("10.0.2.2"), Guest: netip.MustParseAddr("10.0.2.15"),
				DNS: netip.MustParseAddr("10.0.2.3"), Hostname: "web", Forwards: []qemuargs.Forward{{Protocol: qemuargs.TCP,
					Address: netip.MustParseAddr("127.0.0.1"), Port: 2222, GuestPort: 22}}}}},
	}
}

// TestFileIsTheHost: what is written is what is read, whatever is in the texts.
func TestFileIsTheHost(t *testing.T) {
	equal := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	address := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	small := resolve.Host{Accelerator: qemuargs.TCG, QEMUVersion: "7.2"}
	for name, host := range map[string]resolve.Host{"full": full(), "empty": {}, "small": small} {
		var file bytes.Buffer
		if err := Write(&file, []string{"The heading."}, host); err != nil {
			t.Fatal(err)
		}
		var got resolve.Host
		if err := sigsyaml.UnmarshalStrict(file.Bytes(), &got); err != nil {
			t.Fatalf("%s: %v:\n%s", name, err, file.String())
		}
		if diff := cmp.Diff(host, got, equal, address); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
		for line := range strings.Lines(file.String()) {
			if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\n' }) {
				t.Errorf("%s: a control character in %q", name, line)
			}
		}
	}
}

// TestFullHostIsFull: the tests above look at each field.
func TestFullHostIsFull(t *testing.T) {
	var look func(v reflect.Value, path string)
	look = func(v reflect.Value, path string) {
		for v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		switch v.Kind() {
		case reflect.Map:
			for _, key := range v.MapKeys() {
				look(v.MapIndex(key), path)
			}
		case reflect.Slice:
			for i := range v.Len() {
				look(v.Index(i), path)
			}
		case reflect.Struct:
			for f := range fields(v.Type()) {
				value := v.FieldByIndex(f.Index)
				if value.IsZero() {
					t.Errorf("%s%s is not set", path, f.name)
				}
				look(value, path+f.name+".")
			}
		}
	}
	look(reflect.ValueOf(full()), "")
}

// TestEachFieldHasAText: in the file, and those of the host itself in the docs, too.
func TestEachFieldHasAText(t *testing.T) {
	docs, err := os.ReadFile("../../../docs/qemuargs.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	var look func(t reflect.Type, prefix string)
	look = func(of reflect.Type, prefix string) {
		for f := range fields(element(of)) {
			path := prefix + f.name
			known[path] = true
			if texts[path] == "" {
				t.Errorf("%s has no text", path)
			}
			if prefix == "" && !strings.Contains(string(docs), "| `"+path+"` | "+texts[path]+" |\n") {
				t.Errorf("docs/qemuargs.md has no line\n| `%s` | %s |", path, texts[path])
			}
			look(f.Type, path+".")
		}
	}
	look(reflect.TypeFor[resolve.Host](), "")
	for path := range texts {
		if !known[path] {
			t.Errorf("a text is there for %s, which is no field", path)
		}
	}
}

// TestFileIsForPeople: a file as it is printed.
func TestFileIsForPeople(t *testing.T) {
	host := resolve.Host{Accelerator: qemuargs.TCG, QEMUVersion: "11.1.3", AIO: qemuargs.AIOFacts{Native: true},
		HostModel: []string{"aes=on", "vendor=AuthenticAMD"}}
	var file bytes.Buffer
	if err := Write(&file, []string{"Facts of node n1."}, host); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Facts of node n1.\n\n# accelerator: " + texts["accelerator"] + "\naccelerator: tcg\n",
		"qemuVersion: \"11.1.3\"\n", "hostModel: [aes=on, vendor=AuthenticAMD]\n",
		"# vhostNet: " + texts["vhostNet"] + "\n# vhostNet is not set.\n",
		"#   native: " + texts["aio.native"] + "\n", "aio:\n  native: true\n", "#     discardGranularity: "} {
		if !strings.Contains(file.String(), want) {
			t.Errorf("the file has no %q:\n%s", want, file.String())
		}
	}
}
