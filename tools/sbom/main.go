// Command sbom writes what a release's file is made of, as SPDX 2.3 in JSON:
//
//	sbom --version v0.1.0 --name virt-launcher-amd64 virt-launcher-amd64.tar
//
// The file is a container image as a docker-archive tar, or a program that Go built. Of an image, the Debian packages
// are those that its own file /usr/share/kubeqemu/packages.txt lists. Go modules are those that the programs name
// themselves (`go version -m`). The same file gives the same bytes: the only time is SOURCE_DATE_EPOCH, or 0.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// run writes the document of the file that the arguments name.
func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("sbom", flag.ContinueOnError)
	version := flags.String("version", "", "the release's `version`")
	name := flags.String("name", "", "`name` of what the file holds")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *version == "" || *name == "" || flags.NArg() != 1 {
		return fmt.Errorf("read arguments: --version, --name and one file are required")
	}
	created, err := sourceDate()
	if err != nil {
		return err
	}
	parts, err := partsOf(flags.Arg(0))
	if err != nil {
		return fmt.Errorf("look into %s: %w", flags.Arg(0), err)
	}
	text, err := document(*name, *version, created, parts)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// sourceDate returns the time that the document names.
func sourceDate() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
