package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/explain"
)

func explainCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "explain FILE|FOLDER... [FIELD]...",
		Short: "Say what made each QEMU argument of manifests, or what a field makes",
		Long: `explain prints, for each QEMU argument and each of its properties, what made it: the field and the line of the manifest, the
instancetype, the preference, the default, the fact of the host, or the rule. Arguments are grouped by device.

With a field, explain prints the arguments and properties that the field makes. A field is a path of the API: devices.disks is short
for spec.template.spec.domain.devices.disks. An entry of a list is named by its number, disks[0], or by its name, disks[root].

An argument is a file or a folder if it has a slash, as in sizes/, or ends in .yaml, .yml or .json; - is standard input. Another argument
is a field. The value of -f is always a file or a folder.`,
		Example: `  qemuargs explain vm.yaml
  qemuargs explain vm.yaml devices.disks
  qemuargs explain vm.yaml instancetypes/ --host kvm-7.2 cpu.cores machine.type`,
	}
	files := addFiles(c)
	host := addHostFlag(c, "host", hostHelp)
	arch := addArchFlag(c, archHelp)
	asJSON := c.Flags().Bool("json", false, "print one JSON object for each machine: object, file and arguments")
	c.RunE = func(c *cobra.Command, args []string) error {
		var bare, fields []string
		for _, text := range args {
			if isFile(text) {
				bare = append(bare, text)
			} else {
				fields = append(fields, text)
			}
		}
		names, err := files.names(c, bare)
		if err != nil {
			return err
		}
		instances, err := open(c, names)
		if err != nil {
			return err
		}
		var machines []*explain.Machine
		var problems []error
		for _, i := range instances {
			m, err := explain.Of(i, host.WithGuests(arch.String()))
			machines, problems = append(machines, m), append(problems, err)
		}
		if err := errors.Join(problems...); err != nil {
			return err
		}
		return explainAll(machines, fields, *asJSON, c.OutOrStdout())
	}
	return c
}

// explainAll prints nothing unless each field is one of some machine's.
func explainAll(machines []*explain.Machine, fields []string, asJSON bool, out io.Writer) error {
	answers := make([][]explain.Answer, len(machines))
	for _, field := range fields {
		var problems []error
		for n, m := range machines {
			answer, err := m.Field(field)
			if err != nil {
				answer, problems = explain.Missing(field, err), append(problems, fmt.Errorf("%s: %w", m.Object, err))
			}
			answers[n] = append(answers[n], answer)
		}
		if unknown := new(explain.UnknownField); len(problems) == len(machines) && errors.As(problems[0], &unknown) {
			return &usageError{"qemuargs explain", unknown}
		} else if len(problems) == len(machines) {
			return errors.Join(problems...)
		}
	}
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for n, m := range machines {
		if asJSON {
			if err := encoder.Encode(m.Explained(answers[n])); err != nil {
				return err
			}
			continue
		}
		if len(machines) > 1 {
			fmt.Fprintf(out, "%s# %s\n", []string{"", "\n"}[min(n, 1)], m.Object)
		}
		if err := m.Write(out, answers[n]); err != nil {
			return err
		}
	}
	return nil
}
