package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Down ends the cluster in the folder and removes all it made; with keepLogs
// the folder's logs stay. It needs no part of the cluster to be whole, and
// may be called again. When it returns nil, leftovers were looked for and
// there are none.
func Down(ctx context.Context, name, dir string, keepLogs bool, out io.Writer) error {
	plan, state, err := planOf(name, dir)
	if err != nil {
		return err
	}
	say := NewProgress(out)
	if err := down(ctx, plan, state, keepLogs, say); err != nil {
		return err
	}
	say.Line("cluster %q is down; nothing is left of it", name)
	return nil
}

// planOf also works without a state file: the names in the plan then tell what is left.
func planOf(name, dir string) (Plan, *State, error) {
	state, err := loadState(filepath.Join(dir, "state.json"))
	if err != nil {
		return Plan{}, nil, err
	}
	if state == nil {
		state = &State{Name: name, Index: FirstIndex(name), NodeCount: maxNodes}
	}
	if state.Name != name {
		return Plan{}, nil, fmt.Errorf("take cluster %q: the one in %s is named %q", name, dir, state.Name)
	}
	plan, err := NewPlan(name, dir, state.Index, state.NodeCount, state.Families)
	return plan, state, err
}

// down goes on after errors: every step may find something to remove.
func down(ctx context.Context, p Plan, state *State, keepLogs bool, say Progress) error {
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	nodes, control, store := state.byKind()
	// A node's PID 1 gives its processes 3 s in all.
	note(terminate(ctx, nodes, 8*time.Second))
	say.Line("nodes ended, with their pods")
	// kube-apiserver cannot end well once etcd has. Nothing it holds is
	// kept, so that it does not get long.
	note(terminate(ctx, control, 2*time.Second))
	note(terminate(ctx, store, time.Second))
	stray, err := marked(p.Dir)
	note(err)
	note(terminate(ctx, stray, 2*time.Second))
	say.Line("control plane ended")
	note(p.removeLinks(ctx))
	note(p.detachLoops())
	note(p.unmount())
	groups, err := p.cgroupDirs()
	note(err)
	for _, dir := range groups {
		note(removeCgroup(ctx, dir))
	}
	note(p.removeFiles(keepLogs))
	note(awaitReaping(ctx, append(stray, state.Processes...)))
	left, err := p.leftovers()
	note(err)
	if len(left) > 0 {
		note(fmt.Errorf("take down cluster %q: left: %s", p.Name, strings.Join(left, ", ")))
	}
	return errors.Join(errs...)
}

// byKind tells nodes' PIDs 1, the control plane and etcd apart.
func (s *State) byKind() (nodes, control, store []Process) {
	for _, p := range s.Processes {
		switch {
		case strings.HasPrefix(p.Name, "node-"):
			nodes = append(nodes, p)
		case p.Name == "etcd":
			store = append(store, p)
		default:
			control = append(control, p)
		}
	}
	return nodes, control, store
}

// removeLinks deletes the root ends of the veth pairs and the bridge; the
// routes go with them.
func (p Plan) removeLinks(ctx context.Context) error {
	links, err := p.links()
	if err != nil {
		return err
	}
	for _, link := range links {
		// The kernel deletes a dead namespace's links itself, a moment later.
		if err := ip(ctx, "link", "delete", link); err != nil {
			if _, statErr := os.Stat("/sys/class/net/" + link); statErr == nil {
				return err
			}
		}
	}
	return nil
}

// mounts are the mounts in the cluster's folder, in this mount namespace. A cluster makes none
// here, but a user who inspects it may.
func (p Plan) mounts() ([]string, error) {
	all, err := ownMounts()
	if err != nil {
		return nil, err
	}
	var points []string
	for _, m := range all {
		if m.point == p.Dir || strings.HasPrefix(m.point, p.Dir+"/") {
			points = append(points, m.point)
		}
	}
	return points, nil
}

func (p Plan) unmount() error {
	points, err := p.mounts()
	if err != nil {
		return err
	}
	for i := len(points) - 1; i >= 0; i-- { // the last mounted first
		if err := unix.Unmount(points[i], unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", points[i], err)
		}
	}
	return nil
}

// files are what the cluster wrote into its folder, except the logs. Other files in the folder
// are not touched.
func (p Plan) files() ([]string, error) {
	names := []string{
		p.stateFile(), p.stateFile() + ".new", p.Kubeconfig(), p.conf("kube-controller-manager"), p.conf("kube-scheduler"),
		p.pauseFile(), p.file("pki"), p.file("etcd"),
	}
	for n := 1; n <= maxNodes; n++ {
		names = append(names, p.file(fmt.Sprintf("node-%d", n)))
	}
	var present []string
	for _, name := range names {
		if _, err := os.Lstat(name); err == nil {
			present = append(present, name)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return present, nil
}

func (p Plan) removeFiles(keepLogs bool) error {
	names, err := p.files()
	if err != nil {
		return err
	}
	if !keepLogs {
		names = append(names, p.logs())
	}
	for _, name := range names {
		if err := os.RemoveAll(name); err != nil {
			return fmt.Errorf("remove cluster's file: %w", err)
		}
	}
	err = os.Remove(p.Dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

// Check fails if anything is left of a cluster that should be down, and names it. Kept logs do
// not count.
func Check(name, dir string, out io.Writer) error {
	plan, _, err := planOf(name, dir)
	if err != nil {
		return err
	}
	left, err := plan.leftovers()
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("find nothing left of cluster %q: there is\n  %s", name, strings.Join(left, "\n  "))
	}
	fmt.Fprintf(out, "nothing is left of cluster %q\n", name)
	return nil
}

// leftovers describes everything found of this cluster. Network namespaces and nftables tables
// of a node live as long as its processes do, and have no name outside: without processes
// there are none.
func (p Plan) leftovers() ([]string, error) {
	var left []string
	add := func(kind string, names []string) {
		for _, n := range names {
			left = append(left, kind+" "+n)
		}
	}
	processes, err := marked(p.Dir)
	if err != nil {
		return nil, err
	}
	for _, process := range processes {
		left = append(left, fmt.Sprintf("process %s (%d)", process.Name, process.PID))
	}
	for kind, list := range map[string]func() ([]string, error){
		"link": p.links, "cgroup": p.cgroupDirs, "mount": p.mounts, "file": p.files, "loop device": p.loopNames,
	} {
		names, err := list()
		if err != nil {
			return nil, err
		}
		add(kind, names)
	}
	return left, nil
}
