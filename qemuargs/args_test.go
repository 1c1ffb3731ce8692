package qemuargs

import (
	"fmt"
	"os/exec"
	"reflect"
	"strings"
	"testing"
)

func TestArgumentsAsStrings(t *testing.T) {
	tests := []struct {
		arg  Arg
		want []string
	}{
		{Arg{Flag: "-S"}, []string{"-S"}},
		{Arg{Flag: "-uuid", Value: "a,b"}, []string{"-uuid", "a,b"}},
		{Arg{Flag: "-uuid", Value: ""}, []string{"-uuid", ""}},
		{Arg{Flag: "-name", Value: Options{{Key: "guest", Value: "a,b=c,,d"}, {Key: "debug-threads", Value: "on"}}}, []string{"-name", "guest=a,,b=c,,,,d,debug-threads=on"}},
		{Arg{Flag: "-cpu", Value: Options{{Value: "host,+x"}}}, []string{"-cpu", "host,,+x"}},
		{Arg{Flag: "-object", Value: rngProps{QOMType: "rng-random", ID: `a"b,<&>`, Filename: "/dev/urandom"}},
			[]string{"-object", `{"qom-type":"rng-random","id":"a\"b,\u003c\u0026\u003e","filename":"/dev/urandom"}`}},
	}
	for _, tt := range tests {
		if got := Strings([]Arg{tt.arg}); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%v: got %q, want %q", tt.arg, got, tt.want)
		}
	}
}

// TestShellReadsQuotedLinesBack: a shell reads the lines back.
func TestShellReadsQuotedLinesBack(t *testing.T) {
	args := []Arg{{Flag: "-S"}, {Flag: "-json", Value: map[string]string{"a": "it's"}}}
	for _, value := range []string{"", "plain-_=.,:/@%+", "two words", "it's", "''", `"$HOME" $(id) `, "`id`", "a\nb\n", `back\slash`, "*?[a]~#;&|<>(){}!", "-n", "größe"} {
		args = append(args, Arg{Flag: "-x", Value: value})
	}
	quoted := Quote(`printf '%s\0'`, args)
	out, err := exec.Command("sh", "-c", quoted).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, quoted)
	}
	got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if want := Strings(args); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// allNodes returns the node names of a disk, with and without overlay.
func allNodes(name string) map[string]bool {
	names := map[string]bool{}
	for _, overlay := range []*Overlay{nil, {}} {
		for _, node := range (Disk{Name: name, Image: Image{Format: QCOW2}, Overlay: overlay}).Blockdevs(0) {
			switch n := node.(type) {
			case fileNode:
				names[n.NodeName] = true
			case formatNode:
				names[n.NodeName] = true
			}
		}
	}
	return names
}

func TestNodeNamesOfLongDisks(t *testing.T) {
	const disks = 200
	seen := map[string]string{}
	for i := range disks {
		name := "a-long-name-that-differs-only-at-its-very-end-" + fmt.Sprint(i)
		for node := range allNodes(name) {
			if other, ok := seen[node]; ok {
				t.Errorf("disks %s and %s have the node %s", name, other, node)
			}
			seen[node] = name
		}
	}
	if len(seen) != 4*disks {
		t.Errorf("%d nodes, want 4 of each disk", len(seen))
	}
}

// FuzzNodeName: a node's name is one that QEMU takes. util/id.c takes letters, digits, '-', '.' and '_' after a letter,
// and block.c at most 31 bytes.
func FuzzNodeName(f *testing.F) {
	f.Add("root")
	f.Add("0")
	f.Add(strings.Repeat("a", 26))
	f.Add(strings.Repeat("a", 27))
	f.Add(strings.Repeat("a-", 31) + "a")
	f.Fuzz(func(t *testing.T, name string) {
		if name == "" || len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Skip("no name of a disk")
		}
		nodes := allNodes(name)
		if len(nodes) != 4 {
			t.Errorf("nodes %v, want 4 different ones", nodes)
		}
		for node := range nodes {
			if len(node) > 31 || !strings.HasPrefix(node, "disk-") || strings.Trim(node, "abcdefghijklmnopqrstuvwxyz0123456789-._") != "" {
				t.Errorf("node name %q", node)
			}
		}
	})
}
