package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/compare"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// form is how render prints a machine.
type form struct{ shell, json, machine bool }

func renderCommand() *cobra.Command {
	var f form
	c := &cobra.Command{
		Use:   "render [FILE|FOLDER]...",
		Short: "Print the QEMU arguments of manifests",
		Long: `render prints the QEMU arguments of each VirtualMachineInstance in the files, and of each that a VirtualMachine, ReplicaSet or pool
would make: one argument a line. Of a folder it reads .yaml, .yml and .json files. - is standard input.`,
		Example: `  qemuargs render vm.yaml
  qemuargs render --shell --host tcg-7.2 manifests/ | less
  kustomize build . | qemuargs render --json -`,
	}
	files := addFiles(c)
	host := addHostFlag(c, "host", hostHelp)
	arch := addArchFlag(c, archHelp)
	c.Flags().BoolVar(&f.shell, "shell", false, "print a command that can be pasted into a shell")
	c.Flags().BoolVar(&f.json, "json", false, "print one JSON object for each machine: object, file and args")
	c.Flags().BoolVar(&f.machine, "machine", false, "print the resolved Machine as JSON")
	c.RunE = func(c *cobra.Command, args []string) error {
		if f.shell && f.json || f.shell && f.machine || f.json && f.machine {
			return &usageError{c.CommandPath(), errors.New("--shell, --json and --machine exclude each other")}
		}
		names, err := files.names(c, args)
		if err != nil {
			return err
		}
		instances, err := open(c, names)
		if err != nil {
			return err
		}
		warn(c, instances...)
		return f.renderAll(instances, host.WithGuests(arch.String()), c.OutOrStdout())
	}
	return c
}

// warn writes to standard error what virt-api would warn of.
func warn(c *cobra.Command, instances ...manifest.Instance) {
	for _, i := range instances {
		for _, text := range i.Warnings() {
			fmt.Fprintf(c.ErrOrStderr(), "%s: %s: warning: %s\n", i.Document.File, i.Object(), printable(text))
		}
	}
}

// renderAll prints nothing unless all machines can be resolved.
func (f form) renderAll(instances []manifest.Instance, host manifest.Host, out io.Writer) error {
	var machines []*qemuargs.Machine
	var problems []error
	for _, i := range instances {
		machine, err := i.Machine(host)
		machines, problems = append(machines, machine), append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	for n, i := range instances {
		if n > 0 && !f.json && !f.machine {
			fmt.Fprintln(out)
		}
		if err := f.render(i, machines[n], len(instances) > 1, out); err != nil {
			return err
		}
	}
	return nil
}

// rendered is a machine as --json prints it.
type rendered struct {
	Object string   `json:"object"`
	File   string   `json:"file"`
	Args   []string `json:"args"`
}

// render prints one machine. heading says that there are others.
func (f form) render(i manifest.Instance, m *qemuargs.Machine, heading bool, out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	switch {
	case f.machine:
		encoder.SetIndent("", "  ")
		return encoder.Encode(m)
	case f.json:
		return encoder.Encode(rendered{Object: i.Object(), File: i.Document.File, Args: qemuargs.Strings(m.Args())})
	}
	if heading {
		fmt.Fprintf(out, "# %s\n", i.Object())
	}
	if f.shell {
		_, err := io.WriteString(out, qemuargs.Quote(m.Arch.Program(), m.Args()))
		return err
	}
	for _, a := range compare.Arguments(m.Args()) {
		if _, err := fmt.Fprintln(out, a); err != nil {
			return err
		}
	}
	return nil
}
