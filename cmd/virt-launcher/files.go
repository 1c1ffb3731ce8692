package main

import (
	"flag"
	"fmt"
	"os"
	"syscall"

	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// serveFiles becomes virtiofsd. virtiofsd keeps each file open that the guest knows, and fails if it is to raise the limit of open files
// further than the container may. So the limit is set here, as far as the container may.
func serveFiles(args []string) int {
	flags := flag.NewFlagSet("serve-files", flag.ExitOnError)
	most := flags.Uint64("most", 1024, "how many `files` the guest may know at a time")
	parseFlags(flags, args)
	if err := limitFiles(*most); err != nil {
		fmt.Fprintln(os.Stderr, "virt-launcher:", err)
		return 1
	}
	// 0 leaves the limit as it is.
	command := append([]string{layout.VirtioFSD, "--rlimit-nofile=0"}, flags.Args()...)
	fmt.Fprintf(os.Stderr, "virt-launcher: start %s: %v\n", layout.VirtioFSD, syscall.Exec(layout.VirtioFSD, command, os.Environ()))
	return 1
}

// limitFiles sets how many files this process and what it becomes may have open. It asks package syscall, which would otherwise set the limit
// back.
func limitFiles(most uint64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("ask for the limit of open files: %w", err)
	}
	limit.Cur = min(limit.Max, most)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("set the limit of open files to %d: %w", limit.Cur, err)
	}
	return nil
}
