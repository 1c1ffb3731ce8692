package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"

	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
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
	err := limitFiles(*most)
	if err == nil {
		// 0 leaves the limit as it is.
		command := append([]string{"--socket-path=" + *socket, "--rlimit-nofile=0"}, flags.Args()...)
		err = serveBeside(sidecar.Server{Program: *program, Args: command, Socket: *socket, Output: os.Stderr})
	}
	return exitCode(err)
}

// serveNetwork runs passt for the QEMU of this pod, as PID 1 of a container of its own. passt has a file for each port and each connection, and would
// fail without a word about the limit of open files.
func serveNetwork(args []string) int {
	debug.SetGCPercent(20)
	debug.SetMemoryLimit(3 << 20)
	flags := flag.NewFlagSet("serve-network", flag.ExitOnError)
	most := flags.Uint64("most", 1024, "how many `files` passt may have open at a time")
	least := flags.Uint64("least", 0, "how many `files` passt needs for the ports")
	link := flags.String("link", "eth0", "`interface` of the pod's network")
	guest := flags.String("guest-address", "", "IPv4 `address` of a guest that comes from another pod")
	parseFlags(flags, args)
	socket := layout.OwnPasstSocket()
	outbound, err := outboundOn(*link, *guest)
	if err = errors.Join(err, permitFiles(*least), limitFiles(*most)); err == nil {
		command := slices.Concat([]string{"--foreground", "--socket=" + socket, "--interface=" + *link}, outbound, flags.Args())
		err = serveBeside(sidecar.Server{Program: layout.Passt, Args: command, Socket: socket, Output: os.Stderr})
	}
	return exitCode(err)
}

// outboundOn are passt's options for the addresses that the pod's interface has, and the address that the guest brings along, if any.
func outboundOn(link, brought string) ([]string, error) {
	var guest netip.Addr
	if brought != "" {
		var err error
		if guest, err = netip.ParseAddr(brought); err != nil {
			return nil, fmt.Errorf("read the guest's address: %w", err)
		}
	}
	i, err := net.InterfaceByName(link)
	if err != nil {
		return nil, fmt.Errorf("find the pod's interface %s: %w", link, err)
	}
	addresses, err := i.Addrs()
	if err != nil {
		return nil, fmt.Errorf("read the addresses of the pod's interface %s: %w", link, err)
	}
	var has []netip.Prefix
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			has = append(has, prefix)
		}
	}
	options, err := sidecar.Outbound(link, has, guest)
	if err != nil {
		return nil, fmt.Errorf("use the pod's interface %s: %w", link, err)
	}
	return options, nil
}

// serveBeside serves until the kubelet asks this process to end.
func serveBeside(s sidecar.Server) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return s.Serve(ctx)
}

// exitCode writes an error, and is the exit code for it.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "virt-launcher:", err)
	if errors.Is(err, sidecar.ErrLost) {
		return sidecar.ExitLost
	}
	return 1
}

// permitFiles fails if the container may not have as many files open.
func permitFiles(least uint64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("ask for the limit of open files: %w", err)
	}
	if limit.Max < least {
		return fmt.Errorf("open a socket for each port: the container may have %d files open, and needs %d for all ports: list the interface's ports, or raise the container runtime's limit of open files on the node", limit.Max, least)
	}
	return nil
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
