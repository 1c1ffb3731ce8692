package main

import (
	"context"
	"errors"
	"flag"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// serveImage hands out the disk in this container's image, as PID 1 of that container. An image without such a disk is
// told to whoever asks for the disk: the VM's start then fails with that reason.
func serveImage(args []string) int {
	debug.SetGCPercent(20)
	debug.SetMemoryLimit(2 << 20)
	flags := flag.NewFlagSet("serve-image", flag.ExitOnError)
	path := flags.String("path", "", "`path` of the disk in the image; without one, it is the only file in /disk")
	socket := flags.String("socket", layout.OwnImageSocket(), "`socket` to listen at")
	parse(flags, args)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return exitCode(sidecar.ServeImage(ctx, *socket, *path))
}

// copyProgram copies virt-launcher to where the containers with tenants' images have it.
func copyProgram(args []string) int {
	flags := flag.NewFlagSet("copy-program", flag.ExitOnError)
	to := flags.String("to", layout.Program, "`path` of the copy")
	parse(flags, args)
	return exitCode(sidecar.CopyProgram(*to))
}

// copyFiles copies files of this container's image to where the launcher's container has them: QEMU opens a kernel by
// its path only.
func copyFiles(args []string) int {
	flags := flag.NewFlagSet("copy-files", flag.ExitOnError)
	to := flags.String("to", layout.KernelDir, "`folder` of the copies")
	most := flags.Int64("most", 1<<30, "how many `bytes` may be copied in all")
	parseFlags(flags, args)
	return exitCode(sidecar.CopyFiles("/", *to, *most, flags.Args()...))
}

// copyRoot copies this container's image to a folder, where virt-handler starts the image's QEMU to ask it.
func copyRoot(args []string) int {
	flags := flag.NewFlagSet("copy-root", flag.ExitOnError)
	to := flags.String("to", "", "`folder` of the copy")
	parse(flags, args)
	if *to == "" {
		return exitCode(errors.New("copy-root: --to names no folder"))
	}
	return exitCode(sidecar.CopyRoot("/", *to))
}
