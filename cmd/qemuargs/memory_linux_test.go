//go:build long && !race

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

const (
	// besideUEFI is the budget, in KiB, of all that an idle guest with UEFI and a TPM has beside its memory.
	besideUEFI = 40 << 10
	// launcherShare is the part of the budget that virt-launcher may use: cmd/virt-launcher's TestMemory holds what it has written to that.
	launcherShare = 4 << 10
)

// own is what a process has written in RAM and shares with no other process, in KiB: Private_Dirty. Pages of programs and libraries that nobody has written
// are left out, because all guests of a node share them.
type own struct {
	all map[string]int // by mapping, without the guest's memory and without code
	// code is TCG's translated code, which no guest under KVM has.
	code int
}

func (o own) total() (kib int) {
	for _, n := range o.all {
		kib += n
	}
	return kib
}

// most are the largest mappings, as text.
func (o own) most() string {
	names := make([]string, 0, len(o.all))
	for name := range o.all {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return o.all[b] - o.all[a] })
	var out []string
	for _, name := range names[:min(len(names), 12)] {
		out = append(out, fmt.Sprintf("%s %d", name, o.all[name]))
	}
	return strings.Join(out, ", ")
}

// ownOf reads /proc/PID/smaps. The guest's memory is what QEMU leaves out of core files (dd) and has at least the size guest, in KiB.
func ownOf(t *testing.T, pid, guest int) own {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := own{all: map[string]int{}}
	name, code, size, private := "", false, 0, 0
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		switch key := strings.TrimSuffix(fields[0], ":"); {
		case strings.Contains(fields[0], "-") && len(fields) >= 5:
			name, code, size, private = "anonymous", fields[1] == "rwxp" && fields[4] == "0", 0, 0
			if len(fields) > 5 {
				name = filepath.Base(strings.Join(fields[5:], " "))
			}
		case key == "Size", key == "Private_Dirty":
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			if key == "Size" {
				size = n
			} else {
				private += n
			}
		case key == "VmFlags":
			switch {
			case guest > 0 && size >= guest && slices.Contains(fields, "dd"):
			case code:
				found.code += private
			default:
				if name == "anonymous" {
					name = fmt.Sprintf("anonymous of %d", size)
				}
				found.all[name] += private
			}
		}
	}
	return found
}

// children are the processes of a name below a process.
func children(t *testing.T, below int, name string) (pids []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	parents, names := map[int]int{}, map[int]string{}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
		from, to := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
		names[pid] = string(text[from+1 : to])
		parents[pid], _ = strconv.Atoi(strings.Fields(string(text[to+1:]))[1])
	}
	for pid := range parents {
		for at := pid; at != 0; at = parents[at] {
			if at == below && strings.HasPrefix(name, names[pid]) && names[pid] != "" {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// idleOf waits until a process' own memory has been the same for a while.
func idleOf(t *testing.T, pid, guest int) own {
	t.Helper()
	const still, longest = 20 * time.Second, 3 * time.Minute
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	now := ownOf(t, pid, guest)
	for begin, since := time.Now(), time.Now(); time.Since(since) < still && time.Since(begin) < longest; {
		<-tick.C
		if next := ownOf(t, pid, guest); next.total() > now.total()+64 || next.total() < now.total()-64 {
			now, since = next, time.Now()
		}
	}
	return now
}

// TestMemoryUEFITPM measures all that an idle guest with UEFI and a TPM has beside its memory, once it is up. TCG's translated code is told apart.
func TestMemoryUEFITPM(t *testing.T) {
	image, err := filepath.Abs(tinyImage)
	if err != nil {
		t.Fatal(err)
	}
	sample, err := os.ReadFile("../../config/samples/vmi-tiny.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const guest = 256 << 10 // KiB
	manifest := strings.Replace(string(sample), "  domain:\n", "  domain:\n    firmware: {bootloader: {efi: {secureBoot: false}}}\n", 1)
	manifest = strings.Replace(manifest, "    devices:\n", "    devices:\n      tpm: {}\n", 1)
	manifest = strings.Replace(manifest, "128Mi", "256Mi", 1)
	const root = "../../_output/cache/launcher-root"
	s := newStarted(t, manifest, "--image", "localhost/kubeqemu/tiny-container-disk:dev="+image, "--firmware", layout.Below(root, layout.FirmwareDir),
		"--swtpm", launchertest.TPM(t, root)).begin()
	s.out.Expect("tiny: up")
	qemus := children(t, s.cmd.Process.Pid, "qemu-system-x86_64")
	emulators := children(t, s.cmd.Process.Pid, "ld-linux-x86-64.so.2") // which runs swtpm
	if len(qemus) != 1 || len(emulators) != 1 {
		t.Fatalf("%d QEMUs and %d emulators of the TPM", len(qemus), len(emulators))
	}
	qemu := idleOf(t, qemus[0], guest)
	tpm := ownOf(t, emulators[0], 0)
	t.Logf("QEMU beside %d MiB of guest memory: %d KiB: %s", guest>>10, qemu.total(), qemu.most())
	t.Logf("TCG's translated code: %d KiB", qemu.code)
	t.Logf("the TPM's emulator: %d KiB: %s", tpm.total(), tpm.most())
	if sum := qemu.total() + tpm.total() + launcherShare; sum > besideUEFI {
		t.Errorf("beside its memory the guest has %d KiB with virt-launcher's %d, its budget is %d KiB", sum, launcherShare, besideUEFI)
	}
}
