// Command qemuargs shows, without a cluster, what QEMU is started with for the
// VirtualMachines and VirtualMachineInstances in manifests.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

// Exit codes.
const (
	exitInvalid = 1 // a manifest is invalid, cannot be read, or differs; or check has found an error
	exitUsage   = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the program. It returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := newCommand()
	c.SetArgs(args)
	c.SetIn(stdin)
	c.SetOut(stdout)
	c.SetErr(stderr)
	err := c.ExecuteContext(context.Background())
	var usage *usageError
	var ended endedError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ended):
		return int(ended)
	case errors.Is(err, errDiffers), errors.Is(err, errProblems):
		return exitInvalid
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "qemuargs: %v\nSee '%s --help'.\n", err, usage.command)
		return exitUsage
	}
	fmt.Fprintln(stderr, printable(err.Error()))
	return exitInvalid
}

// printable is a text without the control characters that a terminal obeys. Manifests, images
// and registries may hold such characters.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '\ufffd'
		}
		return r
	}, text)
}

// endedError ends the program with the exit code of a VM.
type endedError int

func (e endedError) Error() string { return fmt.Sprintf("the VM has ended with exit code %d", int(e)) }

// errDiffers ends golden and diff where they have printed a difference.
var errDiffers = errors.New("differs")

// usageError is that of a command that was called wrongly.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }

func newCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "qemuargs",
		Short: "Show what QEMU is started with for KubeVirt manifests",
		Long: `qemuargs shows, without a cluster, what QEMU is started with for KubeVirt manifests: VirtualMachines,
VirtualMachineInstances, ReplicaSets and pools, with the instancetypes, preferences and presets beside them.

Exit codes: 0 done; 1 a manifest or an argument is invalid or cannot be read, or there is a difference; 2 wrong usage.`,
		Version:       builtVersion().text,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          wrong(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return &usageError{c.CommandPath(), errors.New("name a command")}
		},
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return &usageError{c.CommandPath(), err} })
	c.AddCommand(renderCommand(), explainCommand(), hostCommand(), goldenCommand(), diffCommand(), schemaCommand(),
		checkCommand(), manCommand())
	c.AddCommand(runCommands()...)
	return c
}

// wrong makes a check of arguments an error of usage.
func wrong(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return &usageError{c.CommandPath(), err}
		}
		return nil
	}
}

// hostFlag is the flag --host.
type hostFlag struct{ manifest.Host }

func (f *hostFlag) Set(name string) (err error) {
	f.Host, err = manifest.ParseHost(name)
	return err
}

func (*hostFlag) Type() string { return "host" }

// addHostFlag adds --host. The flag's host is the default one until the flag is given.
func addHostFlag(c *cobra.Command, name, text string) *hostFlag {
	f := &hostFlag{}
	if err := f.Set(manifest.DefaultHost); err != nil {
		panic(err) // a preset
	}
	c.Flags().Var(f, name, text)
	complete(c, name, hostNames())
	return f
}

// hostNames are the presets, with the releases whose schemas are in this program.
func hostNames() []string {
	names := []string{string(qemuargs.KVM), string(qemuargs.TCG)}
	for _, release := range schema.Releases() {
		names = append(names, string(qemuargs.KVM)+"-"+release, string(qemuargs.TCG)+"-"+release)
	}
	return names
}

// complete completes a flag's values to names, and to files where there is none of them.
func complete(c *cobra.Command, flag string, names []string) {
	err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(names, cobra.ShellCompDirectiveDefault))
	if err != nil {
		panic(err) // the flag is there
	}
}

// archFlag is the flag --arch, the architecture of guests that name none, by Kubernetes' name.
type archFlag string

func (f *archFlag) String() string { return string(*f) }

// arch is the architecture.
func (f *archFlag) arch() qemuargs.Arch { return qemuargs.Arch(*f) }

func (*archFlag) Type() string { return "architecture" }

func (f *archFlag) Set(name string) error {
	if known := []qemuargs.Arch{qemuargs.AMD64, qemuargs.ARM64}; !slices.Contains(known, qemuargs.Arch(name)) {
		return fmt.Errorf("%q is no architecture of guests: want one of %q", name, known)
	}
	*f = archFlag(name)
	return nil
}

// addArchFlag adds --arch.
func addArchFlag(c *cobra.Command, text string) *archFlag {
	f := archFlag(qemuargs.AMD64)
	c.Flags().Var(&f, "arch", text+": amd64 or arm64")
	complete(c, "arch", []string{string(qemuargs.AMD64), string(qemuargs.ARM64)})
	return &f
}

const archHelp = "architecture of guests that name neither one nor a machine type"

const hostHelp = "preset kvm or tcg, perhaps with a release of QEMU (tcg-7.2), or a YAML file of what node and pod say"
