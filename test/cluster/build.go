package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// kubeNames are the names by which the one Kubernetes binary is called.
func kubeNames() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"}
}

// Build makes every program that a cluster runs, from source, in the folder output. The go
// command knows what is built already. source is this package's module folder.
func Build(ctx context.Context, source, output string, out io.Writer) error {
	if err := os.MkdirAll(output, 0o755); err != nil {
		return err
	}
	say := NewProgress(out)
	kubernetes, err := moduleVersion(ctx, source, "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	tools := filepath.Join(source, "containerd")
	const containerdModule = "github.com/containerd/containerd/v2"
	containerd, err := moduleVersion(ctx, tools, containerdModule)
	if err != nil {
		return err
	}
	major, minor, err := majorMinor(kubernetes)
	if err != nil {
		return err
	}
	versions := fmt.Sprintf(
		"-X k8s.io/component-base/version.gitVersion=%[1]s -X k8s.io/component-base/version.gitMajor=%[2]s -X k8s.io/component-base/version.gitMinor=%[3]s -X k8s.io/client-go/pkg/version.gitVersion=%[1]s",
		kubernetes, major, minor)
	builds := []struct{ what, dir, target, flags string }{
		{"Kubernetes " + kubernetes + " (from source; about 7 minutes the first time)", source, "./kube", versions},
		{"kubectl", source, "./kubectl", versions},
		{"containerd " + containerd + " (about 1 minute the first time)", tools, "tool",
			"-X " + containerdModule + "/version.Version=" + containerd},
		{"Multus (half a minute the first time)", filepath.Join(source, "multus"), "tool", ""},
		{"the pause program", source, "./pause", ""},
	}
	for _, b := range builds {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", strings.TrimSpace("-s -w "+b.flags), "-o", output+"/", b.target)
		cmd.Dir = b.dir
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if err := runReporting(cmd, "building "+b.what, say); err != nil {
			return err
		}
	}
	for _, name := range kubeNames() {
		if err := relink("kube", filepath.Join(output, name)); err != nil {
			return err
		}
	}
	say.Line("built everything into %s", output)
	return nil
}

// moduleVersion is the version that the go.mod in the folder asks for.
func moduleVersion(ctx context.Context, dir, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", module)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	version, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find version of %s: %w: %s", module, err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(version)), nil
}

// majorMinor splits "v1.36.3" into "1" and "36".
func majorMinor(version string) (major, minor string, err error) {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) < 3 || parts[0] == "" || parts[1] == "" {
		return "", "", fmt.Errorf("split version %q: want vMAJOR.MINOR.PATCH", version)
	}
	return parts[0], parts[1], nil
}

// runReporting prints a line every 15 s, so that a long build does not look
// like a hanging one.
func runReporting(cmd *exec.Cmd, what string, say Progress) error {
	var printed limitedBuffer
	cmd.Stdout, cmd.Stderr = &printed, &printed
	say.Line("%s", what)
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(15 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			say.Line("%s ... %s", what, time.Since(start).Round(time.Second))
		case err := <-done:
			if err != nil {
				return fmt.Errorf("%s: %w:\n%s", what, err, printed.tail())
			}
			return nil
		}
	}
}

// relink replaces the symbolic link in one step: a running cluster may be
// using it.
func relink(target, link string) error {
	if now, err := os.Readlink(link); err == nil && now == target {
		return nil
	}
	next := link + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	return os.Rename(next, link)
}

// limitedBuffer keeps the last 8 KiB that were written to it.
type limitedBuffer struct{ text []byte }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.text = append(b.text, p...)
	if over := len(b.text) - 8<<10; over > 0 {
		b.text = b.text[over:]
	}
	return len(p), nil
}

func (b *limitedBuffer) tail() string { return strings.TrimSpace(string(b.text)) }
