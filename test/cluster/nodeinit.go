package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// mountSetup tells a node's PID 1 which folders of the machine to bind into its mount
// namespace.
type mountSetup struct {
	Bin  string `json:"bin"`
	Node string `json:"node"`
	Logs string `json:"logs"`
}

// service is a program that the node's PID 1 shall start. Its log file has the same name.
type service struct {
	Name string   `json:"name"`
	Args []string `json:"args"`
}

// initEvent is PID 1's answer: the mounts are ready (no name), a service was started (PID is
// the one inside the node), or a service ended.
type initEvent struct {
	Name string `json:"name,omitempty"`
	PID  int    `json:"pid,omitempty"`
	Exit string `json:"exit,omitempty"`
}

// nodeInit is PID 1 of a node's PID namespace: when it ends, the kernel kills every process of
// the node, shims and containers too, and with the last of them the mounts and the network
// namespace are gone. Orphaned shims become its children.
type nodeInit struct {
	events   *json.Encoder
	services map[int]string // pid → name
	children <-chan os.Signal
}

// RunNodeInit serves as a node's PID 1 until SIGTERM. Requests and answers are
// JSON on two pipes: first a mountSetup, then services.
func RunNodeInit(requests io.Reader, answers io.Writer) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	// The reader of the answers is gone once the cluster is up.
	signal.Ignore(unix.SIGPIPE)

	in := json.NewDecoder(requests)
	var setup mountSetup
	if err := in.Decode(&setup); err != nil {
		return fmt.Errorf("read mount setup: %w", err)
	}
	if err := setup.apply(); err != nil {
		return err
	}
	init := nodeInit{events: json.NewEncoder(answers), services: map[int]string{}, children: children}
	init.answer(initEvent{})

	wanted := make(chan service)
	go func() {
		for {
			var s service
			if err := in.Decode(&s); err != nil {
				return // the other end is closed: nothing more to start
			}
			wanted <- s
		}
	}()
	for {
		select {
		case s := <-wanted:
			if err := init.start(s); err != nil {
				init.answer(initEvent{Name: s.Name, Exit: err.Error()})
			}
		case <-children:
			init.reap()
		case <-stop:
			return init.stop()
		}
	}
}

// answer ignores that nobody reads the answers.
func (n *nodeInit) answer(e initEvent) {
	if err := n.events.Encode(e); err != nil && !errors.Is(err, unix.EPIPE) {
		log.Printf("answer: %v", err)
	}
}

func (n *nodeInit) start(s service) error {
	out, err := os.OpenFile(filepath.Join(innerLogs, s.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	process, err := os.StartProcess(s.Args[0], s.Args, &os.ProcAttr{
		Dir:   "/",
		Env:   os.Environ(),
		Files: []*os.File{null, out, out},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	n.services[process.Pid] = s.Name
	n.answer(initEvent{Name: s.Name, PID: process.Pid})
	return process.Release() // reap waits for it, as for every orphan
}

// reap collects every child that has ended; it says whether any is left.
func (n *nodeInit) reap() (left bool) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false
		case pid == 0:
			return true
		}
		name, ok := n.services[pid]
		if !ok {
			continue
		}
		delete(n.services, pid)
		how := fmt.Sprintf("exit status %d", status.ExitStatus())
		if status.Signaled() {
			how = "killed by " + status.Signal().String()
		}
		log.Printf("%s (%d) ended: %s", name, pid, how)
		n.answer(initEvent{Name: name, PID: pid, Exit: how})
	}
}

// stop ends the kubelet first, which would start pods again. Then it ends everything else at
// once: containers end before they can notice that containerd is gone.
func (n *nodeInit) stop() error {
	for pid, name := range n.services {
		if strings.HasSuffix(name, "-kubelet") {
			unix.Kill(pid, unix.SIGTERM)
		}
	}
	kubeletLeft := func() bool {
		n.reap()
		for _, name := range n.services {
			if strings.HasSuffix(name, "-kubelet") {
				return true
			}
		}
		return false
	}
	n.waitWhile(kubeletLeft, 2*time.Second)
	// -1 is every process of this PID namespace but PID 1, those in the
	// containers' own PID namespaces included.
	unix.Kill(-1, unix.SIGTERM)
	n.waitWhile(n.reap, time.Second)
	unix.Kill(-1, unix.SIGKILL)
	if n.waitWhile(n.reap, 10*time.Second) {
		return errors.New("stop node: processes left after SIGKILL")
	}
	return nil
}

// waitWhile checks after each death; it returns what check said last.
func (n *nodeInit) waitWhile(check func() bool, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for check() {
		select {
		case <-n.children:
		case <-timer.C:
			return check()
		}
	}
	return false
}

// machineSysctls are the sysctls that a kubelet sets for the whole machine (KernelTunables in
// its container manager). A node gets files of its own in their place, so that a test does not
// change the machine.
func machineSysctls() []string {
	return []string{
		"kernel/keys/root_maxbytes", "kernel/keys/root_maxkeys", "kernel/panic",
		"kernel/panic_on_oops", "vm/overcommit_memory", "vm/panic_on_oom",
	}
}

// apply gives this mount namespace its own /proc, /sys, /run, /var/lib and /var/log. The
// device plugins' folder is fixed at /var/lib/kubelet/device-plugins, and pods' network
// namespaces are mounted in /run/netns. Without mounts of their own, two nodes, or a node and
// the machine, would meet there.
func (m mountSetup) apply() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// All sources are opened before the first is hidden below another mount.
	binds := []struct{ source, target string }{
		{filepath.Join(m.Node, "var-lib"), "/var/lib"},
		{filepath.Join(m.Node, "var-log"), "/var/log"},
		{m.Bin, innerBin},
		{m.Node, innerNode},
		{m.Logs, innerLogs},
		{"/sys/fs/cgroup", "/sys/fs/cgroup"},
	}
	sources := make([]*os.File, len(binds))
	for i, b := range binds {
		f, err := os.Open(b.source)
		if err != nil {
			return fmt.Errorf("open folder to bind: %w", err)
		}
		defer f.Close()
		sources[i] = f
	}
	// A new sysfs shows the links of the namespace it is mounted in. It comes
	// without securityfs: containerd then loads no AppArmor profile, which
	// would outlive the cluster.
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, dir := range []string{innerBin, innerNode, innerLogs, innerFakes, "/run/lock", "/run/netns", "/run/containerd"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for i, b := range binds {
		source := fmt.Sprintf("/proc/self/fd/%d", sources[i].Fd())
		if err := unix.Mount(source, b.target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s to %s: %w", b.source, b.target, err)
		}
	}
	if err := shadowSysctls(); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return fmt.Errorf("enable forwarding: %w", err)
	}
	// It is not there on a kernel without IPv6.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("enable forwarding of IPv6: %w", err)
	}
	// Volumes with bidirectional mount propagation need shared mounts; the
	// new peer groups reach no further than this namespace.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

func shadowSysctls() error {
	for _, name := range machineSysctls() {
		machine := filepath.Join("/proc/sys", name)
		value, err := os.ReadFile(machine)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read sysctl: %w", err)
		}
		shadow := filepath.Join(innerFakes, filepath.Base(name))
		if err := os.WriteFile(shadow, value, 0o644); err != nil {
			return err
		}
		if err := unix.Mount(shadow, machine, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("shadow sysctl %s: %w", name, err)
		}
	}
	return nil
}
