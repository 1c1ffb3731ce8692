package slots

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/kubeqemu/kubeqemu/controllers/images"
)

// TestContainersShareOneProgram: each container gets the same folder of the node, which it cannot write to. The file in
// it stays the same while the program does, and is put right when something else is there.
func TestContainersShareOneProgram(t *testing.T) {
	dir := t.TempDir()
	from, within := filepath.Join(dir, "virt-image"), filepath.Join(dir, "node")
	folder := filepath.Join(within, "image")
	program := filepath.Join(folder, "program")
	write := func(path, text string, mode fs.FileMode) {
		t.Helper()
		os.Remove(path)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	p := Program("", from, within, logr.Discard())
	allocate := func() *deviceplugin.Mount {
		t.Helper()
		answer, err := p.Allocate(t.Context(), &deviceplugin.AllocateRequest{
			ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{DevicesIds: []string{"image7"}}}})
		if err != nil || len(answer.ContainerResponses) != 1 || len(answer.ContainerResponses[0].Mounts) != 1 {
			t.Fatalf("%v (%v)", answer, err)
		}
		return answer.ContainerResponses[0].Mounts[0]
	}
	if err := p.Start(t.Context()); err == nil {
		t.Error("the kubelet hears of a program that there is not")
	}
	write(from, "one", 0o755)
	m := allocate()
	if m.HostPath != folder || m.ContainerPath != "/kubeqemu" || !m.ReadOnly || p.Resource != images.Resource {
		t.Errorf("a container that asks for %s gets %v", p.Resource, m)
	}
	last, err := os.Lstat(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func()
		want   string
		same   bool
	}{
		{"nothing changed", func() {}, "one", true},
		{"virt-handler starts anew", func() { p = Program("", from, within, logr.Discard()) }, "one", true},
		{"the file is gone", func() { os.Remove(program) }, "one", false},
		{"the folder is gone", func() { os.RemoveAll(folder) }, "one", false},
		{"a folder that others cannot enter", func() {
			os.Chmod(folder, 0o700)
			p = Program("", from, within, logr.Discard())
		}, "one", false},
		{"a power cut left an empty file", func() { write(program, "", 0o555) }, "one", false},
		{"another file of the same size", func() { write(program, "two", 0o555) }, "one", false},
		{"a file that nobody may run", func() { os.Chmod(program, 0o444) }, "one", false},
		{"a link", func() { os.Remove(program); os.Symlink(from, program) }, "one", false},
		{"a copy that was broken off", func() { os.Remove(program); write(program+".new", "x", 0o600) }, "one", false},
		{"an upgrade", func() {
			write(from, "later", 0o755)
			p = Program("", from, within, logr.Discard())
		}, "later", false},
	} {
		c.change()
		allocate()
		stat, err := os.Lstat(program)
		if err != nil {
			t.Fatal(c.name, err)
		}
		got, err := os.ReadFile(program)
		if err != nil || string(got) != c.want || stat.Mode() != 0o555 {
			t.Errorf("%s: %q with mode %s (%v)", c.name, got, stat.Mode(), err)
		}
		if c.same && !os.SameFile(stat, last) { // a new file may have the number of one that is gone
			t.Errorf("%s: it is another file", c.name)
		}
		if s, err := os.Stat(folder); err != nil || s.Mode().Perm() != 0o755 {
			t.Errorf("%s: the folder's mode is %s (%v)", c.name, s.Mode(), err)
		}
		last = stat
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1 {
		t.Errorf("the folder has %v (%v)", left, err)
	}
}

// TestRemovedFolderIsTold: if the host's folder is removed, virt-handler sees its own mount of it, in which nothing can
// be made. It says so, and the node offers no places until it is right again.
func TestRemovedFolderIsTold(t *testing.T) {
	dir := t.TempDir()
	from, host, within := filepath.Join(dir, "virt-image"), filepath.Join(dir, "host"), filepath.Join(dir, "here")
	err := errors.Join(os.WriteFile(from, []byte("x"), 0o755), os.Mkdir(host, 0o755), os.Mkdir(within, 0o755))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(host, within, "", unix.MS_BIND, ""); err != nil {
		t.Fatalf("mount: %v", err)
	}
	defer unix.Unmount(within, 0)
	p := Program("", from, within, logr.Discard())
	if _, err := p.Give(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(host); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Give(); err == nil || !strings.Contains(err.Error(), "was removed from the node") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream := &lists{ctx: ctx, sent: make(chan int, 1)}
	ended := make(chan error, 1)
	go func() { ended <- p.ListAndWatch(nil, stream) }()
	if got := stream.next(t); got != 0 {
		t.Errorf("%d places are offered", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
