//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

// Bounds of a capture. A QEMU answers all within 10 seconds; one of another architecture, whose own instructions are emulated too,
// takes minutes on a busy machine.
const (
	captureTime = 10 * time.Minute
	maxHelp     = 1 << 20 // bytes of what QEMU prints for -help
	maxStderr   = 4 << 10 // bytes of what it complains about
)

// capture asks a QEMU binary for its schema.
func capture(ctx context.Context, path string) (*schema.Schema, error) {
	ctx, cancel := context.WithTimeout(ctx, captureTime)
	defer cancel()
	help, err := helpOf(ctx, path)
	if err != nil {
		return nil, err
	}
	var running *process
	defer func() { running.end() }()
	s, err := schema.Capture(func() (schema.Ask, error) {
		running.end()
		running, err = start(ctx, path)
		if err != nil {
			return nil, err
		}
		return func(command string, arguments, result any) error { return running.ask(ctx, command, arguments, result) }, nil
	}, help)
	if err != nil {
		return nil, fmt.Errorf("capture the schema of %s: %w%s", path, err, running.complaint())
	}
	return s, nil
}

// helpOf is what QEMU prints for -help.
func helpOf(ctx context.Context, path string) (string, error) {
	out, stderr := &capped{limit: maxHelp}, &capped{limit: maxStderr}
	cmd := command(ctx, path, "-help")
	cmd.Stdout, cmd.Stderr = out, stderr
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(stderr.String()); text != "" {
			return "", fmt.Errorf("run %s -help: %w: %s", path, err, text)
		}
		return "", fmt.Errorf("run %s -help: %w", path, err)
	}
	return out.String(), nil
}

func command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.SysProcAttr = endsWithUs()
	cmd.WaitDelay = time.Second
	return cmd
}

// capped is what a program wrote, up to a limit; the rest is lost.
type capped struct {
	bytes.Buffer
	limit int
}

func (c *capped) Write(p []byte) (int, error) {
	c.Buffer.Write(p[:min(len(p), max(0, c.limit-c.Len()))])
	return len(p), nil
}

// process is a QEMU without a machine, and its monitor.
type process struct {
	cmd    *exec.Cmd
	client *qmp.Client
	stderr *capped
}

func start(ctx context.Context, path string) (*process, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("open the monitor's socket: %w", err)
	}
	p := &process{stderr: &capped{limit: maxStderr}, client: qmp.New(conn.(*net.UnixConn), qmp.Options{Timeout: captureTime})}
	// QEMU 11.1 warns of -mon, and all releases take it.
	p.cmd = command(ctx, path, "-machine", "none", "-nodefaults", "-no-user-config", "-display", "none", "-S",
		"-chardev", "socket,id=qmp,fd=3", "-mon", "chardev=qmp,mode=control")
	p.cmd.ExtraFiles, p.cmd.Stderr = []*os.File{theirs}, p.stderr
	if err := p.cmd.Start(); err != nil {
		p.client.Close()
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	theirs.Close()
	if err := p.client.Connect(); err != nil {
		p.end()
		return nil, fmt.Errorf("start %s: %w%s", path, err, p.complaint())
	}
	return p, nil
}

// socketPair makes two connected sockets, of which no program inherits one that it is not given.
func socketPair() (ours, theirs *os.File, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make the monitor's sockets: %w", err)
	}
	syscall.CloseOnExec(fds[0])
	syscall.CloseOnExec(fds[1])
	return os.NewFile(uintptr(fds[0]), "monitor"), os.NewFile(uintptr(fds[1]), "monitor of QEMU"), nil
}

// ask is a schema.Ask.
func (p *process) ask(ctx context.Context, command string, arguments, result any) error {
	err := p.client.Execute(ctx, command, arguments, result)
	switch {
	case errors.As(err, new(*qmp.Error)):
		return fmt.Errorf("%w: %w", schema.ErrRefused, err)
	case errors.Is(err, qmp.ErrClosed):
		return fmt.Errorf("%w: %w", schema.ErrEnded, err)
	}
	return err
}

// end ends the process, if there is one.
func (p *process) end() {
	if p == nil {
		return
	}
	p.client.Close()
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// complaint is what QEMU wrote to standard error, as the end of an error; call it once QEMU has ended.
func (p *process) complaint() string {
	if p == nil {
		return ""
	}
	p.end()
	if text := strings.TrimSpace(p.stderr.String()); text != "" {
		return ": " + text
	}
	return ""
}
