package check_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kubeqemu/kubeqemu/internal/cputime"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/check"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

// TestHandWrittenArgumentsAreTaken: what people and libvirt write in other ways than the catalogue is taken, on every release.
func TestHandWrittenArgumentsAreTaken(t *testing.T) {
	all, lines := schemas(t), strings.Split(strings.TrimSpace(read(t, "testdata/handwritten.sh")), "\n")
	if len(lines) < 8 {
		t.Fatalf("%d lines", len(lines))
	}
	for _, line := range lines {
		for release := range all["x86_64"] {
			if got := problems(t, all, release, line); got != "" {
				t.Errorf("QEMU %s: %s\n%s", release, got, line)
			}
		}
	}
}

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []check.Section
	}{
		"a shell's lines":      {"FOO=1 /usr/bin/qemu-system-x86_64 \\\n  -S \\\n  -append 'a '\\''b'\\'' c' -name \"x\\\"y\\z\"\n", []check.Section{{Args: []string{"-S", "-append", "a 'b' c", "-name", `x"y\z`}}}},
		"one shell line":       {"-S -m 1G\n", []check.Section{{Args: []string{"-S", "-m", "1G"}}}},
		"one option, JSON":     {`-device {"driver":"a", "id":"b"}`, []check.Section{{Args: []string{"-device", `{"driver":"a", "id":"b"}`}}}},
		"an option a line":     {"-S\n-append a 'b' c\n-m\n1G\n", []check.Section{{Args: []string{"-S", "-append", "a 'b' c", "-m", "1G"}}}},
		"titles":               {"# VirtualMachine default/a\n-S\n\n# VirtualMachine default/b\n-m 1G\n", []check.Section{{Title: "VirtualMachine default/a", Args: []string{"-S"}}, {Title: "VirtualMachine default/b", Args: []string{"-m", "1G"}}}},
		"comments":             {"#!/bin/sh\n# don't touch\nexec qemu-system-x86_64 -S # it's \\\n  -m 1G -name a#b '#c'\n", []check.Section{{Args: []string{"-S", "-m", "1G", "-name", "a#b", "#c"}}}},
		"what runs QEMU":       {"sudo -u me numactl --cpunodebind=0 /usr/bin/qemu-system-x86_64 -m 1G", []check.Section{{Args: []string{"-m", "1G"}}}},
		"a script runs QEMU":   {"./vm.sh -accel kvm -name qemu-kvm", []check.Section{{Args: []string{"./vm.sh", "-accel", "kvm", "-name", "qemu-kvm"}}}},
		"options alone":        {"-accel kvm -S", []check.Section{{Args: []string{"-accel", "kvm", "-S"}}}},
		"kvm":                  {"sudo -E kvm -accel kvm", []check.Section{{Args: []string{"-accel", "kvm"}}}},
		"cmdline":              {"/usr/bin/qemu-system-x86_64\x00-name\x00it's \\ me\x00-append\x00\x00-S\x00", []check.Section{{Args: []string{"-name", `it's \ me`, "-append", "", "-S"}}}},
		"as ps prints":         {`123 ? Sl 0:01 qemu-kvm -blockdev {"driver":"file", "filename":"/a b"} -S`, []check.Section{{Args: []string{"-blockdev", `{"driver":"file", "filename":"/a b"}`, "-S"}}}},
		"a shell's braces":     {`kvm -name {"a b" -S`, []check.Section{{Args: []string{"-name", "{a b", "-S"}}}},
		"two options a line":   {"-m 1G -smp 2\n-cpu host\n", []check.Section{{Args: []string{"-m", "1G", "-smp", "2", "-cpu", "host"}}}},
		"a kernel's options":   {"-append a -b c\n-S\n", []check.Section{{Args: []string{"-append", "a -b c", "-S"}}}},
		"line ends of Windows": {"qemu -S \\\r\n -m 1G\r\n", []check.Section{{Args: []string{"-S", "-m", "1G"}}}},
	} {
		got, err := check.Parse(c.text)
		if err != nil || !slices.EqualFunc(got, c.want, func(a, b check.Section) bool { return a.Title == b.Title && slices.Equal(a.Args, b.Args) }) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
	for _, text := range []string{"", "# only a title\n", "qemu -name 'a", strings.Repeat("-S ", check.MaxText)} {
		if got, err := check.Parse(text); err == nil {
			t.Errorf("%.20q is read: %d sections", text, len(got))
		}
	}
}

// TestQEMUOfOtherArchitectureIsOneWarning: a QEMU of another architecture than the schema's is one warning.
func TestQEMUOfOtherArchitectureIsOneWarning(t *testing.T) {
	s := schemas(t)["x86_64"]["11.1"]
	for name, want := range map[string]bool{"": false, "qemu-kvm": false, "qemu-system-x86_64": false, "qemu-system-aarch64": true} {
		if p, got := check.Program(name, s); got != want || got && (!p.Warning || !strings.Contains(p.String(), "x86_64")) {
			t.Errorf("%q: %v, %q", name, got, p)
		}
	}
	sections, err := check.Parse("sudo -E /usr/bin/qemu-system-aarch64 -S")
	if err != nil || sections[0].Program != "qemu-system-aarch64" {
		t.Errorf("%+v, %v", sections, err)
	}
}

// TestCheckOfManyMistakesEndsSoon: the check of very many mistakes ends soon, and says that it has ended. Warnings do not end it.
func TestCheckOfManyMistakesEndsSoon(t *testing.T) {
	all := schemas(t)
	var features, ids, references strings.Builder
	for n := range 20_000 {
		fmt.Fprintf(&features, ",+no-such%05d", n)
	}
	for n := range 100_000 {
		fmt.Fprintf(&ids, " -device pcie-root-port,id=port%06d", n)
	}
	for n := range 300 {
		fmt.Fprintf(&references, " -device virtio-rng-pci,bus=prot%06d", n)
	}
	for name, c := range map[string]struct {
		text             string
		errors, warnings int
		last             string
	}{
		"devices":            {strings.Repeat(" -device virtio-blk-pcj-non-transitionalx", 100_000), 201, 0, "arguments: the check ended after 200 errors"},
		"features":           {" -cpu host" + features.String(), 201, 0, "arguments: the check ended after 200 errors"},
		"references":         {ids.String() + references.String(), 201, 0, "arguments: the check ended after 200 errors"},
		"warnings":           {" -chardev null,id=c" + strings.Repeat(" -mon chardev=c", 250) + " -nosuch x", 1, 201, "arguments: warning: 50 more warnings are not shown"},
		"long small letters": {" -nosuch" + strings.Repeat("Ⱥ", 29) + " x", 1, 0, "-nosuch" + strings.Repeat("Ⱥ", 29) + ": QEMU 11.1 has no such option"},
		"just 200":           {strings.Repeat(" -nosuch x", 200), 200, 0, "-nosuch: QEMU 11.1 has no such option"},
	} {
		t.Run(name, func(t *testing.T) {
			var lines []string
			took := cputime.Of(t, func() {
				lines = strings.Split(problems(t, all, "11.1", "qemu-system-x86_64"+c.text), "\n")
			})
			warnings := 0
			for _, line := range lines {
				if strings.Contains(line, ": warning: ") {
					warnings++
				}
			}
			if last := lines[len(lines)-1]; len(lines)-warnings != c.errors || warnings != c.warnings || last != c.last {
				t.Errorf("%d errors and %d warnings, want %d and %d; the last is %q, want %q", len(lines)-warnings, warnings, c.errors, c.warnings, last, c.last)
			}
			if took > 4*time.Second { // 0.6 s on a slow machine
				t.Errorf("it took %v of CPU time", took)
			}
		})
	}
}

// FuzzArguments: whatever the text is, the check ends, and each problem is one line of text.
func FuzzArguments(f *testing.F) {
	files, err := filepath.Glob(machines + "*/11.1.args")
	if err != nil || len(files) == 0 {
		f.Fatalf("no goldens: %v", err)
	}
	for _, file := range files[:8] {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	for line := range strings.Lines(read(f, "testdata/handwritten.sh")) {
		f.Add(line)
	}
	for _, m := range mistakes {
		f.Add("qemu " + m.wrong)
	}
	for _, r := range append(tried, more...) {
		f.Add("qemu " + r.args)
	}
	all := schemas(f)
	f.Fuzz(func(t *testing.T, text string) {
		sections, err := check.Parse(text)
		if err != nil {
			return
		}
		for _, s := range sections {
			for _, one := range []*schema.Schema{all["x86_64"]["7.2"], all["x86_64"]["11.1"], all["aarch64"]["11.1"]} {
				for _, p := range check.Arguments(s.Args, one, all[one.Arch]["10.0"]) {
					if line := p.String(); strings.ContainsAny(line, "\n\r\x00") || !utf8.ValidString(line) {
						t.Errorf("%q", line)
					}
				}
			}
		}
	})
}
