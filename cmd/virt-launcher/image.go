package main

import (
	"errors"
	"flag"

	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
)

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
