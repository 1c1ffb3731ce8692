package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/kubeqemu/kubeqemu/qemuargs/golden"
)

func goldenCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "golden FOLDER|FILE",
		Short: "Hold manifests against the QEMU arguments that were recorded of them",
		Long: `golden holds the manifests of a file, or of a folder and the folders below, against their goldens: web.yaml against web.args, beside it.
It prints what differs, device by device, and says whether the guest sees the difference. With --update it writes the goldens.`,
		Example: `  qemuargs golden --update manifests/   # the first time, and to accept a change
  qemuargs golden manifests/            # in CI: exit code 1 if anything differs`,
		Args: wrong(cobra.ExactArgs(1)),
	}
	host := addHostFlag(c, "host", hostHelp)
	arch := addArchFlag(c, archHelp)
	update := c.Flags().Bool("update", false, "write the goldens, and remove those without a manifest")
	c.RunE = func(c *cobra.Command, names []string) error {
		if *update {
			changed, err := golden.Update(names[0], host.WithGuests(arch.String()))
			for _, file := range changed {
				done := "wrote"
				if _, err := os.Stat(file); err != nil {
					done = "removed"
				}
				fmt.Fprintln(c.OutOrStdout(), done, file)
			}
			return err
		}
		results, err := golden.Check(names[0], host.WithGuests(arch.String()))
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
compared by kind, namespace and name; where each side has a single object, the two are compared.`,
		Example: `  qemuargs diff old.yaml new.yaml
  qemuargs diff --host kvm-7.2 --to kvm-11.1 vm.yaml vm.yaml`,
		Args: wrong(cobra.ExactArgs(2)),
	}
	from := addHostFlag(c, "host", hostHelp)
	to := addHostFlag(c, "to", "the host of B, where it is not that of A")
	arch := addArchFlag(c, archHelp)
	c.RunE = func(c *cobra.Command, names []string) error {
		if !c.Flags().Changed("to") {
			to.Host = from.Host
		}
		results, err := golden.Compare(names[0], from.WithGuests(arch.String()), names[1], to.WithGuests(arch.String()))
		if err != nil {
			return err
		}
		return show(results, c.OutOrStdout())
	}
	return c
}

// show prints differences, which are an error.
func show(results []golden.Result, out io.Writer) error {
	for _, r := range results {
		fmt.Fprint(out, r)
	}
	if len(results) > 0 {
		return errDiffers
	}
	return nil
}
