package stats

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// ticksPerSecond is the unit in which /proc counts CPU time: USER_HZ, the same on every
// architecture on which QEMU runs KVM.
const ticksPerSecond = 100

// maxProc is more than any file of /proc has that is read here, in bytes.
const maxProc = 64 << 10

func readProc(format string, args ...any) ([]byte, error) {
	f, err := os.Open(fmt.Sprintf("/proc/"+format, args...))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxProc))
}

var errProc = errors.New("unexpected text in /proc")

// parseStat reads /proc/<pid>/stat (proc_pid_stat(5)): the CPU time of all
// threads, and the memory that is in RAM.
func parseStat(text []byte) (control.CPUStats, uint64, error) {
	// The process's name is in parentheses, and may hold parentheses.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const utime, stime, rss = 14 - 3, 15 - 3, 24 - 3 // fields[0] is the third
	if len(fields) <= rss {
		return control.CPUStats{}, 0, errProc
	}
	numbers, err := parseNumbers(fields[utime], fields[stime], fields[rss])
	if err != nil {
		return control.CPUStats{}, 0, err
	}
	const tick = 1_000_000_000 / ticksPerSecond
	return control.CPUStats{User: numbers[0] * tick, System: numbers[1] * tick}, numbers[2] * uint64(os.Getpagesize()), nil
}

// parseSchedstat reads /proc/<pid>/task/<tid>/schedstat
// (Documentation/scheduler/sched-stats.rst).
func parseSchedstat(text []byte) (control.VCPUStats, error) {
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return control.VCPUStats{}, errProc
	}
	numbers, err := parseNumbers(fields[:2]...)
	if err != nil {
		return control.VCPUStats{}, err
	}
	return control.VCPUStats{Time: numbers[0], Delay: numbers[1]}, nil
}

// parseWait finds the time that a thread waited in /proc/<pid>/task/<tid>/sched, or returns
// nil: the kernel must be built to count it, and be told to. Older kernels put a prefix before
// the name.
func parseWait(text []byte) *uint64 {
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "wait_sum", "se.statistics.wait_sum", "se.statistics->wait_sum":
			milliseconds, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil || !(milliseconds >= 0 && milliseconds < 1e12) { // nor NaN
				return nil
			}
			nanoseconds := uint64(milliseconds * 1e6)
			return &nanoseconds
		}
	}
	return nil
}

// parseLinks reads /proc/net/dev: the traffic of every network interface, as
// the host sees it.
func parseLinks(text []byte) (map[string]control.NICStats, error) {
	links := map[string]control.NICStats{}
	for line := range strings.Lines(string(text)) {
		name, counters, ok := strings.Cut(line, ":")
		if !ok {
			continue // the heading
		}
		// Eight of packets received, eight of sent ones. The first four are
		// bytes, packets, errors, dropped.
		fields := strings.Fields(counters)
		if len(fields) < 12 {
			return nil, errProc
		}
		n, err := parseNumbers(fields[:12]...)
		if err != nil {
			return nil, err
		}
		links[strings.TrimSpace(name)] = control.NICStats{
			Receive:  control.TrafficStats{Bytes: n[0], Packets: n[1], Errors: n[2], Dropped: n[3]},
			Transmit: control.TrafficStats{Bytes: n[8], Packets: n[9], Errors: n[10], Dropped: n[11]},
		}
	}
	return links, nil
}

func parseNumbers(fields ...string) ([]uint64, error) {
	numbers := make([]uint64, len(fields))
	for i, f := range fields {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errProc, err)
		}
		numbers[i] = n
	}
	return numbers, nil
}
