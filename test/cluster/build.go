package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// kubeNames are the names by which the one Kubernetes binary is called.
func kubeNames() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"}
}

// Release is a Kubernetes that a cluster is built of, with the containerd that runs below it.
type Release struct {
	// kubernetes and containerd are files of modules in the folder older, and stand in for go.mod. Empty for the go.mod.
	kubernetes, containerd string
}

// releases returns the releases that can be built. The empty name is today's.
func releases() map[string]Release {
	return map[string]Release{
		"":     {},
		"1.33": {kubernetes: "kubernetes-1.33.mod"},
		"1.31": {kubernetes: "kubernetes-1.31.mod", containerd: "containerd-1.7.mod"},
	}
}

// ParseRelease returns the release of that name, such as 1.33. The empty name is today's release.
func ParseRelease(name string) (Release, error) {
	release, ok := releases()[name]
	if !ok {
		known := slices.Sorted(maps.Keys(releases()))
		return Release{}, fmt.Errorf("release %q of Kubernetes: want one of %s", name, strings.Join(known[1:], ", "))
	}
	return release, nil
}

// module is a folder with a go.mod, and the flags with which the go command takes another file in its place.
type module struct {
	dir   string
	flags []string
}

// modules returns the modules of Kubernetes and of containerd. source is this package's module folder.
func (r Release) modules(source string) (kubernetes, containerd module) {
	kubernetes, containerd = module{dir: source}, module{dir: filepath.Join(source, "containerd")}
	older := func(file string) string { return "-modfile=" + filepath.Join(source, "older", file) }
	if r.kubernetes != "" {
		kubernetes.flags = []string{older(r.kubernetes), "-tags=older"}
	}
	if r.containerd != "" {
		containerd.flags = []string{older(r.containerd)}
	}
	return kubernetes, containerd
}

// containerdName returns the name of containerd's module, which changed with containerd 2.
func (r Release) containerdName() string {
	if strings.HasPrefix(r.containerd, "containerd-1.") {
		return "github.com/containerd/containerd"
	}
	return "github.com/containerd/containerd/v2"
}

// Build makes every program that a cluster runs, from source, in the folder output. The go
// command knows what is built already. source is this package's module folder.
func Build(ctx context.Context, release Release, source, output string, out io.Writer) error {
	if err := os.MkdirAll(output, 0o755); err != nil {
		return err
	}
	say := NewProgress(out)
	kube, containerd := release.modules(source)
	kubernetes, err := kube.version(ctx, "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	runtime, err := containerd.version(ctx, release.containerdName())
	if err != nil {
		return err
	}
	major, minor, err := majorMinor(kubernetes)
	if err != nil {
		return err
	}
	versions := fmt.Sprintf("-X %[1]s/component-base/version.gitVersion=%[2]s -X %[1]s/component-base/version.gitMajor=%[3]s"+
		" -X %[1]s/component-base/version.gitMinor=%[4]s -X %[1]s/client-go/pkg/version.gitVersion=%[2]s",
		"k8s.io", kubernetes, major, minor)
	builds := []struct {
		what          string
		module        module
		target, flags string
	}{
		{"Kubernetes " + kubernetes + " (from source; about 7 minutes the first time)", kube, "./kube", versions},
		{"kubectl", kube, "./kubectl", versions},
		{"containerd " + runtime + " (about 1 minute the first time)", containerd, "tool",
			"-X " + release.containerdName() + "/version.Version=" + runtime},
		{"Multus (half a minute the first time)", module{dir: filepath.Join(source, "multus")}, "tool", ""},
		{"the pause program", module{dir: source}, "./pause", ""},
	}
	for _, b := range builds {
		args := slices.Concat([]string{"build", "-trimpath", "-ldflags", strings.TrimSpace("-s -w " + b.flags)},
			b.module.flags, []string{"-o", output + "/", b.target})
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = b.module.dir
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

// version returns the version of another module that this one asks for.
func (m module) version(ctx context.Context, name string) (string, error) {
	args := slices.Concat([]string{"list"}, m.flags, []string{"-m", "-f", "{{.Version}}", name})
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = m.dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	version, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find version of %s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
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
