package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// fact is a line of the table's head: what the figures were taken on.
type fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// runFact has the day of a run, its rounds, and the load before it.
const runFact = "Run"

// facts are taken before the first measurement. What a machine does not say is
// "unknown".
func (b *bench) facts(ctx context.Context) []fact {
	ask := func(pattern, name string, args ...string) string {
		out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
		match := regexp.MustCompile(pattern).FindSubmatch(out)
		if err != nil || match == nil {
			return "unknown"
		}
		return string(match[1])
	}
	return []fact{
		{"Machine", fmt.Sprintf("%s, %d cores, %s of memory",
			inFile("/proc/cpuinfo", `(?m)^model name\s*: (.*)$`), runtime.NumCPU(), memoryTotal())},
		{"Kernel", kernel()},
		{"Accelerator", accelerators[b.accelerator]},
		{"QEMU", ask(`version (\S+)`, b.qemu, "--version")},
		{"libvirt", ask(`libvirt\) (\S+)`, "libvirtd", "--version")},
		{"Kubernetes", ask(`Client Version: (\S+)`, "kubectl", "version", "--client")},
		{"Kubeqemu", b.commit(ctx)},
		{runFact, fmt.Sprintf("%s, %d rounds, load average %s before it",
			b.started.UTC().Format(time.DateOnly), b.rounds, inFile("/proc/loadavg", `^(\S+)`))},
	}
}

var accelerators = map[qemuargs.Accelerator]string{qemuargs.KVM: "KVM", qemuargs.TCG: "TCG (emulation)"}

func inFile(path, pattern string) string {
	data, err := os.ReadFile(path)
	match := regexp.MustCompile(pattern).FindSubmatch(data)
	if err != nil || match == nil {
		return "unknown"
	}
	return string(match[1])
}

func memoryTotal() string {
	kB, err := strconv.Atoi(inFile("/proc/meminfo", `MemTotal:\s+(\d+)`))
	if err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%.0f GiB", float64(kB)/(1<<20))
}

func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
}

// commit names the commit that was measured. Files that a bench writes itself do not count as
// changes.
func (b *bench) commit(ctx context.Context) string {
	git := func(args ...string) ([]byte, error) {
		return exec.CommandContext(ctx, "git", append([]string{"-C", b.repository}, args...)...).Output()
	}
	head, err := git("rev-parse", "--short=10", "HEAD")
	if err != nil {
		return "unknown"
	}
	name := "commit " + strings.TrimSpace(string(head))
	changed, err := git("status", "--porcelain", "--", ".", ":!README.md", ":!docs/benchmarks.*")
	if err != nil || len(changed) > 0 {
		name += " with changes"
	}
	return name
}
