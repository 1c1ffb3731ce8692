package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man FOLDER",
		Short: "Write the manual pages",
		Long:  `man writes a manual page for qemuargs and for each of its commands into an existing folder: qemuargs.1, qemuargs-render.1 and so on.`,
		Example: `  mkdir -p ~/.local/share/man/man1
  qemuargs man ~/.local/share/man/man1
  man qemuargs-render`,
		Args: wrong(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, folders []string) error {
			if info, err := os.Stat(folders[0]); err != nil || !info.IsDir() {
				return fmt.Errorf("write the manual pages: %s is no folder", folders[0])
			}
			v := builtVersion()
			return doc.GenManTree(c.Root(), &doc.GenManHeader{Section: "1", Manual: "Kubeqemu", Source: "qemuargs " + v.text, Date: &v.time}, folders[0])
		},
	}
}

// version is what the program was built from.
type version struct {
	text string
	time time.Time // of the commit; the Unix epoch where the build does not know it
}

func builtVersion() version {
	v := version{text: "unknown", time: time.Unix(0, 0)}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.text = info.Main.Version
	for _, s := range info.Settings {
		if s.Key != "vcs.time" {
			continue
		}
		if t, err := time.Parse(time.RFC3339, s.Value); err == nil {
			v.time = t
		}
	}
	return v
}
