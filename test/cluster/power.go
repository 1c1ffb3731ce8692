package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// PowerCut does to the cluster what a power cut does to its machine: every process ends at
// once, by SIGKILL, and everything that is only in memory is gone: /run of the nodes, mounts,
// links, pods' network namespaces, nftables, loop devices, cgroups. Files stay: etcd's,
// containerd's, the kubelet's, CNI's, volumes.
//
// Two things differ from a real power cut: what was written and not synced stays in the page
// cache, and the kernel's boot ID is the same afterwards.
func PowerCut(ctx context.Context, dir string, out io.Writer) error {
	state, plan, err := loadUp(dir)
	if err != nil {
		return err
	}
	state.Ready, state.Off = false, true
	if err := state.save(plan.stateFile()); err != nil {
		return err
	}
	if err := plan.cut(ctx, state); err != nil {
		return err
	}
	NewProgress(out).Line("cluster %q has no power", state.Name)
	return nil
}

// cut kills all of the cluster and removes what is in memory.
func (p Plan) cut(ctx context.Context, state *State) error {
	killed := state.Processes
	// When a node's PID 1 dies, the kernel kills all processes of the node.
	if err := kill(killed); err != nil {
		return err
	}
	stray, err := marked(p.Dir)
	if err == nil {
		err = kill(stray)
	}
	if err != nil {
		return err
	}
	killed = append(slices.Clone(killed), stray...)
	if err := poll(ctx, 20*time.Second, func() (bool, error) {
		// A process that is about to end has no environment any more, and so no mark.
		left, err := marked(p.Dir)
		return len(left) == 0 && !slices.ContainsFunc(killed, Process.Alive), err
	}); err != nil {
		return fmt.Errorf("wait for the cluster's processes to end: %w", err)
	}
	state.Processes, state.Services, state.NodesOff = nil, nil, nil
	groups, err := p.cgroupDirs()
	errs := []error{err}
	for _, dir := range groups {
		// Processes that carry no mark, such as QEMUs, are in these groups.
		errs = append(errs, removeCgroup(ctx, dir))
	}
	errs = append(errs, p.removeLinks(ctx), p.detachLoops(), p.unmount(), state.save(p.stateFile()))
	return errors.Join(errs...)
}

// kill sends SIGKILL to all before it waits for any.
func kill(processes []Process) error {
	var errs []error
	for _, p := range processes {
		errs = append(errs, p.signal(syscall.SIGKILL))
	}
	return errors.Join(errs...)
}

// PowerOn starts a cluster after PowerCut, and returns when kube-apiserver answers
// and, unless told not to wait for them, every node is ready. When it fails, the
// power is cut again.
func PowerOn(ctx context.Context, dir string, awaitNodes bool, out io.Writer) error {
	state, err := loadState(filepath.Join(dir, "state.json"))
	if err != nil {
		return err
	}
	if state == nil || !state.Off {
		return fmt.Errorf("power on the cluster in %s: its power was not cut", dir)
	}
	plan, err := NewPlan(state.Name, dir, state.Index, state.NodeCount, state.Families)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	u := &upRun{ctx: ctx, cancel: cancel, plan: plan, state: state, say: NewProgress(out)}
	if err := u.powerOn(awaitNodes); err != nil {
		if dead := new(deadProcess); errors.As(context.Cause(ctx), dead) {
			err = *dead // the step that waited for it only says that it waited
		}
		cancel(nil)
		return errors.Join(err, plan.cut(context.WithoutCancel(ctx), state))
	}
	u.say.Line("cluster %q has power again", state.Name)
	return nil
}

func (u *upRun) powerOn(awaitNodes bool) error {
	for _, n := range u.plan.Nodes {
		if err := makeCgroup(n.Cgroup); err != nil {
			return err
		}
	}
	if err := u.plan.addBridge(u.ctx); err != nil {
		return err
	}
	started := time.Now()
	api, err := u.start((*upRun).connectNode)
	if err != nil {
		return err
	}
	// The nodes' status in the API may be from before the power cut.
	u.state.Ready, u.state.Off = true, false
	if !awaitNodes {
		return u.state.save(u.plan.stateFile())
	}
	return u.awaitReady(api, started)
}

// hint says which command to run before the one that was refused.
func (s *State) hint() string {
	command := "down"
	if s.Off {
		command = "power-on"
	}
	return strings.Join([]string{"run `cluster", command, "--name", s.Name + "` first"}, " ")
}
