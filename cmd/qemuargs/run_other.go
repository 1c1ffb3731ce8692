//go:build !linux

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// runCommands are those that need Linux: the launcher is made of pidfds, openat2(2) and
// descriptors that processes hand over.
func runCommands() []*cobra.Command {
	return []*cobra.Command{{
		Use:                "run",
		Short:              "Run the VM of a manifest on this machine (Linux only)",
		Example:            "  qemuargs run vm.yaml",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("run works on Linux only; render, explain, golden, diff and check work here")
		},
	}}
}
