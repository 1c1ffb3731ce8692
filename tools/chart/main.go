// Command chart makes the Helm chart from the manifests that kustomize makes, so that both
// have one source:
//
//	kubectl kustomize config/datavolumes | chart --source config/chart --output _output/chart/kubeqemu
//
// config/datavolumes has more than config/default. What it has more depends on the value datavolumes.
// The source folder has what is written by hand: Chart.yaml. Every object becomes a template.
// values.yaml and its schema hold what the templates leave open; the defaults are the values
// in the manifests.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	source := flag.String("source", "config/chart", "`folder` with the chart's hand-written files")
	output := flag.String("output", "", "`folder` to write the chart to; what is in it is removed (required)")
	flag.Parse()
	if err := run(os.Stdin, *source, *output); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func run(manifests io.Reader, source, output string) error {
	if output == "" {
		return fmt.Errorf("--output is required")
	}
	text, err := io.ReadAll(manifests)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	files, err := Chart(text)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(output); err != nil {
		return fmt.Errorf("empty the chart's folder: %w", err)
	}
	if err := os.CopyFS(output, os.DirFS(source)); err != nil {
		return fmt.Errorf("copy the hand-written files: %w", err)
	}
	for name, content := range files {
		path := filepath.Join(output, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write the chart: %w", err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return fmt.Errorf("write the chart: %w", err)
		}
	}
	return nil
}
