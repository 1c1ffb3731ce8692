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

// CutNode does to one node, counted from 1, what a power cut does to its machine; the rest of the
// cluster goes on. PowerCut says what is lost. PowerOnNode brings the node back.
func CutNode(ctx context.Context, dir string, number int, out io.Writer) error {
	state, plan, n, err := loadNode(dir, number)
	if err != nil {
		return err
	}
	if !slices.Contains(state.NodesOff, n.Name) { // or else an earlier cut may have failed half-way
		state.NodesOff = append(state.NodesOff, n.Name)
	}
	if err := state.save(plan.stateFile()); err != nil {
		return err
	}
	if err := plan.cutNode(ctx, n, state); err != nil {
		return err
	}
	NewProgress(out).Line("%s of cluster %q has no power", n.Name, state.Name)
	return nil
}

// loadNode loads a cluster that is up, with one of its nodes, counted from 1.
func loadNode(dir string, number int) (*State, Plan, NodePlan, error) {
	state, plan, err := loadUp(dir)
	if err == nil && (number < 1 || number > len(plan.Nodes)) {
		err = fmt.Errorf("find node %d: cluster %q has %d", number, plan.Name, len(plan.Nodes))
	}
	if err != nil {
		return nil, Plan{}, NodePlan{}, err
	}
	return state, plan, plan.Nodes[number-1], nil
}

// cutNode kills all of a node and removes what is in memory.
func (p Plan) cutNode(ctx context.Context, n NodePlan, state *State) error {
	of := func(process Process) bool {
		return process.Name == n.Name || strings.HasPrefix(process.Name, n.Name+"-")
	}
	var errs []error
	for _, process := range state.Processes {
		if process.Name != n.Name {
			continue
		}
		// When a node's PID 1 dies, the kernel kills all processes of the node.
		errs = append(errs, process.signal(syscall.SIGKILL), poll(ctx, 20*time.Second, func() (bool, error) { return !process.Alive(), nil }))
	}
	state.Processes, state.Services = slices.DeleteFunc(state.Processes, of), slices.DeleteFunc(state.Services, of)
	trees, err := hierarchies()
	errs = append(errs, err)
	for _, h := range trees {
		errs = append(errs, removeCgroup(ctx, filepath.Join(h.root, n.Cgroup)))
	}
	// The kernel deletes a dead namespace's links itself, but not the routes in the root namespace.
	for _, pods := range n.PodNetworks {
		_ = ip(ctx, "route", "delete", pods.String(), "dev", p.ID)
	}
	links := p
	links.ID = n.Link
	files := p
	files.Dir = p.nodeDir(n)
	errs = append(errs, links.removeLinks(ctx), files.detachLoops(), files.unmount(), state.save(p.stateFile()))
	return errors.Join(errs...)
}

// PowerOnNode starts a node after CutNode, and returns when the node is ready, or, if told not to wait
// for that, when its kubelet has started. When it fails, the node's power is cut again.
func PowerOnNode(ctx context.Context, dir string, number int, await bool, out io.Writer) error {
	state, plan, n, err := loadNode(dir, number)
	if err != nil {
		return err
	}
	if !slices.Contains(state.NodesOff, n.Name) {
		return fmt.Errorf("power on %s: its power was not cut", n.Name)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	u := &upRun{ctx: ctx, cancel: cancel, plan: plan, state: state, say: NewProgress(out)}
	if err := u.powerOnNode(n, await); err != nil {
		if dead := new(deadProcess); errors.As(context.Cause(ctx), dead) {
			err = *dead // the step that waited for it only says that it waited
		}
		cancel(nil)
		return errors.Join(err, plan.cutNode(context.WithoutCancel(ctx), n, state))
	}
	u.say.Line("%s of cluster %q has power again", n.Name, state.Name)
	return nil
}

func (u *upRun) powerOnNode(n NodePlan, await bool) error {
	if err := makeCgroup(n.Cgroup); err != nil {
		return err
	}
	started := time.Now()
	node, err := u.connectNode(n)
	if err != nil {
		return err
	}
	defer node.close()
	if err := u.startKubelet(node); err != nil {
		return err
	}
	if await {
		if err := u.awaitNode(n, started); err != nil {
			return err
		}
	}
	u.state.NodesOff = slices.DeleteFunc(u.state.NodesOff, func(name string) bool { return name == n.Name })
	return u.state.save(u.plan.stateFile())
}

// awaitNode waits until a node has reported, later than since, that it is ready.
func (u *upRun) awaitNode(n NodePlan, since time.Time) error {
	api, err := u.plan.apiClient()
	if err != nil {
		return err
	}
	if err := api.nodeReady(u.ctx, n.Name, since, 90*time.Second); err != nil {
		return err
	}
	return proxyReady(u.ctx, n.Address, 30*time.Second)
}

// Unplug takes a node, counted from 1, off the network, or back on it; the node's programs and containers
// go on.
func Unplug(ctx context.Context, dir string, number int, off bool) error {
	_, _, n, err := loadNode(dir, number)
	if err != nil {
		return err
	}
	state := "up"
	if off {
		state = "down"
	}
	return ip(ctx, "link", "set", n.Link, state)
}
