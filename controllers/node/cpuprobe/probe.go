package cpuprobe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/hostcpu"
)

const (
	// wall is the time after which a probe is given up. It takes about a second on an idle node.
	wall = 2 * time.Minute
	// killLimit is how long a killed QEMU may take to end.
	killLimit = 2 * time.Second
	// maxModels is how many models are expanded: QEMU 11.1 has 189.
	maxModels = 400
)

// Probe is a QEMU that can be asked.
type Probe struct {
	// Root is the root folder of the launcher's image.
	Root string
	// Path and Args are of the child, which calls Main. Default: this process's own executable, with Argument.
	Path string
	Args []string
}

// Run asks. It returns within about two minutes, even if QEMU can be neither waited for nor killed.
func (p Probe) Run(ctx context.Context, accelerator qemuargs.Accelerator) (hostcpu.Answers, error) {
	ctx, cancel := context.WithTimeout(ctx, wall)
	defer cancel()
	type result struct {
		answers hostcpu.Answers
		err     error
	}
	done := make(chan result, 1)
	go func() {
		answers, err := p.run(ctx, accelerator)
		done <- result{answers, err}
	}()
	select {
	case r := <-done:
		return r.answers, r.err
	case <-ctx.Done():
	}
	lost := time.NewTimer(2 * killLimit)
	defer lost.Stop()
	select {
	case r := <-done:
		return r.answers, r.err
	case <-lost.C: // a process that is stuck in the kernel cannot be ended
		return hostcpu.Answers{}, fmt.Errorf("QEMU has not ended since: %w", ctx.Err())
	}
}

func (p Probe) run(ctx context.Context, accelerator qemuargs.Accelerator) (hostcpu.Answers, error) {
	// Pdeathsig is sent when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ours, theirs, err := socketPair()
	if err != nil {
		return hostcpu.Answers{}, err
	}
	client := qmp.New(ours, qmp.Options{Timeout: wall})
	defer client.Close()
	path, args := p.Path, p.Args
	if path == "" {
		path, args = "/proc/self/exe", []string{Argument}
	}
	cmd := exec.CommandContext(ctx, path, append(append([]string{}, args...), p.Root, string(accelerator))...)
	var said tail
	cmd.Stderr, cmd.ExtraFiles = &said, []*os.File{theirs}
	// virt-handler sees all processes of the node, and the guests' QEMUs have the same user: this QEMU sees itself alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWPID}
	cmd.WaitDelay = killLimit / 2
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return hostcpu.Answers{}, fmt.Errorf("start QEMU: %w", err)
	}
	answers, err := ask(ctx, client, accelerator)
	client.Close() // QEMU goes on without a monitor
	killErr := cmd.Process.Kill()
	waitErr := cmd.Wait()
	if err != nil && said.text() != "" {
		return answers, fmt.Errorf("%w; it said: %s", err, said.text())
	}
	if exit := (*exec.ExitError)(nil); err == nil && waitErr != nil && !errors.As(waitErr, &exit) {
		err = errors.Join(killErr, waitErr)
	}
	return answers, err
}

func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make sockets: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "qmp"), os.NewFile(uintptr(fds[1]), "qmp")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("make sockets: %w", err)
	}
	return conn.(*net.UnixConn), theirs, nil
}

func ask(ctx context.Context, client *qmp.Client, accelerator qemuargs.Accelerator) (a hostcpu.Answers, err error) {
	if err := client.Connect(); err != nil {
		return a, fmt.Errorf("speak to QEMU: %w", err)
	}
	version := client.Version().QEMU
	a.QEMUVersion = fmt.Sprintf("%d.%d.%d", version.Major, version.Minor, version.Micro)
	if err := client.Execute(ctx, "query-cpu-definitions", nil, &a.Definitions); err != nil {
		return a, err
	}
	own := "max"
	if accelerator == qemuargs.KVM {
		own = "host"
	}
	if a.Own, err = expand(ctx, client, own, nil); err != nil {
		return a, err
	}
	if accelerator == qemuargs.TCG {
		if err := whole(ctx, client, a.Own); err != nil {
			return a, err
		}
	}
	if accelerator == qemuargs.KVM {
		if a.Unmovable, err = expand(ctx, client, own, map[string]any{"migratable": false}); err != nil {
			return a, err
		}
		if a.PhysBits, err = physBits(); err != nil {
			return a, err
		}
	}
	a.Models = map[string]hostcpu.Props{}
	for _, d := range a.Definitions {
		if len(d.Unavailable) > 0 || len(a.Models) >= maxModels {
			continue
		}
		if a.Models[d.Name], err = expand(ctx, client, d.Name, nil); err != nil {
			return a, err
		}
	}
	return a, nil
}

// expand returns the model as QEMU's model base with properties.
func expand(ctx context.Context, client *qmp.Client, model string, props map[string]any) (hostcpu.Props, error) {
	type named struct {
		Name  string         `json:"name"`
		Props map[string]any `json:"props,omitempty"`
	}
	var raw json.RawMessage
	err := client.Execute(ctx, "query-cpu-model-expansion", map[string]any{"type": "static", "model": named{model, props}}, &raw)
	if err != nil {
		return nil, fmt.Errorf("ask for the CPU model %.64s: %w", model, err)
	}
	var reply struct{ Model named }
	numbers := json.NewDecoder(bytes.NewReader(raw))
	numbers.UseNumber()
	if err := numbers.Decode(&reply); err != nil {
		return nil, fmt.Errorf("read the CPU model %.64s: %w", model, err)
	}
	if reply.Model.Name != hostcpu.Base {
		return nil, fmt.Errorf("QEMU expands the CPU model %.64s to %.64q", model, reply.Model.Name)
	}
	return reply.Model.Props, nil
}

// whole completes the expansion of max by what the machine's CPU, which is max, has: QEMU 11.1 expands its family,
// model and stepping to 0.
func whole(ctx context.Context, client *qmp.Client, max hostcpu.Props) error {
	cpus, err := client.QueryCPUsFast(ctx)
	if err != nil {
		return fmt.Errorf("find the emulated CPU: %w", err)
	}
	if len(cpus) == 0 {
		return errors.New("QEMU tells of no emulated CPU")
	}
	for _, property := range []string{"family", "model", "stepping"} {
		var n json.Number
		if err := client.Execute(ctx, "qom-get", map[string]string{"path": cpus[0].QOMPath, "property": property}, &n); err != nil {
			return fmt.Errorf("ask for the emulated CPU's %s: %w", property, err)
		}
		max[property] = n
	}
	return nil
}

// physBits returns the width of the node's physical addresses.
func physBits() (int, error) {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return 0, fmt.Errorf("read the width of addresses: %w", err)
	}
	return ReadPhysBits(string(text))
}

// ReadPhysBits reads the width of physical addresses in a /proc/cpuinfo.
func ReadPhysBits(cpuinfo string) (int, error) {
	for line := range strings.Lines(cpuinfo) {
		if value, ok := strings.CutPrefix(line, "address sizes"); ok {
			var bits int
			if _, err := fmt.Sscanf(strings.TrimLeft(value, "\t :"), "%d bits physical", &bits); err != nil || bits < 32 || bits > 52 {
				return 0, fmt.Errorf("read the width of addresses: %.64q", line)
			}
			return bits, nil
		}
	}
	return 0, errors.New("/proc/cpuinfo tells of no address sizes")
}

// tail keeps the start of what QEMU writes.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	const limit = 512
	t.kept = append(t.kept, p[:min(len(p), limit-len(t.kept))]...)
	return len(p), nil
}

func (t *tail) text() string {
	return strings.ToValidUTF8(strings.TrimSpace(strings.ReplaceAll(string(t.kept), "\n", "; ")), "")
}
