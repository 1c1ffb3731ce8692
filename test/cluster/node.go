package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// node is the root namespace's end of a node that is being brought up.
type node struct {
	plan     NodePlan
	init     Process
	requests *json.Encoder
	started  chan initEvent
	close    func()
}

// startNode starts the node's PID 1 in new network, PID and mount namespaces. If PID 1 or one
// of its services ends, u.report gets it.
func (u *upRun) startNode(n NodePlan) (*node, error) {
	for _, dir := range []string{"var-lib", "var-lib/containerd", "var-lib/kubelet", "var-lib/cni", "var-log", "var-log/pods", "var-log/containers"} {
		if err := os.MkdirAll(filepath.Join(u.plan.nodeDir(n), dir), 0o755); err != nil {
			return nil, err
		}
	}
	requestsOut, requestsIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer requestsOut.Close()
	answersOut, answersIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer answersIn.Close()

	cmd := exec.Command("/proc/self/exe", NodeInitCommand)
	cmd.Args[0] = "cluster"
	cmd.ExtraFiles = []*os.File{requestsOut, answersIn} // fds 3 and 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID}
	init, err := u.launch(n.Name, cmd)
	if err != nil {
		return nil, err
	}
	node := &node{
		plan: n, init: init, requests: json.NewEncoder(requestsIn), started: make(chan initEvent, 1),
		close: func() { requestsIn.Close(); answersOut.Close() },
	}
	go node.listen(json.NewDecoder(answersOut), u)
	if err := node.requests.Encode(mountSetup{Bin: u.state.Bin, Node: u.plan.nodeDir(n), Logs: u.plan.logs()}); err != nil {
		return nil, fmt.Errorf("tell %s its mounts: %w", n.Name, err)
	}
	_, err = node.await(u.ctx)
	return node, err
}

// NodeInitCommand is the argument that makes the cluster program a node's PID 1.
const NodeInitCommand = "node-init"

// listen takes PID 1's answers until the pipe is closed: starts go to n.started, ends to
// u.report.
func (n *node) listen(answers *json.Decoder, u *upRun) {
	for {
		var e initEvent
		if err := answers.Decode(&e); err != nil {
			return
		}
		if e.Exit == "" {
			n.started <- e
			continue
		}
		u.report(deadProcess{name: e.Name, log: u.plan.log(e.Name), how: e.Exit})
	}
}

func (n *node) await(ctx context.Context) (initEvent, error) {
	select {
	case e := <-n.started:
		return e, nil
	case <-ctx.Done():
		return initEvent{}, context.Cause(ctx)
	}
}

// startService makes PID 1 start a service, and finds the service's PID in the root namespace.
func (u *upRun) startService(n *node, s service) error {
	if err := n.requests.Encode(s); err != nil {
		return fmt.Errorf("ask %s to start %s: %w", n.plan.Name, s.Name, err)
	}
	e, err := n.await(u.ctx)
	if err != nil {
		return err
	}
	pid, err := outerPID(n.init, e.PID)
	if err != nil {
		// The service's end is reported soon, with the reason.
		return poll(u.ctx, 2*time.Second, func() (bool, error) { return false, nil })
	}
	p, err := observe(s.Name, pid, u.plan.log(s.Name))
	if err != nil {
		return err
	}
	u.state.Services = append(u.state.Services, p)
	return u.state.save(u.plan.stateFile())
}

// outerPID finds the process that has the given pid in init's PID namespace.
func outerPID(init Process, inner int) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	namespace := func(pid int) string {
		link, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		return link
	}
	want := namespace(init.PID)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || want == "" || namespace(pid) != want {
			continue
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // gone meanwhile
		}
		for line := range strings.Lines(string(status)) {
			fields := strings.Fields(line)
			if len(fields) > 1 && fields[0] == "NSpid:" && fields[len(fields)-1] == strconv.Itoa(inner) {
				return pid, nil
			}
		}
	}
	return 0, fmt.Errorf("find process %d of %s: it is gone", inner, init.Name)
}

func (u *upRun) startContainerd(n *node) error {
	containerd := n.plan.services()["containerd"]
	if err := u.startService(n, containerd); err != nil {
		return err
	}
	return awaitContainerd(u.ctx, n.init, containerd.Name)
}

// awaitContainerd waits until containerd answers. From outside, its socket's path leads
// through PID 1's root; that path is short enough for a socket.
func awaitContainerd(ctx context.Context, init Process, name string) error {
	socket := fmt.Sprintf("/proc/%d/root%s", init.PID, criSocket)
	if err := poll(ctx, 30*time.Second, func() (bool, error) { return dialable(socket), nil }); err != nil {
		return fmt.Errorf("wait for %s: %w", name, err)
	}
	return nil
}

// services are the programs of the node without which its containers go on.
func (n NodePlan) services() map[string]service {
	all := map[string]service{}
	for program, args := range map[string][]string{
		"containerd": {"--config", innerNode + "/containerd.toml", "--log-level", "info"},
		"kubelet": {
			"--config=" + innerNode + "/kubelet.yaml",
			"--kubeconfig=" + innerNode + "/kubelet.kubeconfig",
			"--hostname-override=" + n.Name,
			"--node-ip=" + join(n.Addresses),
			"--v=2",
		},
	} {
		all[program] = n.service(program, args...)
	}
	return all
}

func (n NodePlan) service(program string, args ...string) service {
	return service{Name: n.Name + "-" + program, Args: append([]string{innerBin + "/" + program}, args...)}
}

func (u *upRun) startKubelet(n *node) error {
	if err := u.startService(n, n.plan.services()["kubelet"]); err != nil {
		return err
	}
	return u.startService(n, n.plan.service("kube-proxy",
		"--proxy-mode=nftables",
		"--kubeconfig="+innerNode+"/kube-proxy.kubeconfig",
		"--hostname-override="+n.plan.Name,
		"--cluster-cidr="+join(u.plan.allPods()),
		// Conntrack's size is the machine's, not the namespace's.
		"--conntrack-max-per-core=0", "--conntrack-min=0",
		"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		"--metrics-bind-address=127.0.0.1:10249",
		"--healthz-bind-address="+netip.AddrPortFrom(n.plan.Address, proxyCheckPort).String()))
}
