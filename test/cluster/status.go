package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"text/tabwriter"
	"time"
)

// ErrNotUp is the error of functions that need a running cluster.
var ErrNotUp = errors.New("cluster is not up")

// running loads the plan and the state of a cluster that must be up.
func running(dir string) (Plan, *State, error) {
	state, err := loadState(filepath.Join(dir, "state.json"))
	if err != nil {
		return Plan{}, nil, err
	}
	if state == nil {
		return Plan{}, nil, fmt.Errorf("%w: no state.json in %s", ErrNotUp, dir)
	}
	if state.Off {
		return Plan{}, nil, fmt.Errorf("%w: its power was cut; %s", ErrNotUp, state.hint())
	}
	plan, err := NewPlan(state.Name, dir, state.Index, state.NodeCount, state.Families)
	return plan, state, err
}

// Status prints what runs, with its memory, and fails if anything is dead.
func Status(ctx context.Context, dir string, out io.Writer) error {
	plan, state, err := running(dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "cluster     %s (index %d, pods %s, services %s)\nkubeconfig  %s\nAPI server  %s\nlogs        %s\n\n",
		state.Name, state.Index, plan.Pods, plan.Services, plan.Kubeconfig(), plan.APIURL(), plan.logs())
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PROCESS\tPID\tSTATE\tPSS")
	var total uint64
	for _, p := range append(append([]Process{}, state.Processes...), state.Services...) {
		if !p.Alive() {
			fmt.Fprintf(table, "%s\t%d\tdead\t\n", p.Name, p.PID)
			continue
		}
		memory, err := p.proportionalMemory()
		if err != nil {
			return err
		}
		total += memory
		fmt.Fprintf(table, "%s\t%d\trunning\t%d MiB\n", p.Name, p.PID, memory>>20)
	}
	fmt.Fprintf(table, "all\t\t\t%d MiB\n\n", total>>20)
	if dead := state.dead(); len(dead) > 0 {
		table.Flush()
		return fmt.Errorf("find all processes of cluster %q running: %d are dead", state.Name, len(dead))
	}
	fmt.Fprintln(table, "NODE\tADDRESS\tPODS\tREADY\tKUBELET\tRUNTIME")
	api, err := plan.apiClient()
	if err != nil {
		return err
	}
	for _, n := range plan.Nodes {
		info, err := api.node(ctx, n.Name)
		if err != nil {
			table.Flush()
			return fmt.Errorf("ask for %s: %w", n.Name, err)
		}
		ready, why := info.ready(time.Time{})
		word := "yes"
		if !ready {
			word = "no: " + why
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, n.Address, n.Pods, word, info.Status.NodeInfo.Kubelet, info.Status.NodeInfo.Runtime)
	}
	return table.Flush()
}

// LoadImages imports docker-archive or OCI tar files into every node.
func LoadImages(ctx context.Context, dir string, files []string, out io.Writer) error {
	_, state, err := running(dir)
	if err != nil {
		return err
	}
	say := NewProgress(out)
	nodes, _, _ := state.byKind()
	for _, file := range files {
		for _, init := range nodes {
			if err := importImage(ctx, init, file); err != nil {
				return err
			}
			say.Line("%s: loaded %s", init.Name, file)
		}
	}
	return nil
}

// importImage hands the file over as standard input: its path may not exist
// inside the node.
func importImage(ctx context.Context, init Process, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("open image: %w", err)
	}
	defer f.Close()
	cmd := exec.CommandContext(ctx, innerBin+"/ctr", "--address", criSocket, "--namespace", "k8s.io", "images", "import", "-")
	cmd.Stdin = f
	var printed limitedBuffer
	cmd.Stdout, cmd.Stderr = &printed, &printed
	if err := startInside(init, cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("load image %s into %s: %w: %s", file, init.Name, err, printed.tail())
	}
	return nil
}
