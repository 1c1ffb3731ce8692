package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/golden"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/live"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

func goldenCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "golden FILE|FOLDER",
		Short: "Hold manifests against the QEMU arguments that were recorded of them",
		Long: `golden holds the manifests of a file, or of a folder and the folders below, against their goldens: web.yaml against web.args, beside it.
It prints what differs, device by device, and says whether the guest sees the difference. With --update it writes the goldens.`,
		Example: `  qemuargs golden --update manifests/   # the first time, and to accept a change
  qemuargs golden manifests/            # in CI: exit code 1 if anything differs`,
	}
	files := addFiles(c)
	host := addHostFlag(c, "host", hostHelp)
	arch := addArchFlag(c, archHelp)
	update := c.Flags().Bool("update", false, "write the goldens, and remove those without a manifest")
	c.RunE = func(c *cobra.Command, args []string) error {
		names, err := files.exactly(c, args, 1)
		if err != nil {
			return err
		}
		if names[0] == manifest.Stdin {
			return &usageError{c.CommandPath(), errors.New("a golden stands beside its manifest: name a file or a folder")}
		}
		side, err := openSide(c, names[0], host.WithGuests(arch.String()))
		if err != nil {
			return err
		}
		if *update {
			changed, err := golden.Update(side)
			for _, file := range changed {
				done := "wrote"
				if _, err := os.Stat(file); err != nil {
					done = "removed"
				}
				fmt.Fprintln(c.OutOrStdout(), done, file)
			}
			return err
		}
		results, err := golden.Check(side)
		if err != nil {
			return err
		}
		if len(results) > 0 {
			fmt.Fprintln(c.ErrOrStderr(), "the goldens differ; to accept: qemuargs golden --update", names[0])
		}
		return show(results, c.OutOrStdout())
	}
	return c
}

func diffCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare the QEMU arguments of two manifests, or of two hosts",
		Long: `diff compares the QEMU arguments of two files or folders, object by object, and prints what differs, device by device. Objects are
compared by kind, namespace and name; where each side has a single object, the two are compared. - is standard input.

With --live it prints what applying B does to the running guest of A: the commands that QEMU gets over QMP, part by
part, and what no command changes, which needs a restart.`,
		Example: `  qemuargs diff old.yaml new.yaml
  kustomize build . | qemuargs diff old.yaml -
  qemuargs diff --live old.yaml new.yaml
  qemuargs diff --host kvm-7.2 --to kvm-11.1 vm.yaml vm.yaml`,
	}
	files := addFiles(c)
	from := addHostFlag(c, "host", hostHelp)
	to := addHostFlag(c, "to", "the host of B, where it is not that of A")
	arch := addArchFlag(c, archHelp)
	running := c.Flags().Bool("live", false, "print what becomes of A's running guest, and what needs a restart")
	c.RunE = func(c *cobra.Command, args []string) error {
		names, err := files.exactly(c, args, 2)
		if err != nil {
			return err
		}
		if *running {
			if c.Flags().Changed("to") {
				return &usageError{c.CommandPath(), errors.New("a running guest stays on its host: --live takes no --to")}
			}
			return diffLive(c, names, from.WithGuests(arch.String()))
		}
		if !c.Flags().Changed("to") {
			to.Host = from.Host
		}
		a, err := openSide(c, names[0], from.WithGuests(arch.String()))
		if err != nil {
			return err
		}
		b, err := openSide(c, names[1], to.WithGuests(arch.String()))
		if err != nil {
			return err
		}
		results, err := golden.Compare(a, b)
		if err != nil {
			return err
		}
		return show(results, c.OutOrStdout())
	}
	return c
}

// diffLive prints what becomes of the guests of one file or folder when another is applied.
func diffLive(c *cobra.Command, names []string, host manifest.Host) error {
	var sides [2]manifest.Set
	for i, name := range names {
		set, err := manifest.Open([]string{name}, c.InOrStdin())
		if err != nil {
			return err
		}
		warnAll(c, set.Warnings())
		sides[i] = set
	}
	results, err := live.Compare(sides[0], sides[1], host)
	if err != nil {
		return err
	}
	return show(results, c.OutOrStdout())
}

// openSide opens a file or folder, and warns of what nobody reads there.
func openSide(c *cobra.Command, name string, host manifest.Host) (golden.Side, error) {
	side, err := golden.Open(name, host, c.InOrStdin())
	warnAll(c, side.Warnings())
	return side, err
}

// show prints differences, which are an error.
func show[R fmt.Stringer](results []R, out io.Writer) error {
	for _, r := range results {
		fmt.Fprint(out, r)
	}
	if len(results) > 0 {
		return errDiffers
	}
	return nil
}
