package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// markName is an environment variable of every process of a cluster, which child processes
// inherit. Its value is the cluster's folder. By it the processes are found when the state
// file is lost.
const markName = "KUBEQEMU_CLUSTER_DIR"

// Process is a process that was started. Its start time tells it from a later process with the
// same PID.
type Process struct {
	Name  string `json:"name"`
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot, field 22 of /proc/PID/stat
	Log   string `json:"log"`
}

// stat is what this package needs of /proc/PID/stat.
type stat struct {
	state   byte
	threads int
	start   uint64
}

// parseStat reads past the command name, which may hold blanks and parentheses.
func parseStat(text string) (stat, error) {
	_, rest, ok := cutLast(text, ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return stat{}, fmt.Errorf("parse process status %q", text)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("parse process start time: %w", err)
	}
	threads, err := strconv.Atoi(fields[17])
	if err != nil {
		return stat{}, fmt.Errorf("parse process threads: %w", err)
	}
	return stat{state: fields[0][0], threads: threads, start: start}, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(text))
}

// observe makes a Process of a pid that is alive now.
func observe(name string, pid int, log string) (Process, error) {
	s, err := readStat(pid)
	if err != nil {
		return Process{}, fmt.Errorf("look at new process %s: %w", name, err)
	}
	return Process{Name: name, PID: pid, Start: s.start, Log: log}, nil
}

// Alive is false for a zombie: nothing of it runs, and only its parent can
// remove it. A process that was killed is a zombie as soon as its first thread has ended. While others
// are left, its files are open, and no other process can listen where this one did.
func (p Process) Alive() bool {
	s, err := readStat(p.PID)
	return err == nil && s.start == p.Start && (s.state != 'Z' && s.state != 'X' || s.threads > 1)
}

// signal does nothing when the process is gone. It cannot hit another process that got the PID
// meanwhile: it opens a pidfd first, and looks at the start time after that.
func (p Process) signal(sig syscall.Signal) error {
	handle, err := os.FindProcess(p.PID)
	if err != nil {
		return fmt.Errorf("find process %s (%d): %w", p.Name, p.PID, err)
	}
	defer handle.Release()
	if !p.Alive() {
		return nil
	}
	if err := handle.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s (%d): %w", p.Name, p.PID, err)
	}
	return nil
}

// terminate ends all of them: SIGTERM, and SIGKILL after the grace time.
func terminate(ctx context.Context, processes []Process, grace time.Duration) error {
	allGone := func() (bool, error) { return !slices.ContainsFunc(processes, Process.Alive), nil }
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		for _, p := range processes {
			if err := p.signal(sig); err != nil {
				return err
			}
		}
		wait := grace
		if sig == syscall.SIGKILL {
			wait = 20 * time.Second
		}
		err := poll(ctx, wait, allGone)
		if err == nil || !errors.Is(err, errTimeout) {
			return err
		}
	}
	for _, p := range processes {
		if p.Alive() {
			return fmt.Errorf("kill %s (%d): still there after 20 s", p.Name, p.PID)
		}
	}
	return nil
}

// awaitReaping gives the machine's PID 1, which inherited the zombies, a moment to reap them.
// In a container PID 1 may be a program that never does.
func awaitReaping(ctx context.Context, processes []Process) error {
	err := poll(ctx, 5*time.Second, func() (bool, error) {
		return !slices.ContainsFunc(processes, func(p Process) bool {
			s, err := readStat(p.PID)
			return err == nil && s.start == p.Start
		}), nil
	})
	if errors.Is(err, errTimeout) {
		return nil
	}
	return err
}

// marked finds every process that carries the folder's mark.
func marked(dir string) ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	mark := []byte(markName + "=" + dir)
	var found []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil || !slices.ContainsFunc(bytes.Split(environ, []byte{0}), func(v []byte) bool { return bytes.Equal(v, mark) }) {
			continue // gone meanwhile, or a kernel thread, or not ours
		}
		if p, err := observe(processName(pid), pid, ""); err == nil && p.Alive() {
			found = append(found, p)
		}
	}
	return found, nil
}

// processName is the base name of argv[0].
func processName(pid int) string {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "?"
	}
	name, _, _ := bytes.Cut(cmdline, []byte{0})
	return filepath.Base(string(name))
}

// proportionalMemory is the process's PSS in bytes.
func (p Process) proportionalMemory() (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.PID))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "Pss:" {
			kib, err := strconv.ParseUint(fields[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("find Pss of process %d", p.PID)
}

var errTimeout = errors.New("timed out")

// poll asks ten times a second until done says true, fails, or the time is up
// (then the error is errTimeout).
func poll(ctx context.Context, timeout time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// lastLines returns at most n lines from the file's last 16 KiB.
func lastLines(file string, n int) (string, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "(no log)", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	const window = 16 << 10
	if size, err := f.Seek(0, io.SeekEnd); err != nil {
		return "", err
	} else if _, err := f.Seek(max(0, size-window), io.SeekStart); err != nil {
		return "", err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n"), nil
}
