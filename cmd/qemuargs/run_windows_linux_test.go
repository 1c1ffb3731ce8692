package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/zone"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
)

// tiny is the run of the sample with the tiny guest, whose domain has more fields.
func tiny(t *testing.T, domain string, args ...string) *started {
	t.Helper()
	image, err := filepath.Abs(tinyImage)
	if err != nil {
		t.Fatal(err)
	}
	sample, err := os.ReadFile("../../config/samples/vmi-tiny.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manifest := strings.Replace(string(sample), "  domain:\n", "  domain:\n"+domain, 1)
	return newStarted(t, manifest, append(args, "--image", "localhost/kubeqemu/tiny-container-disk:dev="+image)...)
}

// says has the guest's shell run a command, and returns what the command prints on one line. The mark tells one question
// from another.
func (s *started) says(mark, command string) string {
	s.Helper()
	answer := regexp.MustCompile(mark + `=\[([^\]$]*)\]=`)
	s.press("echo " + mark + "'='[$(" + command + ")]=\n") // the quotes keep the shell's echo of the line apart
	s.out.WaitFor("the answer "+mark, func(data []byte) bool { return answer.Match(data) })
	return answer.FindStringSubmatch(s.out.String())[1]
}

// TestRunWithTheVMIsTimeZone: the guest's clock is ahead of UTC by what the VMI says, after a reboot too.
func TestRunWithTheVMIsTimeZone(t *testing.T) {
	t.Parallel()
	kathmandu := zone.Offset("Asia/Kathmandu", time.Now())
	for name, c := range map[string]struct {
		clock string
		ahead int64
	}{
		"offset":   {"utc: {offsetSeconds: -86400}", -86400},
		"timezone": {"timezone: Asia/Kathmandu", *kathmandu},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tiny(t, "    clock: {"+c.clock+"}\n").begin()
			for boot := range 2 {
				mark := fmt.Sprintf("boot%d", boot)
				s.out.WaitFor("the guest to be up", func(data []byte) bool { return strings.Count(string(data), "tiny: up") > boot })
				seconds, err := strconv.ParseInt(s.says(mark, "cat /sys/class/rtc/rtc0/since_epoch"), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				if ahead := seconds - time.Now().Unix(); ahead < c.ahead-60 || ahead > c.ahead+2 {
					t.Errorf("%s: the guest's clock is %d seconds ahead of UTC, want %d", mark, ahead, c.ahead)
				}
				if boot == 0 {
					s.press("reboot\n")
				}
			}
		})
	}
}

// TestRunShowsChassisAndPCIWindow: the guest sees the chassis, and has a window for PCI above 4 GiB unless the VMI takes it away.
func TestRunShowsChassisAndPCIWindow(t *testing.T) {
	t.Parallel()
	const windows = `grep -c '^[0-9a-f]\{9,\}-.*PCI Bus' /proc/iomem`
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		s := tiny(t, "").begin()
		s.out.Expect("tiny: up")
		if got := s.says("high", windows); got != "1" {
			t.Errorf("%s windows above 4 GiB, want 1", got)
		}
	})
	t.Run("changed", func(t *testing.T) {
		t.Parallel()
		s := tiny(t, "    chassis: {manufacturer: 'Example, Inc.', version: '1.2', serial: CH-0001, asset: A 17}\n")
		text, err := os.ReadFile(s.manifest)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(text), "metadata:\n", "metadata:\n  annotations: {kubevirt.io/disablePCIHole64: \"true\"}\n", 1)
		if err := os.WriteFile(s.manifest, []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
		s.begin().out.Expect("tiny: up")
		if got := s.says("high", windows); got != "0" {
			t.Errorf("%s windows above 4 GiB, want 0", got)
		}
		if got, want := s.says("chassis", "cd /sys/class/dmi/id; paste -d/ chassis_vendor chassis_version chassis_serial chassis_asset_tag"), "Example, Inc./1.2/CH-0001/A 17"; got != want {
			t.Errorf("the chassis is %q, want %q", got, want)
		}
	})
}

// TestRunCPUFeatures: a guest has not the feature that the VMI disables, and what is only optional does not keep the guest from
// running. QEMU has no vmx when it emulates: a guest that requires it does not start.
func TestRunCPUFeatures(t *testing.T) {
	t.Parallel()
	t.Run("runs", func(t *testing.T) {
		t.Parallel()
		s := tiny(t, "    cpu: {features: [{name: aes, policy: disable}, {name: pclmulqdq}, {name: vmx, policy: optional}]}\n").begin()
		s.out.Expect("tiny: up")
		if got := s.says("flags", `for f in aes pclmulqdq vmx; do grep -c "^flags.* $f " /proc/cpuinfo; done | paste -s -d,`); got != "0,1,0" {
			t.Errorf("the guest's CPU has aes, pclmulqdq, vmx: %s, want 0,1,0", got)
		}
	})
	t.Run("is refused", func(t *testing.T) {
		t.Parallel()
		s := tiny(t, "    cpu: {features: [{name: vmx}]}\n").begin()
		s.notes.Expect(`this node cannot give the guest the CPU feature "vmx", which spec.domain.cpu.features requires`)
		launchertest.Receive(s.T, s.ended, "the command's end")
	})
}
