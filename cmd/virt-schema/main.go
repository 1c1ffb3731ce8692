// Command virt-schema checks objects of older API versions for virt-api, which starts it. It reads
// questions from its standard input, writes answers to its standard output (apiserver/older), and
// ends with its input.
package main

import (
	"fmt"
	"os"

	"github.com/kubeqemu/kubeqemu/apiserver/older"
	"github.com/kubeqemu/kubeqemu/apiserver/schema"
	"github.com/kubeqemu/kubeqemu/config/crd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, older.Program+":", err)
		os.Exit(1)
	}
}

func run() error {
	if err := older.Limit(); err != nil {
		return err
	}
	return schema.Serve(schema.NewChecker(crd.Files), os.Stdin, os.Stdout)
}
