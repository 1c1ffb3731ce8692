package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// hierarchy is one mounted cgroup tree.
type hierarchy struct {
	root    string
	unified bool // cgroup v2
}

// parseMounts yields the mount point and file system type of every line of a
// mountinfo file.
func parseMounts(mountinfo string) (mounts []mount) {
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if ok && len(head) >= 5 && len(tail) >= 1 {
			mounts = append(mounts, mount{point: unescape(head[4]), fsType: tail[0]})
		}
	}
	return mounts
}

type mount struct{ point, fsType string }

// unescape undoes the kernel's octal escapes of blank, tab, newline, backslash.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func ownMounts() ([]mount, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return parseMounts(string(text)), nil
}

func hierarchies() ([]hierarchy, error) {
	mounts, err := ownMounts()
	if err != nil {
		return nil, err
	}
	var found []hierarchy
	for _, m := range mounts {
		if (m.fsType == "cgroup" || m.fsType == "cgroup2") && strings.HasPrefix(m.point, "/sys/fs/cgroup") {
			found = append(found, hierarchy{root: m.point, unified: m.fsType == "cgroup2"})
		}
	}
	if len(found) == 0 {
		return nil, errors.New("find cgroups: none mounted below /sys/fs/cgroup")
	}
	return found, nil
}

// makeCgroup makes the group (a path with a leading slash) in every hierarchy,
// ready for the kubelet to make its own below.
func makeCgroup(group string) error {
	trees, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range trees {
		dir := h.root
		for part := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
			parent := dir
			dir = filepath.Join(dir, part)
			if h.unified {
				if err := delegateControllers(parent); err != nil {
					return err
				}
			}
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make cgroup: %w", err)
			}
			if !h.unified {
				if err := inheritCPUSet(parent, dir); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// delegateControllers hands every controller of a cgroup v2 group to the
// groups below it.
func delegateControllers(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read cgroup controllers: %w", err)
	}
	for controller := range strings.FieldsSeq(string(available)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644); err != nil {
			return fmt.Errorf("delegate cgroup controller %s: %w", controller, err)
		}
	}
	return nil
}

// inheritCPUSet copies a cgroup v1 cpuset from the parent to a new group: no process can join
// a group whose cpuset is empty.
func inheritCPUSet(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another controller's hierarchy
		}
		if err != nil {
			return fmt.Errorf("read cpuset: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
			return fmt.Errorf("fill cpuset: %w", err)
		}
	}
	return nil
}

// cgroupDirs are the cluster's top groups that exist, one in each hierarchy.
func (p Plan) cgroupDirs() ([]string, error) {
	trees, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, h := range trees {
		dir := filepath.Join(h.root, p.ID)
		if _, err := os.Stat(dir); err == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// removeCgroup kills what is in the group and removes it with all below. A
// group stays busy for a moment after its last process has died.
func removeCgroup(ctx context.Context, dir string) error {
	err := poll(ctx, 10*time.Second, func() (bool, error) {
		var groups []string
		err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && d.IsDir() {
				groups = append(groups, file)
			}
			return err
		})
		if err != nil {
			return false, err
		}
		removed := true
		for i := len(groups) - 1; i >= 0; i-- { // innermost first
			killMembers(groups[i])
			if err := os.Remove(groups[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				if !errors.Is(err, syscall.EBUSY) {
					return false, err
				}
				removed = false
			}
		}
		return removed, nil
	})
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}

func killMembers(group string) {
	text, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		return // gone meanwhile
	}
	for field := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
