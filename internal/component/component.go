// Package component is what the command lines of virt-api, virt-controller and virt-handler
// have in common: --verbose, the log, the garbage collector's pace, and the exit status.
package component

import (
	"flag"
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"

	"github.com/kubeqemu/kubeqemu/internal/heap"
)

// Main parses args into flags and runs a component, whose name is that of flags. It returns
// the exit status: 0 when run succeeds, 1 when run fails, 2 for arguments that are no flags.
// The log, as JSON lines, and the errors go to stderr.
func Main(flags *flag.FlagSet, args []string, stderr io.Writer, run func(logr.Logger, *Verbosity) error) int {
	more := flags.Bool("verbose", false, "log more, whatever the KubeVirt object's logVerbosity says")
	flags.SetOutput(stderr)
	switch err := flags.Parse(args); {
	case err == flag.ErrHelp:
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "%s: unexpected argument %q; --help lists the flags\n", flags.Name(), flags.Arg(0))
		return 2
	}
	verbosity := newVerbosity(0)
	if *more {
		verbosity = newVerbosity(verbose)
	}
	defer heap.Keep().Close()
	lines := slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: &verbosity.level})
	verbosity.log = slog.New(lines)
	if err := run(logr.FromSlogHandler(lines), verbosity); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", flags.Name(), err)
		return 1
	}
	return 0
}
