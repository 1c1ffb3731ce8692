package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// showArgs prints the arguments of the pod's QEMU, and returns the exit code. The image has no shell with which
// kubectl exec could read them from /proc.
func showArgs(args []string) int {
	parse(flag.NewFlagSet("args", flag.ExitOnError), args)
	words, err := runningQEMU(os.DirFS("/proc"))
	if err != nil {
		fmt.Fprintf(os.Stderr, "virt-launcher args: %v\n", err)
		return 1
	}
	fmt.Print(qemuargs.QuoteWords(words))
	return 0
}

var errNoQEMU = errors.New("no QEMU runs in this pod: the guest has not started yet, or has ended")

// runningQEMU returns the argument vector of the QEMU among the processes of /proc.
func runningQEMU(proc fs.FS) ([]string, error) {
	files, err := fs.Glob(proc, "[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		words, err := process.Arguments(proc, path.Dir(file))
		if err == nil && strings.HasPrefix(path.Base(words[0]), "qemu-system-") {
			return words, nil
		}
	}
	return nil, errNoQEMU
}
