package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

func schemaCommand() *cobra.Command {
	var qemu, output string
	var list bool
	c := &cobra.Command{
		Use:   "schema",
		Short: "Capture what a QEMU takes: its devices, machine types, CPU models and QAPI types",
		Long: `schema starts a QEMU without a machine, asks it what it takes, and writes the answers to a file for "qemuargs check".
Three releases are in this program already, of Debian's builds for amd64 and for arm64; --list names them.`,
		Example: `  qemuargs schema --list
  qemuargs schema --qemu /usr/bin/qemu-system-x86_64 --output ours.json.gz
  qemuargs schema show virtio-blk-pci`,
		Args: wrong(cobra.NoArgs),
	}
	c.Flags().StringVar(&qemu, "qemu", "qemu-system-x86_64", "the QEMU binary to ask")
	c.Flags().StringVarP(&output, "output", "o", "", "the file to write; standard output where it is none, unless that is a terminal")
	c.Flags().BoolVar(&list, "list", false, "list the schemas that are in this program")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if list {
			return listSchemas(c.OutOrStdout())
		}
		if out, ok := c.OutOrStdout().(*os.File); ok && output == "" && term.IsTerminal(int(out.Fd())) {
			return &usageError{c.CommandPath(), errors.New("a schema is compressed, and no text for a terminal: name a file with --output")}
		}
		s, err := capture(c.Context(), qemu)
		if err != nil {
			return err
		}
		file, err := schema.Encode(s)
		if err != nil {
			return err
		}
		if output == "" {
			_, err = c.OutOrStdout().Write(file)
			return err
		}
		return os.WriteFile(output, file, 0o644)
	}
	c.AddCommand(showCommand())
	return c
}

func listSchemas(out io.Writer) error {
	var all []*schema.Schema
	for _, arch := range schema.Architectures() {
		of, err := schema.All(arch)
		if err != nil {
			return err
		}
		all = append(all, of...)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RELEASE\tQEMU\tPACKAGE\tARCH\tDEVICES\tMACHINE TYPES\tCPU MODELS")
	for _, s := range all {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%d\n", s.Release(), s.Version, s.Package, s.Arch, len(s.Devices), len(s.Machines), len(s.CPUs))
	}
	return table.Flush()
}

func showCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "show DEVICE",
		Short: "Show the properties of a device",
		Long:  `show prints the properties of a device with their types and, where QEMU names them, their values.`,
		Example: `  qemuargs schema show virtio-blk-pci
  qemuargs schema show --schema 7.2 isa-serial
  qemuargs schema show --arch arm64 tpm-tis-device`,
		Args: wrong(cobra.ExactArgs(1)),
	}
	name, arch := addSchemaFlag(c), addArchFlag(c, "architecture of the guests of a release's QEMU")
	c.ValidArgsFunction = func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		s, err := openSchema(c, *name, arch.arch())
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return slices.Sorted(maps.Keys(s.Devices)), cobra.ShellCompDirectiveNoFileComp
	}
	c.RunE = func(c *cobra.Command, names []string) error {
		s, err := openSchema(c, *name, arch.arch())
		if err != nil {
			return err
		}
		return showDevice(s, names[0], c.OutOrStdout())
	}
	return c
}

func showDevice(s *schema.Schema, name string, out io.Writer) error {
	full, d, ok := s.Device(name)
	if !ok {
		return fmt.Errorf("QEMU %s has no device %q", s.Release(), name)
	}
	list := s.List(d.List)
	if list == nil {
		return fmt.Errorf("QEMU %s could not be asked for the properties of %s when it was captured", s.Release(), full)
	}
	fmt.Fprintf(out, "# %s of QEMU %s", full, s.Version)
	if d.Bus != "" {
		fmt.Fprintf(out, ", on a bus of type %s", d.Bus)
	}
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, property := range slices.Sorted(maps.Keys(list)) {
		fmt.Fprintf(table, "%s\t%s\n", property, strings.TrimSpace(list[property]+"  "+strings.Join(s.Enums[list[property]], "|")))
	}
	return table.Flush()
}

// addSchemaFlag adds --schema.
func addSchemaFlag(c *cobra.Command) *string {
	releases := schema.Releases()
	name := c.Flags().String("schema", releases[len(releases)-1], "release of QEMU ("+strings.Join(releases, ", ")+"), or a file that qemuargs schema wrote")
	complete(c, "schema", releases)
	return name
}

// target is QEMU's name of the architecture.
func target(arch qemuargs.Arch) string { return strings.TrimPrefix(arch.Program(), programPrefix) }

const programPrefix = "qemu-system-"

// openSchema is the schema that --schema names, of a release that for guests of an architecture. A name that is neither a release
// nor a file is wrong usage.
func openSchema(c *cobra.Command, name string, arch qemuargs.Arch) (*schema.Schema, error) {
	if slices.Contains(schema.Releases(), name) {
		return schema.Embedded(target(arch), name)
	}
	file, err := readBounded(name, schema.MaxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &usageError{c.CommandPath(), fmt.Errorf("%q is neither a release of QEMU (%s) nor a file", name, strings.Join(schema.Releases(), ", "))}
	case err != nil:
		return nil, fmt.Errorf("read schema: %w", err)
	}
	s, err := schema.Decode(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// readBounded reads a regular file of a length up to limit, in bytes.
func readBounded(name string, limit int64) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is longer than %d bytes", name, limit)
	}
	return data, err
}
