// Command qemuargs prints the QEMU command line of a VirtualMachine's or
// VirtualMachineInstance's manifest, without a cluster.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

const usage = `Usage: qemuargs COMMAND [FLAGS] [FILE...]

Commands:
  render    print the QEMU command line of each VirtualMachine and VirtualMachineInstance in the files
            (- or none: standard input)

The flags of a command: qemuargs COMMAND --help
Exit codes: 0 done, 1 a manifest is invalid or cannot be read, 2 wrong usage
`

// errUsage means that the command was called wrongly, and has printed why.
var errUsage = errors.New("wrong usage")

func main() {
	err := run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "qemuargs: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return errUsage
	}
	switch args[0] {
	case "render":
		return render(args[1:], stdin, stdout, stderr)
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return nil
	}
	fmt.Fprintf(stderr, "qemuargs: unknown command %q\n\n%s", args[0], usage)
	return errUsage
}
