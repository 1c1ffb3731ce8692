package cluster

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// loadUp returns the state and the plan of a cluster that was brought up.
func loadUp(dir string) (*State, Plan, error) {
	state, err := loadState(filepath.Join(dir, "state.json"))
	if err != nil {
		return nil, Plan{}, err
	}
	if state == nil || !state.Ready {
		return nil, Plan{}, fmt.Errorf("find cluster in %s: none is up there", dir)
	}
	plan, err := NewPlan(state.Name, dir, state.Index, state.NodeCount, state.Families)
	return state, plan, err
}

// Stop kills a program of the control plane, or the kubelet or the containerd of the
// only node, as a crash would, and leaves the rest of the cluster to cope. Start
// brings it back.
func Stop(ctx context.Context, dir, name string) error {
	state, plan, err := loadUp(dir)
	if err != nil {
		return err
	}
	if service, ok := plan.service(name); ok {
		name = service.Name
	} else if _, err := plan.controlPlane(name); err != nil {
		return err
	}
	p, ok := state.process(name)
	if !ok || !p.Alive() {
		return fmt.Errorf("stop %s: it does not run", name)
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	return poll(ctx, 20*time.Second, func() (bool, error) { return !p.Alive(), nil })
}

// Start starts a program that was stopped, or crashed, and waits until
// kube-apiserver answers, the kubelet's node is ready, or containerd answers.
func Start(ctx context.Context, dir, name string, out io.Writer) error {
	state, plan, err := loadUp(dir)
	if err != nil {
		return err
	}
	if service, ok := plan.service(name); ok {
		return plan.startServiceAgain(ctx, state, service)
	}
	program, err := plan.controlPlane(name)
	if err != nil {
		return err
	}
	place := slices.IndexFunc(state.Processes, func(p Process) bool { return p.Name == name })
	if place < 0 || state.Processes[place].Alive() {
		return fmt.Errorf("start %s: it runs", name)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	u := &upRun{ctx: ctx, cancel: cancel, plan: plan, state: state, say: NewProgress(out)}
	if err := u.startProgram(program); err != nil {
		return err
	}
	// The order in which they were started is the one in which they are ended.
	last := len(state.Processes) - 1
	state.Processes[place] = state.Processes[last]
	state.Processes = state.Processes[:last]
	if err := state.save(plan.stateFile()); err != nil {
		return err
	}
	api, err := plan.apiClient()
	if err != nil {
		return err
	}
	return api.answers(ctx, "/readyz", 90*time.Second)
}

// service is the kubelet or the containerd of a cluster of one node.
func (p Plan) service(name string) (service, bool) {
	if len(p.Nodes) != 1 {
		return service{}, false
	}
	s, ok := p.Nodes[0].services()[name]
	return s, ok
}

// startServiceAgain starts the node's kubelet or containerd from outside: the pipe on
// which the node's PID 1 is asked for services was closed when the cluster was up.
// Containers go on without either: their shims are PID 1's children.
func (p Plan) startServiceAgain(ctx context.Context, state *State, s service) error {
	node := p.Nodes[0]
	place := slices.IndexFunc(state.Services, func(p Process) bool { return p.Name == s.Name })
	init, ok := state.process(node.Name)
	if place < 0 || !ok || state.Services[place].Alive() {
		return fmt.Errorf("start %s: it runs", s.Name)
	}
	cmd := exec.Command(s.Args[0], s.Args[1:]...)
	out, err := p.detach(s.Name, cmd)
	if err != nil {
		return err
	}
	defer out.Close()
	started := time.Now()
	if err := startInside(init, cmd); err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	if state.Services[place], err = observe(s.Name, cmd.Process.Pid, p.log(s.Name)); err != nil {
		return err
	}
	if err := state.save(p.stateFile()); err != nil {
		return err
	}
	if s.Name == node.service("containerd").Name {
		return awaitContainerd(ctx, init, s.Name)
	}
	api, err := p.apiClient()
	if err != nil {
		return err
	}
	return api.nodeReady(ctx, node.Name, started, 90*time.Second)
}

// controlPlane finds a program of the control plane by name.
func (p Plan) controlPlane(name string) (program, error) {
	for _, program := range append(p.stores(), p.controllers()...) {
		if program.name == name {
			return program, nil
		}
	}
	return program{}, fmt.Errorf("find program %q: it is none of the control plane's", name)
}
