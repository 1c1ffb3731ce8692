package e2e

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// onNode runs a shell script in the node's network, PID and mount namespaces.
func onNode(script string, args ...string) (string, error) {
	return onNodeNamed(firstName, script, args...)
}

// onNodeNamed runs it in those of the first or the second node.
func onNodeNamed(node, script string, args ...string) (string, error) {
	number := "1"
	if node == secondName {
		number = "2"
	}
	enter := []string{"enter", "--name", os.Getenv(clusterVariable), "--node", number, "--", "sh", "-c", script, "sh"}
	return output("", "cluster", append(enter, args...)...)
}

// nodeProcess is a process of the node, seen from the node.
type nodeProcess struct {
	PID, PPID int
	// Start is in clock ticks since boot: with the PID, it tells one process
	// from any other.
	Start string
	Args  []string
}

func (p nodeProcess) isQEMU() bool {
	return len(p.Args) > 0 && strings.HasPrefix(path.Base(p.Args[0]), "qemu-system-")
}

// shell is the command line for a shell.
func (p nodeProcess) shell() string {
	words := make([]string, len(p.Args))
	for i, word := range p.Args {
		words[i] = word
		if word == "" || strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=,.:/+@%") != "" {
			words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// nodeProcesses lists the node's processes.
func nodeProcesses() ([]nodeProcess, error) {
	// grep names the file of each line; processes that end meanwhile are left out.
	out, err := onNode(`grep -asH "" /proc/[0-9]*/stat /proc/[0-9]*/cmdline; true`)
	if err != nil {
		return nil, err
	}
	stats, lines := map[int]string{}, map[int][]string{}
	for line := range strings.SplitSeq(out, "\n") {
		file, text, _ := strings.Cut(line, ":")
		parts := strings.Split(file, "/")
		if len(parts) != 4 {
			continue
		}
		pid, err := strconv.Atoi(parts[2])
		if err != nil {
			continue
		}
		if parts[3] == "stat" {
			stats[pid] = text
		} else {
			lines[pid] = append(lines[pid], text)
		}
	}
	var processes []nodeProcess
	for pid, stat := range stats {
		// After the name in parentheses: state, ppid, …; field 22 of all is the start time.
		fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
		if len(fields) < 20 {
			return nil, fmt.Errorf("read /proc/%d/stat: %q", pid, stat)
		}
		ppid, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
		}
		args := strings.Split(strings.TrimSuffix(strings.Join(lines[pid], "\n"), "\x00"), "\x00")
		processes = append(processes, nodeProcess{PID: pid, PPID: ppid, Start: fields[19], Args: args})
	}
	slices.SortFunc(processes, func(a, b nodeProcess) int { return a.PID - b.PID })
	return processes, nil
}

// findProcess returns the only process of the node that match likes.
func findProcess(match func(nodeProcess) bool) (nodeProcess, error) {
	all, err := nodeProcesses()
	if err != nil {
		return nodeProcess{}, err
	}
	found := slices.DeleteFunc(all, func(p nodeProcess) bool { return !match(p) })
	if len(found) != 1 {
		return nodeProcess{}, fmt.Errorf("find one process on the node: there are %d", len(found))
	}
	return found[0], nil
}

// qemu is the VMI's QEMU: -uuid is the VMI's UID, or its VM's.
func (v vmi) qemu() nodeProcess {
	v.t.Helper()
	uuid := v.get().Spec.Domain.Firmware.UUID
	p, err := findProcess(func(p nodeProcess) bool { return p.isQEMU() && slices.Contains(p.Args, uuid) })
	if err != nil {
		v.t.Fatalf("QEMU of VMI %s: %v", v.name, err)
	}
	return p
}

// launcher is the VMI's virt-launcher, the parent of its QEMU.
func (v vmi) launcher() nodeProcess {
	v.t.Helper()
	parent := v.qemu().PPID
	p, err := findProcess(func(p nodeProcess) bool { return p.PID == parent })
	if err != nil {
		v.t.Fatalf("virt-launcher of VMI %s: %v", v.name, err)
	}
	return p
}

// signal sends a signal to a process of the node.
func signal(t *testing.T, name string, p nodeProcess) {
	t.Helper()
	if _, err := onNode(`kill -s "$1" "$2"`, name, strconv.Itoa(p.PID)); err != nil {
		t.Fatal(err)
	}
}

// procStatus reads fields of /proc/PID/status.
func procStatus(t *testing.T, p nodeProcess) map[string]string {
	t.Helper()
	out, err := onNode(`cat "/proc/$1/status"`, strconv.Itoa(p.PID))
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for line := range strings.SplitSeq(out, "\n") {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields
}
