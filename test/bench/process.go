package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// memory of a process in bytes, by whether other processes have the pages too.
type memory struct {
	RSS, PSS                    int64
	PrivateDirty, PrivateClean  int64
	GuestRAM, GuestRAMAllocated int64
	// TranslatedCode is TCG's: executable memory without a file.
	TranslatedCode int64
	// PageTables of the process (VmPTE).
	PageTables int64
}

// private is what would be free if the process were gone (USS). Its clean part
// is file pages that no other process maps just now.
func (m memory) private() int64 { return m.PrivateDirty + m.PrivateClean }

// memoryOf reads a process' memory. guestRAM is the size of the guest's memory,
// which is one mapping of just that size and counted apart; 0 if there is none.
func memoryOf(pid int, guestRAM int64) memory {
	doing := fmt.Sprintf("read memory of process %d", pid)
	smaps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	check(err, doing)
	m, err := parseSmaps(smaps, guestRAM)
	check(err, doing)
	status, err := must(procfs.NewProc(pid)).NewStatus()
	check(err, doing)
	m.PageTables = int64(status.VmPTE)
	return m
}

// parseSmaps sums /proc/PID/smaps.
func parseSmaps(smaps []byte, guestRAM int64) (memory, error) {
	var m memory
	sums := map[string]*int64{
		"Rss": &m.RSS, "Pss": &m.PSS, "Private_Dirty": &m.PrivateDirty, "Private_Clean": &m.PrivateClean}
	guest := false // the mapping being read is the guest's memory
	code := false  // the mapping is TCG's translated code
	for line := range bytes.Lines(smaps) {
		name, value, ok := kilobytes(string(line))
		sum := sums[name]
		switch {
		case !ok:
			// A mapping's first line is "address permissions offset device
			// inode", and the file's name if there is one.
			if fields := bytes.Fields(line); len(fields) >= 5 && bytes.Contains(fields[0], []byte("-")) {
				code = string(fields[1]) == "rwxp" && string(fields[4]) == "0"
			}
		case name == "Size":
			guest = guestRAM > 0 && m.GuestRAM == 0 && value == guestRAM
			if guest {
				m.GuestRAM = value
			}
		case guest && name == "Rss":
			m.GuestRAMAllocated = value
		case !guest && sum != nil:
			*sum += value
			if code && sum == &m.PrivateDirty {
				m.TranslatedCode += value
			}
		}
	}
	if guestRAM > 0 && m.GuestRAM == 0 {
		return m, fmt.Errorf("find the guest's memory: no mapping has %d bytes", guestRAM)
	}
	return m, nil
}

// kilobytes reads a line such as "Rss:    12 kB"; the value is in bytes.
func kilobytes(line string) (name string, value int64, ok bool) {
	name, text, ok := strings.Cut(line, ":")
	fields := strings.Fields(text)
	if !ok || len(fields) != 2 || fields[1] != "kB" {
		return "", 0, false
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	return name, n << 10, err == nil
}

// mib is a size in MiB.
func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// mibs are sizes in MiB.
func mibs(bytes ...int64) (sizes []float64) {
	for _, n := range bytes {
		sizes = append(sizes, mib(n))
	}
	return sizes
}

// process is a process of the machine, seen from outside of every namespace.
type process struct {
	PID, Parent int
	Name        string // the kernel's, at most 15 bytes
	Args        []string
	Cgroups     []procfs.Cgroup
}

// processes lists all processes. Those that end meanwhile are left out.
func processes() (all []process) {
	for _, proc := range must(procfs.AllProcs()) {
		stat, err := proc.Stat()
		args, err2 := proc.CmdLine()
		cgroups, err3 := proc.Cgroups()
		if err = errors.Join(err, err2, err3); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue
		}
		check(err, "list processes")
		all = append(all, process{proc.PID, stat.PPID, stat.Comm, args, cgroups})
	}
	return all
}

// cpuTime returns how long the process has been on a CPU, in the kernel or not.
func (p process) cpuTime() time.Duration {
	stat := must(must(procfs.NewProc(p.PID)).Stat())
	return time.Duration(stat.CPUTime() * float64(time.Second))
}
