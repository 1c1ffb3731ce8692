package compare

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func TestPartOfAnArgument(t *testing.T) {
	for argument, want := range map[Argument]string{
		`-device {"driver":"virtio-blk-pci","id":"disk-root"}`:      "disk root",
		`-blockdev {"driver":"qcow2","node-name":"disk-root.base"}`: "disk root",
		`-add-fd fd=5,set=5`: "add-fd",
		`-netdev {"type":"tap","id":"net-default","fd":"6"}`:      "nic default",
		`-device {"driver":"virtio-net-pci","id":"nic-default"}`:  "nic default",
		`-device {"driver":"pcie-root-port","id":"pci.3"}`:        "pci port 3",
		`-chardev socket,id=agent0,fd=5`:                          "agent",
		`-device {"driver":"virtserialport","id":"agent0"}`:       "agent",
		`-object {"qom-type":"memory-backend-ram","id":"pc.ram"}`: "memory",
		`-m size=64M`:                          "memory",
		`-smp 1`:                               "cpu",
		`-cpu host`:                            "cpu",
		`-machine pc-q35-11.1`:                 "machine",
		`-vnc unix:/run/kubeqemu/vnc.sock`:     "graphics",
		`-S`:                                   "S",
		`-append console=ttyS0`:                "kernel",
		`-device {"driver":"new","id":"new0"}`: "new0",
		`-device {"driver":"nameless"}`:        "device",
	} {
		if got := argument.Part(); got != want {
			t.Errorf("%s is of %q, want %q", argument, got, want)
		}
	}
}

func args(lines string) (out []Argument) {
	for line := range strings.Lines(lines) {
		out = append(out, Argument(strings.TrimSpace(line)))
	}
	return out
}

// TestDiff: a change is of one part, and says whether the guest sees it.
func TestDiff(t *testing.T) {
	const base = `-machine pc-q35-11.1
-chardev socket,id=qmp,fd=3
-blockdev {"driver":"file","node-name":"disk-root","filename":"/dev/fdset/6"}
-device {"driver":"virtio-blk-pci","id":"disk-root","drive":"disk-root","addr":"0x1"}
-chardev socket,id=agent0,fd=7`
	for name, c := range map[string]struct {
		before, after string
		want          string
	}{
		"nothing":                   {base, base, ""},
		"another number of a file":  {base, strings.NewReplacer("fd=7", "fd=9", "fdset/6", "fdset/8").Replace(base), ""},
		"an address":                {base, strings.Replace(base, `"addr":"0x1"`, `"addr":"0x2"`, 1), "disk root, guest"},
		"a cache":                   {base, strings.Replace(base, `"filename"`, `"cache":{"direct":true},"filename"`, 1), "disk root, host"},
		"a property for QEMU alone": {base, strings.Replace(base, `"drive"`, `"werror":"stop","drive"`, 1), "disk root, host"},
		"a machine type":            {base, strings.Replace(base, "11.1", "10.0", 1), "machine, guest"},
		"a device more":             {base, base + "\n" + `-device {"driver":"virtio-rng-pci","id":"rng0"}`, "rng, guest"},
		"a device less":             {base + "\n" + `-device {"driver":"virtio-rng-pci","id":"rng0"}`, base, "rng, guest"},
		"a claim's disk more":       {base, base + "\n-add-fd fd=8,set=8\n" + `-blockdev {"driver":"file","node-name":"disk-data","filename":"/dev/fdset/8"}`, "disk data, host"},
		"another order":             {"-global a=1\n-global b=2", "-global b=2\n-global a=1", "global, guest"},
		"a kernel's argument":       {"-append console=ttyS0 foo.set=1 fd=2", "-append console=ttyS0 foo.set=7 fd=99", "kernel, guest"},
		"a name like a number":      {`-device {"driver":"x","serial":"/dev/fdset/1"}`, `-device {"driver":"x","serial":"/dev/fdset/2"}`, "device, guest"},
		"another number of a tap":   {`-netdev {"type":"tap","id":"net-a","fds":"6:7"}`, `-netdev {"type":"tap","id":"net-a","fds":"8:9"}`, ""},
		"other numbers of vhost":    {`-netdev {"type":"tap","fd":"6","vhost":true,"vhostfd":"7"}`, `-netdev {"type":"tap","fd":"7","vhost":true,"vhostfd":"8"}`, ""},
		"another number of passt's": {`-netdev {"type":"stream","id":"net-a","server":false,"addr":{"type":"fd","str":"6"}}`, `-netdev {"type":"stream","id":"net-a","server":false,"addr":{"type":"fd","str":"8"}}`, ""},
		"passt instead of a tap":    {`-netdev {"type":"tap","id":"net-a","fd":"6"}`, `-netdev {"type":"stream","id":"net-a","server":false,"addr":{"type":"fd","str":"6"}}`, "nic a, host"},
		"vhost-net":                 {`-netdev {"type":"tap","id":"net-a","fd":"6"}`, `-netdev {"type":"tap","id":"net-a","fd":"6","vhost":true,"vhostfd":"7"}`, "nic a, host"},
		"another socket":            {"-vnc unix:/a", "-vnc unix:/b", "graphics, host"},
	} {
		var got []string
		for _, change := range Diff(args(c.before), args(c.after)) {
			who := "host"
			if change.Guest {
				who = "guest"
			}
			got = append(got, change.Part+", "+who)
		}
		if joined := strings.Join(got, "; "); joined != c.want {
			t.Errorf("%s: %q, want %q", name, joined, c.want)
		}
	}
}

func TestChangeString(t *testing.T) {
	c := Change{Part: "cpu", Guest: true, Before: args("-cpu host\n" + `-device {"id":"a","bus":"pci.1","n":1,"old":true}`), After: args("-cpu max\n-smp 2\n" + `-device {"id":"a","bus":"pci.2","n":1,"new":"x"}`)}
	const want = `cpu (the guest sees it)
  - -cpu host
  + -cpu max
  ~ -device a
      bus: "pci.1" → "pci.2"
      new: unset → "x"
      old: true → unset
  + -smp 2
`
	if diff := cmp.Diff(want, c.String()); diff != "" {
		t.Error(diff)
	}
}

// TestWordsAreTheArgumentsOfAProcess: from the words of a process come the arguments of its machine.
func TestWordsAreTheArgumentsOfAProcess(t *testing.T) {
	m := qemuargs.Machine{Arch: qemuargs.AMD64, Type: "pc-q35-11.1", Accelerator: qemuargs.TCG, MemoryBytes: 1 << 20,
		Kernel: &qemuargs.Kernel{Path: "/k", Args: "-x\ny"}, Serial: &qemuargs.Serial{}, MonitorObject: true}
	got, want := Words(qemuargs.Strings(m.Args())), Arguments(m.Args())
	if !slices.Equal(got, want) || !slices.Contains(got, `-append -x\ny`) || !slices.Contains(got, "-S") {
		t.Errorf("%q, want %q", got, want)
	}
}
