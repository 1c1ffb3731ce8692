package main

import (
	"strings"
	"testing"
)

// TestArchFlagOfEachCommand: --arch is the architecture of guests that name neither one nor a machine type, for each command.
func TestArchFlagOfEachCommand(t *testing.T) {
	const head = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: some}\nspec:\n"
	const rest = "  domain: {memory: {guest: 64Mi}, devices: {autoattachPodInterface: false}}\n"
	for name, c := range map[string]struct{ manifest, want string }{
		"names nothing":         {head + rest, "virt-11.1"},
		"names an architecture": {head + "  architecture: amd64\n" + rest, "pc-q35-11.1"},
		"names a machine type":  {head + strings.Replace(rest, "{memory", "{machine: {type: q35}, memory", 1), "pc-q35-11.1"},
		"a VM":                  {strings.Replace(head, "Instance", "", 1) + "  runStrategy: Always\n  template:\n    spec:\n    " + rest, "virt-11.1"},
	} {
		t.Run(name, func(t *testing.T) {
			if s := runCommand(t, c.manifest, "render", "--arch", "arm64", "-"); s.code != 0 || !strings.Contains(s.out, "-machine "+c.want+",") {
				t.Errorf("%+v, want machine type %s", s, c.want)
			}
			for _, release := range []string{"7.2", "10.0", "11.1"} {
				for _, accelerator := range []string{"kvm", "tcg"} {
					if s := runCommand(t, c.manifest, "check", "--arch", "arm64", "--schema", release, "--host", accelerator+"-"+release, "-f", "-"); s.code != 0 || s.out != "" {
						t.Errorf("on %s of QEMU %s: %+v", accelerator, release, s)
					}
				}
			}
		})
	}
	s := runCommand(t, head+rest, "explain", "--arch", "arm64", "-", "architecture")
	if s.code != 0 || !strings.Contains(s.out, " virt-11.1\n") || !strings.Contains(s.out, "the cluster's default architecture") {
		t.Errorf("explain: %+v", s)
	}
}

// TestCheckArch: arguments are checked with the schema of their program, and without a program with that of --arch.
func TestCheckArch(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		stdin string
		out   string
	}{
		"words of arm64":      {[]string{"check", "--arch", "arm64", "--", "-machine", "virt,gic-version=3", "-cpu", "max"}, "", ""},
		"words of amd64":      {[]string{"check", "--", "-machine", "virt"}, "", "-machine: QEMU 11.1 has no machine type \"virt\""},
		"a program of arm64":  {[]string{"check", "--args", "-"}, "qemu-system-aarch64 -machine virt -device tpm-tis-device", ""},
		"a program of amd64":  {[]string{"check", "--arch", "arm64", "--args", "-"}, "qemu-system-x86_64 -machine q35 -device isa-serial", ""},
		"no device of arm64":  {[]string{"check", "--args", "-"}, "qemu-system-aarch64 -machine virt -device isa-serial", "-: -device isa-serial: QEMU 11.1 has no device \"isa-serial\""},
		"newer, and of arm64": {[]string{"check", "--schema", "7.2", "--arch", "arm64", "--", "-machine", "virt-8.0"}, "", "-machine: machine type virt-8.0 is newer than QEMU 7.2; the newest is virt-7.2"},
	} {
		t.Run(name, func(t *testing.T) {
			if s := runCommand(t, c.stdin, c.args...); (s.code == 0) != (c.out == "") || c.out == "" && s.out != "" || !strings.HasPrefix(s.out, c.out) {
				t.Errorf("%+v, want %q", s, c.out)
			}
		})
	}
	if s := runCommand(t, "", "schema", "show", "--arch", "arm64", "tpm-tis-device"); s.code != 0 || !strings.Contains(s.out, "\ntpmdev ") {
		t.Errorf("%+v", s)
	}
}
