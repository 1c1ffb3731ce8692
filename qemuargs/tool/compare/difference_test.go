package compare

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestBothSyntaxesGiveTheSameFacts: both syntaxes say the same, and what a program chooses for itself is no fact.
func TestBothSyntaxesGiveTheSameFacts(t *testing.T) {
	for name, c := range map[string]struct{ args, want string }{
		"first key":        {"-machine q35,usb=off", "-machine usb=off; -machine type=q35"},
		"a comma":          {"-name a,,b", "-name guest=a,b"},
		"a switch":         {"-chardev socket,id=a,server", "-chardev socket (socket) backend=socket; -chardev socket (socket) server=on"},
		"CPU flags":        {"-cpu host,+x2apic,-vmx,hv-time=on", "-cpu hv-time=on; -cpu model=host; -cpu vmx=off; -cpu x2apic=on"},
		"plain":            {"-append a=b c", "-append value=a=b c"},
		"no value":         {"-S", ""},
		"MiB":              {"-m 128", "-m size=128M"},
		"files":            {`-netdev {"type":"tap","id":"n","fds":"6:7"}`, "-netdev tap (tap) fds=N:N; -netdev tap (tap) type=tap"},
		"a socket":         {`-netdev {"type":"stream","id":"n","server":false,"addr":{"type":"fd","str":"6"}}`, "-netdev stream (stream) addr.str=N; -netdev stream (stream) addr.type=fd; -netdev stream (stream) server=off; -netdev stream (stream) type=stream"},
		"nested":           {`-blockdev {"driver":"raw","node-name":"n","cache":{"direct":true}}`, "-blockdev raw (raw) cache.direct=on; -blockdev raw (raw) driver=raw"},
		"null and numbers": {`-blockdev {"driver":"raw","backing":null,"size":16777216}`, "-blockdev raw (raw) backing=null; -blockdev raw (raw) driver=raw; -blockdev raw (raw) size=16777216"},
		"global":           {"-global a.b=1\n-global a.c=2", "-global a.b (a.b) a.b=1; -global a.c (a.c) a.c=2"},
		"smbios":           {"-smbios type=1,uuid=x", "-smbios type 1 (type 1) type=1; -smbios type 1 (type 1) uuid=x"},
		"a PCI place":      {`-device {"driver":"pcie-root-port","id":"p","bus":"pcie.0","addr":"0x2"}` + "\n-device nic,bus=p,addr=0x0", "-device pcie-root-port (pcie.0, addr 0x2) driver=pcie-root-port; -device nic ([pcie.0, addr 0x2], addr 0x0) driver=nic"},
		"a circle":         {"-device a,id=a,bus=b\n-device b,id=b,bus=a", "-device a ([[]]) driver=a; -device b ([]) driver=b"},
		"one place twice":  {"-add-fd fd=3,set=3\n-add-fd fd=4,set=4", "-add-fd value=fd=N,set=N; -add-fd ((2)) value=fd=N,set=N"},
		"a backend":        {"-device d,bus=b,drive=x\n-blockdev raw,node-name=x,file=y\n-blockdev file,node-name=y", "-device d (b) drive=its own; -device d (b) driver=d; -blockdev raw (drive of -device b) driver=raw; -blockdev raw (drive of -device b) file=its own; -blockdev file (file of drive of -device b) driver=file"},
	} {
		var got []string
		for _, f := range Facts(args(c.args)) {
			if f.Property == "" {
				continue
			}
			place := ""
			if f.Place != "" {
				place = " (" + f.Place + ")"
			}
			got = append(got, fmt.Sprintf("%s%s %s=%s", f.Argument, place, f.Property, f.Value))
		}
		want := strings.Split(c.want, "; ")
		slices.Sort(want)
		slices.Sort(got)
		if joined := strings.Join(got, "; "); joined != strings.Join(want, "; ") {
			t.Errorf("%s:\n%s\nwant\n%s", name, joined, strings.Join(want, "; "))
		}
	}
}

// TestNamesMakeNoDifference: names that differ make no difference, and what differs is told once.
func TestNamesMakeNoDifference(t *testing.T) {
	const ours = `-machine q35,usb=off
-chardev socket,id=qmp,fd=3
-mon chardev=qmp,mode=control
-device {"driver":"pcie-root-port","id":"pci.1","bus":"pcie.0","addr":"0x2","port":16}
-blockdev {"driver":"file","node-name":"disk-root.file","filename":"/a"}
-blockdev {"driver":"raw","node-name":"disk-root","file":"disk-root.file"}
-device {"driver":"virtio-blk-pci","id":"disk-root","bus":"pci.1","addr":"0x0","drive":"disk-root","bootindex":1}
-device {"driver":"scsi-cd","id":"cd","bus":"scsi0.0","scsi-id":0,"lun":1}`
	theirs := strings.NewReplacer("qmp", "charmonitor", "disk-root.file", "libvirt-1-storage", "disk-root", "libvirt-1-format", "pci.1", "port",
		"fd=3", "fd=20", `"scsi-id":0`, `"channel":0,"scsi-id":0`, "q35", "type=q35").Replace(ours)
	for name, c := range map[string]struct{ after, want string }{
		"other names":              {theirs, ""},
		"an image":                 {strings.Replace(theirs, "/a", "/b", 1), "-blockdev file filename (file of drive of -device [pcie.0, addr 0x2], addr 0x0): /a → /b"},
		"a property more":          {strings.Replace(theirs, `"bootindex"`, `"serial":"","bootindex"`, 1), `-device virtio-blk-pci serial ([pcie.0, addr 0x2], addr 0x0): unset → ""`},
		"a property less":          {strings.Replace(theirs, ",usb=off", "", 1), "-machine usb: off → unset"},
		"another driver":           {strings.Replace(theirs, "scsi-cd", "scsi-hd", 1), "-device scsi-cd driver (scsi0.0, lun 1): scsi-cd → scsi-hd"},
		"another place":            {strings.Replace(theirs, `"lun":1`, `"lun":2`, 1), "-device scsi-cd (scsi0.0, lun 1): there → unset; -device scsi-cd (scsi0.0, lun 2): unset → there"},
		"an argument more":         {theirs + "\n-no-shutdown", "-no-shutdown: unset → there"},
		"a device without backend": {strings.Replace(theirs, `,"drive":"libvirt-1-format"`, "", 1), "-blockdev file (file of drive of -device [pcie.0, addr 0x2], addr 0x0): there → unset; -blockdev raw (drive of -device [pcie.0, addr 0x2], addr 0x0): there → unset; -device virtio-blk-pci drive ([pcie.0, addr 0x2], addr 0x0): its own → unset; -blockdev file (file): unset → there; -blockdev raw (raw): unset → there"},
	} {
		var got []string
		for _, d := range Differences(args(ours), args(c.after)) {
			got = append(got, d.String())
		}
		if diff := cmp.Diff(c.want, strings.Join(got, "; ")); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// FuzzDifferences: a command line does not differ from itself, and nothing in it makes the
// comparison panic or run on.
func FuzzDifferences(f *testing.F) {
	f.Add(`-device {"driver":"a","id":"a","bus":"a.0","drive":"d"}` + "\n" + `-blockdev {"driver":"raw","node-name":"d","file":"d"}`)
	f.Add("-device a,id=a,bus=b\n-device b,id=b,bus=a\n-cpu host,+x\n-m 1\n-global a=b\n-smbios type=1")
	f.Fuzz(func(t *testing.T, lines string) {
		if d := Differences(args(lines), args(lines)); len(d) > 0 {
			t.Errorf("it differs from itself: %v", d)
		}
		if n := len(args(lines)); n > 0 && len(Facts(args(lines))) < n {
			t.Errorf("%d arguments, and fewer facts", n)
		}
	})
}
