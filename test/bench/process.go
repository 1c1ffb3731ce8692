package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
func memoryOf(pid int, guestRAM int64) (memory, error) {
	smaps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return memory{}, fmt.Errorf("read memory: %w", err)
	}
	m, err := parseSmaps(smaps, guestRAM)
	if err != nil {
		return memory{}, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, fmt.Errorf("read memory: %w", err)
	}
	for line := range bytes.Lines(status) {
		if name, bytes, ok := kilobytes(string(line)); ok && name == "VmPTE" {
			m.PageTables = bytes
		}
	}
	return m, nil
}

// parseSmaps sums /proc/PID/smaps.
func parseSmaps(smaps []byte, guestRAM int64) (memory, error) {
	var m memory
	guest := false // the mapping being read is the guest's memory
	code := false  // the mapping is TCG's translated code
	for line := range bytes.Lines(smaps) {
		name, value, ok := kilobytes(string(line))
		if !ok {
			// A mapping's first line is "address permissions offset device
			// inode", and the file's name if there is one.
			if fields := bytes.Fields(line); len(fields) >= 5 && bytes.Contains(fields[0], []byte("-")) {
				code = string(fields[1]) == "rwxp" && string(fields[4]) == "0"
			}
			continue
		}
		if name == "Size" {
			guest = guestRAM > 0 && m.GuestRAM == 0 && value == guestRAM
			if guest {
				m.GuestRAM = value
			}
			continue
		}
		if guest {
			if name == "Rss" {
				m.GuestRAMAllocated = value
			}
			continue
		}
		switch name {
		case "Rss":
			m.RSS += value
		case "Pss":
			m.PSS += value
		case "Private_Dirty":
			m.PrivateDirty += value
			if code {
				m.TranslatedCode += value
			}
		case "Private_Clean":
			m.PrivateClean += value
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

// process is a process of the machine, seen from outside of every namespace.
type process struct {
	PID, Parent int
	Name        string // the kernel's, at most 15 bytes
	Args        []string
	Cgroups     string
}

// processes lists all processes. Those that end meanwhile are left out.
func processes() ([]process, error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, folder := range folders {
		p, err := readProcess(folder)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		all = append(all, p)
	}
	return all, nil
}

var errGone = errors.New("process has ended")

func readProcess(folder string) (process, error) {
	var p process
	var err error
	if p.PID, err = strconv.Atoi(filepath.Base(folder)); err != nil {
		return p, err
	}
	text := map[string]string{}
	for _, name := range []string{"stat", "cmdline", "cgroup"} {
		data, err := os.ReadFile(filepath.Join(folder, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return p, err
		case err != nil: // ESRCH: between open and read
			return p, errors.Join(errGone, err)
		}
		text[name] = string(data)
	}
	// The name, in parentheses, may hold anything; then come state and parent.
	open, end := strings.Index(text["stat"], "("), strings.LastIndex(text["stat"], ")")
	if open < 0 || end < open {
		return p, errGone
	}
	p.Name = text["stat"][open+1 : end]
	fields := strings.Fields(text["stat"][end+1:])
	if len(fields) < 2 {
		return p, errGone
	}
	if p.Parent, err = strconv.Atoi(fields[1]); err != nil {
		return p, err
	}
	p.Args = strings.Split(strings.TrimSuffix(text["cmdline"], "\x00"), "\x00")
	p.Cgroups = text["cgroup"]
	return p, nil
}
