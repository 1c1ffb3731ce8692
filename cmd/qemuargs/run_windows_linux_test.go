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

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/internal/zone"
)

// tinyKernel has QEMU load the kernel of the tiny guest, which is faster than a boot from the disk.
const tinyKernel = `    firmware:
      kernelBoot:
        container: {image: "localhost/kubeqemu/tiny-container-disk:dev", kernelPath: /boot/vmlinux, initrdPath: /boot/initrd}
        kernelArgs: console=ttyS0 quiet nokaslr cryptomgr.notests mitigations=off no_timer_check
`

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
	manifest := strings.Replace(string(sample), "  domain:\n", "  domain:\n"+tinyKernel+domain, 1)
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

// TestRunShowsTheVMIsMachine: each of two guests finds the machine that its VMI says. One guest shows what the VMI can
// change, and the other what is there otherwise; the clocks of both are ahead of UTC, after a reboot too.
func TestRunShowsTheVMIsMachine(t *testing.T) {
	t.Parallel()
	kathmandu := zone.Offset("Asia/Kathmandu", time.Now())
	t.Run("changed", func(t *testing.T) {
		t.Parallel()
		s := tiny(t, `    clock: {utc: {offsetSeconds: -86400}}
    chassis: {manufacturer: 'Example, Inc.', version: '1.2', serial: CH-0001, asset: A 17}
    cpu: {features: [{name: aes, policy: disable}, {name: pclmulqdq}, {name: vmx, policy: optional}]}
`)
		text, err := os.ReadFile(s.manifest)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(text), "metadata:\n", "metadata:\n  annotations: {kubevirt.io/disablePCIHole64: \"true\"}\n", 1)
		if err := os.WriteFile(s.manifest, []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
		s.begin().clockIsAhead(0, -86400)
		s.hasHighWindows("0")
		s.hasChassis("Example, Inc./1.2/CH-0001/A 17")
		s.hasFeatures("aes pclmulqdq vmx", "0,1,0")
		s.press("reboot\n")
		s.clockIsAhead(1, -86400)
	})
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		s := tiny(t, "    clock: {timezone: Asia/Kathmandu}\n").begin()
		s.clockIsAhead(0, *kathmandu)
		s.hasHighWindows("1")
		s.hasFeatures("aes pclmulqdq", "1,1")
		s.press("reboot\n")
		s.clockIsAhead(1, *kathmandu)
	})
}

// clockIsAhead waits for the guest's boot of this number, the first of which is 0, and looks how many seconds the guest's
// clock is ahead of UTC.
func (s *started) clockIsAhead(boot int, want int64) {
	s.Helper()
	s.out.WaitFor("the guest to be up", func(data []byte) bool { return strings.Count(string(data), "tiny: up") > boot })
	asked := time.Now().Unix()
	seconds, err := strconv.ParseInt(s.says(fmt.Sprintf("boot%d", boot), "cat /sys/class/rtc/rtc0/since_epoch"), 10, 64)
	if err != nil {
		s.Fatal(err)
	}
	// The guest has read its clock between the question and the answer.
	if seconds < asked+want-60 || seconds > time.Now().Unix()+want+2 {
		s.Errorf("boot %d: the guest's clock is %d seconds ahead of UTC, want %d", boot, seconds-asked, want)
	}
}

// hasHighWindows looks how many windows for PCI the guest has above 4 GiB: one, unless the VMI takes it away.
func (s *started) hasHighWindows(want string) {
	s.Helper()
	if got := s.says("high", `grep -c '^[0-9a-f]\{9,\}-.*PCI Bus' /proc/iomem`); got != want {
		s.Errorf("%s windows above 4 GiB, want %s", got, want)
	}
}

func (s *started) hasChassis(want string) {
	s.Helper()
	if got := s.says("chassis", "cd /sys/class/dmi/id; paste -d/ chassis_vendor chassis_version chassis_serial chassis_asset_tag"); got != want {
		s.Errorf("the chassis is %q, want %q", got, want)
	}
}

// hasFeatures looks which of the flags the guest's CPU has: 1 for each that is there, and 0 for others.
func (s *started) hasFeatures(flags, want string) {
	s.Helper()
	if got := s.says("flags", `for f in `+flags+`; do grep -c "^flags.* $f " /proc/cpuinfo; done | paste -s -d,`); got != want {
		s.Errorf("the guest's CPU has %s: %s, want %s", flags, got, want)
	}
}

// TestRunRefusesCPUFeatures: QEMU has no vmx when it emulates. A guest that requires it does not start.
func TestRunRefusesCPUFeatures(t *testing.T) {
	t.Parallel()
	s := tiny(t, "    cpu: {features: [{name: vmx}]}\n").begin()
	s.notes.Expect(`this node cannot give the guest the CPU feature "vmx", which spec.domain.cpu.features requires`)
	testkit.Receive(s.T, s.ended, "the command's end")
}
