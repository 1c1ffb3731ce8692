package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options are what a cluster is brought up with.
type Options struct {
	Name  string
	Dir   string // absolute
	Bin   string // absolute; what Build made
	Index int    // -1 for the first free one
	Nodes int
	// Families are those of nodes, pods and Services.
	Families Families
	// OwnCPUs: the kubelets give pods CPUs of their own (the CPU manager policy static), all but one of the machine's.
	OwnCPUs bool
	// Emulates is the release of Kubernetes, such as 1.34, whose APIs and feature gates the API server has; empty for its
	// own.
	Emulates string
}

// upRun brings a cluster up. Its context ends, with a deadProcess as the cause, when any
// process that it started ends.
type upRun struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	plan   Plan
	state  *State
	say    Progress
}

// deadProcess is the error when a process ends that should go on.
type deadProcess struct{ name, log, how string }

func (d deadProcess) Error() string {
	lines, err := lastLines(d.log, 15)
	if err != nil {
		lines = err.Error()
	}
	return fmt.Sprintf("keep %s running: it ended (%s); the end of %s:\n%s", d.name, d.how, d.log, lines)
}

// Up returns when every node is ready to run pods. On a cluster that is up it only says so; on
// a cluster that is partly up it fails. When it fails half-way it takes down what it made,
// except the logs.
func Up(ctx context.Context, o Options, out io.Writer) error {
	state, err := loadState(filepath.Join(o.Dir, "state.json"))
	if err != nil {
		return err
	}
	if state != nil {
		return alreadyUp(ctx, o.Dir, o.Nodes, o.Families, state, out)
	}
	plan, err := choosePlan(o)
	if err != nil {
		return err
	}
	plan.OwnCPUs, plan.Emulates = o.OwnCPUs, o.Emulates
	if err := plan.precheck(o.Bin); err != nil {
		return err
	}
	if plan.Containerd1, err = isContainerd1(ctx, o.Bin); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	u := &upRun{
		ctx: ctx, cancel: cancel, plan: plan, say: NewProgress(out),
		state: &State{Name: o.Name, Index: plan.Index, NodeCount: o.Nodes, Families: o.Families, Bin: o.Bin, Created: time.Now().UTC()},
	}
	if err := u.run(); err != nil {
		if dead := new(deadProcess); errors.As(context.Cause(ctx), dead) {
			err = *dead // the step that waited for it only says that it waited
		}
		u.say.Line("failed; taking down what was started, logs stay in %s", plan.logs())
		cancel(nil)
		return errors.Join(err, down(context.WithoutCancel(ctx), plan, u.state, true, u.say))
	}
	u.say.Line("cluster %q is up", o.Name)
	fmt.Fprintf(out, "\n  export KUBECONFIG=%s\n  export PATH=%s:$PATH\n", plan.Kubeconfig(), o.Bin)
	return nil
}

// alreadyUp is nil for a cluster in which nothing is missing.
func alreadyUp(ctx context.Context, dir string, nodes int, families Families, state *State, out io.Writer) error {
	hint := state.hint()
	if state.NodeCount != nodes {
		return fmt.Errorf("bring up cluster %q: it is up with %d nodes, not %d; %s", state.Name, state.NodeCount, nodes, hint)
	}
	if state.Families != families {
		return fmt.Errorf("bring up cluster %q: it is up with other address families; %s", state.Name, hint)
	}
	if state.Off {
		return fmt.Errorf("bring up cluster %q: its power was cut; %s", state.Name, hint)
	}
	if dead := state.dead(); len(dead) > 0 {
		names := make([]string, len(dead))
		for i, p := range dead {
			names[i] = fmt.Sprintf("%s (%d)", p.Name, p.PID)
		}
		return fmt.Errorf("bring up cluster %q: it is half dead, %s ended; %s", state.Name, strings.Join(names, ", "), hint)
	}
	if !state.Ready {
		return fmt.Errorf("bring up cluster %q: another `up` works on it or was broken off; %s", state.Name, hint)
	}
	plan, err := NewPlan(state.Name, dir, state.Index, state.NodeCount, state.Families)
	if err != nil {
		return err
	}
	api, err := plan.apiClient()
	if err != nil {
		return err
	}
	if _, err := api.get(ctx, "/readyz"); err != nil {
		return fmt.Errorf("bring up cluster %q: its processes run, but: %w; %s", state.Name, err, hint)
	}
	fmt.Fprintf(out, "cluster %q is up already\n", state.Name)
	return Status(ctx, dir, out)
}

// choosePlan takes the wanted index, or the first whose networks no local
// address lies in.
func choosePlan(o Options) (Plan, error) {
	local, err := addresses()
	if err != nil {
		return Plan{}, err
	}
	first, tries := o.Index, 1
	if o.Index < 0 {
		first, tries = FirstIndex(o.Name), indexes
	}
	for i := range tries {
		plan, err := NewPlan(o.Name, o.Dir, (first+i)%indexes, o.Nodes, o.Families)
		if err != nil || !plan.clashes(local) {
			return plan, err
		}
	}
	return Plan{}, errors.New("choose addresses: every network tried overlaps one of this machine's; see --index")
}

// isContainerd1 reports whether the containerd in the folder is 1.x, by what it prints of its version.
func isContainerd1(ctx context.Context, bin string) (bool, error) {
	printed, err := exec.CommandContext(ctx, filepath.Join(bin, "containerd"), "--version").Output()
	if err != nil {
		return false, fmt.Errorf("ask containerd for its version: %w", err)
	}
	// containerd github.com/containerd/containerd v1.7.28 REVISION
	words := strings.Fields(string(printed))
	if len(words) < 3 {
		return false, fmt.Errorf("ask containerd for its version: it prints %q", printed)
	}
	return strings.HasPrefix(words[2], "v1."), nil
}

func (p Plan) precheck(bin string) error {
	if os.Geteuid() != 0 {
		return errors.New("bring up a cluster: only root can make its namespaces")
	}
	if p.Dir == "/run" || strings.HasPrefix(p.Dir, "/run/") {
		return fmt.Errorf("use folder %s: /run is in memory, choose one on disk", p.Dir)
	}
	for _, name := range append(kubeNames(), "containerd", "containerd-shim-runc-v2", "ctr", "pause") {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return fmt.Errorf("find program (run `cluster build` first): %w", err)
		}
	}
	for program, pkg := range map[string]string{"runc": "runc", "nft": "nftables", "ip": "iproute2"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("find program (Debian's package %s): %w", pkg, err)
		}
	}
	if _, err := os.Stat("/usr/lib/cni/ptp"); err != nil {
		return fmt.Errorf("find CNI plugin (Debian's package containernetworking-plugins): %w", err)
	}
	left, err := p.leftovers()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("bring up cluster %q: left of an earlier one: %s; run `cluster down` first", p.Name, strings.Join(left, ", "))
	}
	return err
}

func (u *upRun) run() error {
	if err := u.prepare(); err != nil {
		return err
	}
	api, err := u.start((*upRun).prepareNode)
	if err != nil {
		return err
	}
	return u.awaitReady(api, time.Time{})
}

// start starts everything in order. makeNode starts the node's containerd, while the API
// server starts.
func (u *upRun) start(makeNode func(*upRun, NodePlan) (*node, error)) (*apiClient, error) {
	for _, p := range u.plan.stores() {
		if err := u.startProgram(p); err != nil {
			return nil, err
		}
	}
	u.say.Line("etcd and kube-apiserver started")
	var nodes []*node
	for _, n := range u.plan.Nodes {
		node, err := makeNode(u, n)
		if err != nil {
			return nil, err
		}
		defer node.close()
		nodes = append(nodes, node)
		u.say.Line("%s: network and containerd ready", n.Name)
	}
	api, err := u.plan.apiClient()
	if err != nil {
		return nil, err
	}
	if err := api.answers(u.ctx, "/readyz", 90*time.Second); err != nil {
		return nil, err
	}
	u.say.Line("kube-apiserver ready at %s", u.plan.APIURL())
	for _, node := range nodes {
		if err := u.startKubelet(node); err != nil {
			return nil, err
		}
	}
	for _, p := range u.plan.controllers() {
		if err := u.startProgram(p); err != nil {
			return nil, err
		}
	}
	u.say.Line("kubelet, kube-proxy, controllers and scheduler started")
	return api, nil
}

func (u *upRun) prepare() error {
	if err := os.MkdirAll(u.plan.Dir, 0o755); err != nil {
		return err
	}
	// The exclusive creation keeps out a second `up` at the same time.
	f, err := os.OpenFile(u.plan.stateFile(), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("claim cluster folder: %w", err)
	}
	f.Close()
	if err := u.state.save(u.plan.stateFile()); err != nil {
		return err
	}
	// Logs that were kept of an earlier cluster go.
	if err := os.RemoveAll(u.plan.logs()); err != nil {
		return err
	}
	for _, dir := range []string{u.plan.logs(), u.plan.file("pki"), u.plan.file("etcd")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	for _, n := range u.plan.Nodes {
		if err := os.MkdirAll(u.plan.nodeDir(n), 0o755); err != nil {
			return err
		}
		if err := makeCgroup(n.Cgroup); err != nil {
			return err
		}
	}
	if err := u.plan.writeCertificates(time.Now()); err != nil {
		return err
	}
	canSetResource, err := hasCapability(unix.CAP_SYS_RESOURCE)
	if err != nil {
		return err
	}
	if err := u.plan.writeNodeConfigs(!canSetResource); err != nil {
		return err
	}
	return u.plan.addBridge(u.ctx)
}

func hasCapability(capability uint) (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, fmt.Errorf("read own capabilities: %w", err)
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0, nil
}

// prepareNode makes a new node.
func (u *upRun) prepareNode(plan NodePlan) (*node, error) {
	n, err := u.connectNode(plan)
	if err != nil {
		return nil, err
	}
	return n, u.loadPauseImage(n)
}

// connectNode gives a node network and containerd.
func (u *upRun) connectNode(plan NodePlan) (*node, error) {
	n, err := u.startNode(plan)
	if err != nil {
		return nil, err
	}
	if err := u.plan.connect(u.ctx, plan, n.init); err != nil {
		return nil, err
	}
	return n, u.startContainerd(n)
}

func (u *upRun) loadPauseImage(n *node) error {
	pause := Image{
		Reference:  pauseImage,
		Entrypoint: []string{"/pause"},
		Files:      []ImageFile{{Source: filepath.Join(u.state.Bin, "pause"), Path: "/pause"}},
	}
	file := u.plan.pauseFile()
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := pause.WriteArchive(out); err != nil {
		return fmt.Errorf("make pause image: %w", err)
	}
	return importImage(u.ctx, n.init, file)
}

// awaitReady waits until each node has reported, later than since, that it is ready.
func (u *upRun) awaitReady(api *apiClient, since time.Time) error {
	for _, n := range u.plan.Nodes {
		if err := api.nodeReady(u.ctx, n.Name, since, 90*time.Second); err != nil {
			return err
		}
		if err := proxyReady(u.ctx, n.Address, 30*time.Second); err != nil {
			return err
		}
		u.say.Line("%s is ready", n.Name)
	}
	if err := api.answers(u.ctx, "/api/v1/namespaces/default/serviceaccounts/default", 60*time.Second); err != nil {
		return err
	}
	u.state.Ready = true
	return u.state.save(u.plan.stateFile())
}

func (u *upRun) startProgram(p program) error {
	_, err := u.launch(p.name, exec.Command(filepath.Join(u.state.Bin, p.name), p.args...))
	return err
}

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// launch starts the command in a session of its own, so that it outlives this
// program and its terminal, and notes it in the state file.
func (u *upRun) launch(name string, cmd *exec.Cmd) (Process, error) {
	out, err := u.plan.detach(name, cmd)
	if err != nil {
		return Process{}, err
	}
	defer out.Close()
	if err := cmd.Start(); err != nil {
		return Process{}, fmt.Errorf("start %s: %w", name, err)
	}
	p, err := observe(name, cmd.Process.Pid, u.plan.log(name))
	if err != nil {
		return Process{}, err
	}
	go func() {
		err := cmd.Wait()
		how := "exit status 0"
		if err != nil {
			how = err.Error()
		}
		u.report(deadProcess{name: name, log: u.plan.log(name), how: how})
	}()
	u.state.Processes = append(u.state.Processes, p)
	return p, u.state.save(u.plan.stateFile())
}

// detach makes the command run in a session of its own and write to its log, which detach
// returns.
func (p Plan) detach(name string, cmd *exec.Cmd) (*os.File, error) {
	out, err := os.OpenFile(p.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, "/"
	// Not the caller's environment: a proxy or locale in it would reach every
	// part of the cluster.
	// With GOGC=200 they collect garbage half as often. That takes a quarter more memory, and less CPU time, which tests lack.
	cmd.Env = []string{"PATH=" + innerBin + ":" + searchPath, "HOME=/", "GOGC=200", markName + "=" + p.Dir}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	return out, nil
}

// report ends the upRun's context. The first death is the cause.
func (u *upRun) report(d deadProcess) { u.cancel(d) }
