// Command cluster brings up, inspects and takes down a one-machine Kubernetes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/kubeqemu/kubeqemu/test/cluster"
	"github.com/spf13/cobra"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == cluster.NodeInitCommand {
		exit(cluster.RunNodeInit(os.NewFile(3, "requests"), os.NewFile(4, "answers")))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(root().ExecuteContext(ctx))
}

// exit passes on the status of a command that ran inside a node.
func exit(err error) {
	if inside := new(exec.ExitError); errors.As(err, &inside) && inside.ExitCode() > 0 {
		os.Exit(inside.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// place is a cluster's name and folder, from flags or their defaults.
type place struct{ name, dir string }

func (p *place) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.name, "name", "kubeqemu", "the cluster's `name`")
	cmd.Flags().StringVar(&p.dir, "dir", "", "the cluster's `folder` (default <repository>/_output/cluster/NAME)")
}

// resolve fills in the folder and makes it absolute.
func (p *place) resolve() error {
	var err error
	p.dir, err = orInRepository(p.dir, "_output", "cluster", p.name)
	return err
}

func orInRepository(path string, elem ...string) (string, error) {
	if path != "" {
		return filepath.Abs(path)
	}
	top, err := repository()
	if err != nil {
		return "", err
	}
	return filepath.Join(append([]string{top}, elem...)...), nil
}

// repository is the nearest folder above the working one that holds this
// program's module.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "test", "cluster", "go.mod")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("find the repository: run this inside it, or give the folders by flags")
		}
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "cluster",
		Short:         "A real Kubernetes on this machine alone, for tests and demonstrations",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.AddCommand(buildCommand(), upCommand(), downCommand(), checkCommand(), statusCommand(),
		loadImageCommand(), packImageCommand(), enterCommand(), multusCommand(), stopCommand(), startCommand(), powerCutCommand(), powerOnCommand(),
		plugCommand("unplug", "Take a node off the network; its programs and containers go on", true), plugCommand("plug", "Put a node back on the network", false))
	return cmd
}

func buildCommand() *cobra.Command {
	var output, name string
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build Kubernetes, containerd and kubectl from source",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			top, err := repository()
			if err != nil {
				return err
			}
			release, err := cluster.ParseRelease(name)
			if err != nil {
				return err
			}
			folder := "bin"
			if name != "" {
				folder += "-" + name
			}
			output, err := orInRepository(output, "_output", folder)
			if err != nil {
				return err
			}
			return cluster.Build(cmd.Context(), release, filepath.Join(top, "test", "cluster"), output, os.Stdout)
		},
	}
	cmd.Flags().StringVar(&output, "output", "",
		"the `folder` for the programs (default <repository>/_output/bin, or bin-RELEASE)")
	cmd.Flags().StringVar(&name, "release", "",
		"an older `release` of Kubernetes: 1.33, or 1.31 with containerd 1.7; `cluster up --bin` takes its folder")
	return cmd
}

func upCommand() *cobra.Command {
	var p place
	var bin, ips string
	var index, nodes int
	var ownCPUs bool
	var emulates string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring a cluster up; it goes on in the background",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.resolve(); err != nil {
				return err
			}
			bin, err := orInRepository(bin, "_output", "bin")
			if err != nil {
				return err
			}
			families, err := cluster.ParseFamilies(ips)
			if err != nil {
				return err
			}
			return cluster.Up(cmd.Context(), cluster.Options{Name: p.name, Dir: p.dir, Bin: bin, Index: index, Nodes: nodes,
				Families: families, OwnCPUs: ownCPUs, Emulates: emulates}, os.Stdout)
		},
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&bin, "bin", "", "the `folder` that `cluster build` filled (default <repository>/_output/bin)")
	cmd.Flags().IntVar(&index, "index", -1, "which of 64 address ranges to use; -1: the first free one")
	cmd.Flags().StringVar(&ips, "ips", "ipv4", "the address families of nodes, pods and Services: ipv4, dual (IPv4 first) or ipv6")
	cmd.Flags().IntVar(&nodes, "nodes", 1, "the number of nodes, up to 4")
	cmd.Flags().StringVar(&emulates, "emulate", "",
		"the `release` of Kubernetes whose APIs and feature gates the API server has, such as 1.34: no image volumes")
	cmd.Flags().BoolVar(&ownCPUs, "own-cpus", false, "the kubelets give pods CPUs of their own (CPU manager policy static), all but one of the machine's")
	return cmd
}

func downCommand() *cobra.Command {
	var p place
	var keepLogs bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End a cluster and remove all it made",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.resolve(); err != nil {
				return err
			}
			return cluster.Down(cmd.Context(), p.name, p.dir, keepLogs, os.Stdout)
		},
	}
	p.flags(cmd)
	cmd.Flags().BoolVar(&keepLogs, "keep-logs", false, "leave the folder's logs")
	return cmd
}

func checkCommand() *cobra.Command {
	var p place
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Fail, and say what there is, if anything is left of a cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.resolve(); err != nil {
				return err
			}
			return cluster.Check(p.name, p.dir, os.Stdout)
		},
	}
	p.flags(cmd)
	return cmd
}

func statusCommand() *cobra.Command {
	var p place
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show a cluster's processes, memory, versions and kubeconfig",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.resolve(); err != nil {
				return err
			}
			return cluster.Status(cmd.Context(), p.dir, os.Stdout)
		},
	}
	p.flags(cmd)
	return cmd
}

func loadImageCommand() *cobra.Command {
	var p place
	cmd := &cobra.Command{
		Use:   "load-image FILE...",
		Short: "Load docker-archive or OCI tar files into every node",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			if err := p.resolve(); err != nil {
				return err
			}
			return cluster.LoadImages(cmd.Context(), p.dir, files, os.Stdout)
		},
	}
	p.flags(cmd)
	return cmd
}

func packImageCommand() *cobra.Command {
	var output string
	var entrypoint []string
	cmd := &cobra.Command{
		Use:   "pack-image REFERENCE SOURCE:PATH...",
		Short: "Make a one-layer image of files, for load-image",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			image := cluster.Image{Reference: args[0], Entrypoint: entrypoint}
			for _, arg := range args[1:] {
				source, path, ok := strings.Cut(arg, ":")
				if !ok {
					return fmt.Errorf("read argument %q: want SOURCE:PATH", arg)
				}
				image.Files = append(image.Files, cluster.ImageFile{Source: source, Path: path})
			}
			out, err := os.Create(output)
			if err != nil {
				return err
			}
			return errors.Join(image.WriteArchive(out), out.Close())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "image.tar", "the `file` to write")
	cmd.Flags().StringSliceVar(&entrypoint, "entrypoint", nil, "the program and its arguments, by commas")
	return cmd
}

func enterCommand() *cobra.Command {
	var p place
	var node int
	cmd := &cobra.Command{
		Use:   "enter -- COMMAND [ARGUMENT...]",
		Short: "Run a command in a node's network, PID and mount namespaces",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.resolve(); err != nil {
				return err
			}
			return cluster.Enter(cmd.Context(), p.dir, node, args)
		},
	}
	p.flags(cmd)
	cmd.Flags().IntVar(&node, "node", 1, "which node, from 1")
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func multusCommand() *cobra.Command {
	var p place
	var off bool
	cmd := &cobra.Command{
		Use:   "multus",
		Short: "Have Multus connect the pods that are made from now on, on all nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.resolve(); err != nil {
				return err
			}
			if off {
				return cluster.RemoveMultus(cmd.Context(), p.dir)
			}
			return cluster.InstallMultus(cmd.Context(), p.dir)
		},
	}
	p.flags(cmd)
	cmd.Flags().BoolVar(&off, "off", false, "the cluster's own plugin connects the pods again, and Multus's objects go")
	return cmd
}

func stopCommand() *cobra.Command {
	var p place
	cmd := &cobra.Command{
		Use:   "stop PROGRAM",
		Short: "Kill a program of the control plane, such as kube-apiserver, or the kubelet or containerd of the only node",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.resolve(); err != nil {
				return err
			}
			return cluster.Stop(cmd.Context(), p.dir, args[0])
		},
	}
	p.flags(cmd)
	return cmd
}

func startCommand() *cobra.Command {
	var p place
	cmd := &cobra.Command{
		Use:   "start PROGRAM",
		Short: "Start a program again that was stopped, and wait until it serves",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.resolve(); err != nil {
				return err
			}
			return cluster.Start(cmd.Context(), p.dir, args[0], os.Stdout)
		},
	}
	p.flags(cmd)
	return cmd
}

func powerCutCommand() *cobra.Command {
	var p place
	var node int
	cmd := &cobra.Command{
		Use:   "power-cut",
		Short: "Kill all of a cluster at once, as a power cut does; power-on brings it back",
		Long: `Kill all of a cluster at once, as a power cut does; power-on brings it back.

Every process of the control plane and of the nodes, containers included, ends by
SIGKILL. What is in memory is gone: /run of the nodes, mounts, links, network
namespaces, cgroups, loop devices. Files stay: etcd's, /var/lib and /var/log of the
nodes, logs. Unlike after a real power cut, what was written and not synced is
still there, and the kernel's boot ID is the same.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.resolve(); err != nil {
				return err
			}
			if node > 0 {
				return cluster.CutNode(cmd.Context(), p.dir, node, os.Stdout)
			}
			return cluster.PowerCut(cmd.Context(), p.dir, os.Stdout)
		},
	}
	p.flags(cmd)
	cmd.Flags().IntVar(&node, "node", 0, "cut the power of this node alone, from 1; 0: of all, and of the control plane")
	return cmd
}

func plugCommand(name, short string, off bool) *cobra.Command {
	var p place
	var node int
	cmd := &cobra.Command{
		Use:   name,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.resolve(); err != nil {
				return err
			}
			return cluster.Unplug(cmd.Context(), p.dir, node, off)
		},
	}
	p.flags(cmd)
	cmd.Flags().IntVar(&node, "node", 0, "which node, from 1 (required)")
	return cmd
}

func powerOnCommand() *cobra.Command {
	var p place
	var noWait bool
	var node int
	cmd := &cobra.Command{
		Use:   "power-on",
		Short: "Start a cluster again after power-cut, and wait until its nodes are ready",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.resolve(); err != nil {
				return err
			}
			if node > 0 {
				return cluster.PowerOnNode(cmd.Context(), p.dir, node, !noWait, os.Stdout)
			}
			return cluster.PowerOn(cmd.Context(), p.dir, !noWait, os.Stdout)
		},
	}
	p.flags(cmd)
	cmd.Flags().IntVar(&node, "node", 0, "the node whose power alone was cut, from 1; 0: all was cut")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return when the API server answers, whether or not the nodes are ready")
	return cmd
}
