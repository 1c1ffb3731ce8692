package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/kubeqemu/kubeqemu/launcher/virtiofs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// serveFiles runs virtiofsd for the QEMU of this pod, as PID 1 of a container of its own. The kubelet's SIGTERM ends it, which would not end a
// virtiofsd that is PID 1. virtiofsd keeps each file open that the guest knows, and fails if it is to raise the limit of open files
// further than the container may. So the limit is set here, as far as the container may.
func serveFiles(args []string) int {
	debug.SetGCPercent(20)
	debug.SetMemoryLimit(3 << 20)
	flags := flag.NewFlagSet("serve-files", flag.ExitOnError)
	most := flags.Uint64("most", 1024, "how many `files` the guest may know at a time")
	program := flags.String("program", layout.VirtioFSD, "`path` of virtiofsd")
	socket := flags.String("socket", layout.OwnFileSystemSocket(), "`socket` at which virtiofsd is to listen")
	parseFlags(flags, args)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := limitFiles(*most)
	if err == nil {
		// 0 leaves the limit as it is.
		command := append([]string{"--socket-path=" + *socket, "--rlimit-nofile=0"}, flags.Args()...)
		err = virtiofs.Server{Program: *program, Args: command, Socket: *socket, Output: os.Stderr}.Serve(ctx)
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "virt-launcher:", err)
	if errors.Is(err, virtiofs.ErrLost) {
		return virtiofs.ExitLost
	}
	return 1
}

// limitFiles sets how many files this process and the processes that it starts may have open. It asks package syscall, which would otherwise set the
// limit back.
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
