package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/check"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

// errProblems ends check where it has printed an error.
var errProblems = errors.New("the arguments have errors")

func checkCommand() *cobra.Command {
	var argFiles []string
	c := &cobra.Command{
		Use:   "check [FILE|FOLDER]... [--args FILE]... [-- QEMU ARGUMENTS...]",
		Short: "Check QEMU's arguments against what a release of QEMU takes, without QEMU",
		Long: `check holds QEMU's arguments against a schema that "qemuargs schema" captured. It prints an error a line: unknown options,
devices and properties, values of a wrong type, machine types that are gone, ids that nothing has. What is deprecated is a
warning. The check knows only what the schema tells. QEMU can refuse arguments in which the check finds nothing.

The schemas in this program are of Debian's builds of QEMU for nodes of amd64 and of arm64. Another build of the same release may have
other devices and accelerators; "qemuargs schema" captures it. Arguments are checked with the schema of their guest's architecture: that
of the manifest's guest, that of the program's name, or that of --arch. The check ends after 200 errors of one QEMU.

The arguments come from manifests, from files (--args), or stand after "--". A file has a command for a shell, or one argument a
line, or is /proc/PID/cmdline.`,
		Example: `  qemuargs check manifests/
  qemuargs check --schema 7.2 --args manifests/web.args
  qemuargs check --schema 10.0 -- -machine q35 -device virtio-blk-pci,drive=d0
  qemuargs check --arch arm64 -- -machine virt,gic-version=3 -cpu max`,
	}
	files := addFiles(c)
	c.Flags().StringArrayVar(&argFiles, "args", nil, "file of arguments, or - for standard input")
	name, arch := addSchemaFlag(c), addArchFlag(c, archHelp+", and of arguments without a program's name")
	host := addHostFlag(c, "host", "host of the manifests, where it is not one with KVM and the schema's release: "+hostHelp)
	c.Flags().Lookup("host").DefValue = "" // the text tells what the default is
	c.RunE = func(c *cobra.Command, args []string) error {
		bare, words := args, []string(nil)
		if dash := c.ArgsLenAtDash(); dash >= 0 {
			bare, words = args[:dash], args[dash:]
		}
		manifests := slices.Concat(files.flagged, bare)
		if len(argFiles)+len(manifests)+len(words) == 0 {
			return &usageError{c.CommandPath(), errors.New("name manifests, a file of arguments, or arguments after --")}
		}
		k := &checks{c: c, name: *name, arch: arch.arch(), loaded: map[string]*releases{}}
		known, err := k.of(k.arch)
		if err != nil {
			return err
		}
		if !c.Flags().Changed("host") {
			if err := host.Set(manifest.DefaultHost + "-" + known.schema.Version); err != nil {
				return err
			}
		}
		problems := []error{k.manifests(manifests, host.WithGuests(arch.String()))}
		for _, file := range argFiles {
			problems = append(problems, k.file(file, c.InOrStdin()))
		}
		if len(words) > 0 {
			k.check("", words, known)
		}
		if err := errors.Join(problems...); err != nil {
			return err
		}
		if k.failed {
			return errProblems
		}
		return nil
	}
	return c
}

// checks are those of one run of the command.
type checks struct {
	c      *cobra.Command
	name   string        // of the schema
	arch   qemuargs.Arch // of arguments that do not say
	loaded map[string]*releases
	failed bool
}

// releases are a schema, and those of other releases.
type releases struct {
	schema *schema.Schema
	others []*schema.Schema
}

// of has the schemas for guests of an architecture. Where the schema is a file's, it is the same for all.
func (k *checks) of(arch qemuargs.Arch) (*releases, error) {
	if r := k.loaded[target(arch)]; r != nil {
		return r, nil
	}
	s, err := openSchema(k.c, k.name, arch)
	if err != nil {
		return nil, err
	}
	r := &releases{schema: s}
	if slices.Contains(schema.Architectures(), s.Arch) {
		if r.others, err = schema.All(s.Arch); err != nil {
			return nil, err
		}
	}
	k.loaded[target(arch)] = r
	return r, nil
}

// check prints the problems of one machine's arguments.
func (k *checks) check(title string, args []string, r *releases) {
	if title != "" {
		title += ": "
	}
	for _, p := range check.Arguments(args, r.schema, r.others...) {
		fmt.Fprintf(k.c.OutOrStdout(), "%s%s\n", title, p)
		k.failed = k.failed || !p.Warning
	}
}

// manifests checks the machines of manifests on a host: all that can be resolved. The error joins those of the others.
func (k *checks) manifests(names []string, host manifest.Host) error {
	if len(names) == 0 {
		return nil
	}
	instances, err := open(k.c, names)
	if err != nil {
		return err
	}
	warn(k.c, instances...)
	var problems []error
	for _, i := range instances {
		machine, err := i.Machine(host)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		r, err := k.of(machine.Arch)
		if err != nil {
			return err
		}
		if r.schema.Arch != target(machine.Arch) {
			problems = append(problems, fmt.Errorf("%s: %s: its arguments are for %s, and the schema %s is that of %s: name another with --schema, or a release",
				i.Document.File, i.Object(), machine.Arch.Program(), k.name, programPrefix+r.schema.Arch))
			continue
		}
		k.check(i.Document.File+": "+i.Object(), qemuargs.Strings(machine.Args()), r)
	}
	return errors.Join(problems...)
}

// file checks the arguments of a file.
func (k *checks) file(name string, stdin io.Reader) error {
	text, err := readText(name, stdin)
	if err != nil {
		return err
	}
	sections, err := check.Parse(string(text))
	if err != nil {
		return fmt.Errorf("read arguments %s: %w", name, err)
	}
	for _, s := range sections {
		title := name
		if s.Title != "" {
			title += ": " + s.Title
		}
		arch := k.arch
		for _, a := range []qemuargs.Arch{qemuargs.AMD64, qemuargs.ARM64} {
			if s.Program == a.Program() {
				arch = a
			}
		}
		r, err := k.of(arch)
		if err != nil {
			return err
		}
		if p, ok := check.Program(s.Program, r.schema); ok {
			fmt.Fprintf(k.c.OutOrStdout(), "%s: %s\n", title, p)
		}
		k.check(title, s.Args, r)
	}
	return nil
}

// readText reads a file, or standard input for "-".
func readText(name string, stdin io.Reader) ([]byte, error) {
	if name != "-" {
		return readBounded(name, check.MaxText)
	}
	// One byte more than there may be: check.Parse then refuses it.
	text, err := io.ReadAll(io.LimitReader(stdin, check.MaxText+1))
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	return text, nil
}
