package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// startInside starts the command in the network, PID and mount namespaces of the node whose
// PID 1 is init. Namespaces belong to threads: the thread that enters them starts the command,
// and then ends with its goroutine.
func startInside(init Process, cmd *exec.Cmd) error {
	var namespaces []*os.File
	for _, kind := range []string{"net", "pid", "mnt"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", init.PID, kind))
		if err != nil {
			return fmt.Errorf("open namespace of %s: %w", init.Name, err)
		}
		defer f.Close()
		namespaces = append(namespaces, f)
	}
	if !init.Alive() { // asked after opening: another process may have the PID by now
		return fmt.Errorf("enter %s: it does not run", init.Name)
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		result <- func() error {
			// A mount namespace is refused to threads that share their
			// root and working folder.
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("unshare working folder: %w", err)
			}
			for _, f := range namespaces {
				if err := unix.Setns(int(f.Fd()), 0); err != nil {
					return fmt.Errorf("enter %s of %s: %w", f.Name(), init.Name, err)
				}
			}
			cmd.Dir = "/"
			return cmd.Start()
		}()
	}()
	return <-result
}

// enterQuiet runs a command inside and puts what it printed into the error.
func enterQuiet(ctx context.Context, init Process, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := startInside(init, cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("run %s in %s: %w: %s", strings.Join(cmd.Args, " "), init.Name, err, strings.TrimSpace(out.String()))
	}
	return nil
}

// Enter runs a command with the caller's standard streams inside a node
// (counted from 1) of the running cluster. The command's exit status is in
// the *exec.ExitError it returns.
func Enter(ctx context.Context, dir string, node int, args []string) error {
	_, state, err := running(dir)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("node-%d", node)
	init, ok := state.process(name)
	if !ok {
		return fmt.Errorf("find %s: the cluster has %d", name, state.NodeCount)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := startInside(init, cmd); err != nil {
		return err
	}
	return cmd.Wait()
}
