package disks

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/launcher/imagefile"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// handsOut lets a container hand out what open returns, for a volume, and returns the folders of the launcher's
// container.
func handsOut(t *testing.T, volume string, open func() (imagefile.File, error)) Folders {
	t.Helper()
	f := Folders{Images: t.TempDir(), Sockets: t.TempDir(), Overlays: t.TempDir()}
	socket := layout.ImageSocket(f.Sockets, volume)
	if err := os.Mkdir(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	server, err := imagefile.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.HandOut(open) }()
	t.Cleanup(func() {
		server.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

// TestImageThatIsHandedOut: a container disk is inspected and opened where a container of the pod hands it out. QEMU
// gets a file that is only read, with the machine's flags. What is wrong with the image is told as of a volume.
func TestImageThatIsHandedOut(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk.img")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(disk, []byte(text), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Repeat("x", 1024))
	var fails atomic.Bool
	f := handsOut(t, "root", func() (imagefile.File, error) {
		if fails.Load() {
			return 0, errors.New("the container image has no folder /disk")
		}
		f, _, err := imagefile.Open(filepath.Dir(disk), filepath.Base(disk))
		return f, err
	})
	request := control.InspectRequest{ContainerDisks: []control.ContainerDisk{{Volume: "root", Path: "/other"}}}
	inspect := func() qemuargs.ImageFacts {
		t.Helper()
		reply, err := f.Inspect(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		return reply.ContainerDisks[0]
	}
	facts := inspect()
	if !facts.HandedOut || facts.Path != "" || facts.Format != qemuargs.Raw || facts.VirtualSize != 1024 ||
		facts.Error != "" {
		t.Errorf("facts %+v", facts)
	}
	m := &qemuargs.Machine{Disks: []qemuargs.Disk{{Name: "root", ReadOnly: true,
		Image: qemuargs.Image{Format: qemuargs.Raw, Direct: facts.Direct, Volume: qemuargs.HandedOut}}}}
	files := map[string]*os.File{}
	if err := f.openImages(t.Context(), m, files); err != nil || files["image/root"] == nil {
		t.Fatalf("%v (%v)", files, err)
	}
	CloseAll(files)
	// Another file is there when the guest starts.
	if err := os.Remove(disk); err != nil {
		t.Fatal(err)
	}
	write("QFI\xfb" + strings.Repeat("\x00", 508))
	if err := f.openImages(t.Context(), m, files); !errors.Is(err, diskimage.ErrUnusable) {
		t.Errorf("another image: %v", err)
	}
	if facts := inspect(); !strings.Contains(facts.Error, `"disk.img": `) {
		t.Errorf("a broken image: %+v", facts)
	}
	fails.Store(true)
	if facts := inspect(); !strings.Contains(facts.Error, "no folder /disk") {
		t.Errorf("an image without a disk: %+v", facts)
	}
	if err := f.openImages(t.Context(), m, files); !errors.Is(err, sidecar.ErrNotHandedOut) {
		t.Errorf("an image without a disk: %v", err)
	}
}

// TestContainerThatDoesNotListen: nothing is said of an image whose container does not listen yet, but the container's
// name. A volume is used where there is one.
func TestContainerThatDoesNotListen(t *testing.T) {
	f := Folders{Images: t.TempDir(), Sockets: t.TempDir(), Overlays: t.TempDir()}
	if err := os.Mkdir(filepath.Join(f.Sockets, "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	request := control.InspectRequest{ContainerDisks: []control.ContainerDisk{{Volume: "root"}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Inspect(ctx, request); err == nil || !strings.Contains(err.Error(), "container disk-root") {
		t.Errorf("%v", err)
	}
	if err := os.MkdirAll(filepath.Join(f.Images, "root", "disk"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.Images, "root", "disk", "a"), make([]byte, 512), 0o644); err != nil {
		t.Fatal(err)
	}
	reply, err := f.Inspect(ctx, request)
	if err != nil || reply.ContainerDisks[0].HandedOut || reply.ContainerDisks[0].VirtualSize != 512 {
		t.Errorf("%+v (%v)", reply.ContainerDisks, err)
	}
}
