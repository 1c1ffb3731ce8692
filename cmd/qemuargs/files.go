package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// extensions are those of manifests, as a shell completes them.
var extensions = []string{"yaml", "yml", "json"}

// files are the manifests that a command is given: with -f, and as its arguments.
type files struct{ flagged []string }

// addFiles adds -f, and completes the command's arguments to manifests.
func addFiles(c *cobra.Command) *files {
	f := &files{}
	c.Flags().StringArrayVarP(&f.flagged, "filename", "f", nil, "a file or folder of manifests, or - for standard input; without -f it is the same")
	if err := c.MarkFlagFilename("filename", extensions...); err != nil {
		panic(err) // the flag is there
	}
	c.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return extensions, cobra.ShellCompDirectiveFilterFileExt
	}
	return f
}

// names returns the files and folders: those of -f, and then the arguments. There must be one.
func (f *files) names(c *cobra.Command, args []string) ([]string, error) {
	names := slices.Concat(f.flagged, args)
	if len(names) == 0 {
		return nil, &usageError{c.CommandPath(), errors.New("name a file or folder of manifests, or - for standard input")}
	}
	return names, nil
}

// exactly is names for a command that takes a number of them.
func (f *files) exactly(c *cobra.Command, args []string, number int) ([]string, error) {
	names, err := f.names(c, args)
	if err == nil && len(names) != number {
		err = &usageError{c.CommandPath(), fmt.Errorf("%d files or folders are named: want %d", len(names), number)}
	}
	return names, err
}

// isFile reports whether an argument of explain is a file or a folder, and not a field. It looks at the text alone,
// so that a file of a field's name changes nothing.
func isFile(text string) bool {
	path, _, _ := strings.Cut(text, "[") // the key of a map may have a slash: nodeSelector[example.com/rack]
	extension := strings.TrimPrefix(filepath.Ext(text), ".")
	return text == manifest.Stdin || strings.ContainsRune(path, '/') || slices.Contains(extensions, extension)
}

// open reads the VMIs of files and folders, and warns of what nobody reads there.
func open(c *cobra.Command, names []string) ([]manifest.Instance, error) {
	set, err := manifest.Open(names, c.InOrStdin())
	if err != nil {
		return nil, err
	}
	return instances(c, set, names)
}

// instances returns the VMIs of a set, and warns of what nobody reads there.
func instances(c *cobra.Command, set manifest.Set, names []string) ([]manifest.Instance, error) {
	warnAll(c, set.Warnings())
	found, err := set.Instances()
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%s: %w", strings.Join(names, " "), manifest.ErrNone)
	}
	return found, err
}

// warnAll writes warnings to standard error.
func warnAll(c *cobra.Command, texts []string) {
	for _, text := range texts {
		fmt.Fprintf(c.ErrOrStderr(), "warning: %s\n", printable(text))
	}
}
