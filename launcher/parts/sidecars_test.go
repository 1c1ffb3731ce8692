package parts

import (
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// TestSidecarsAreConnected: QEMU gets the connection to each program, and that to its lifeline. A program that is no
// socket ends the start, and the error names the container.
func TestSidecarsAreConnected(t *testing.T) {
	for name, c := range map[string]struct {
		machine func(socket string) qemuargs.Machine
		names   []string
		failure string
	}{
		"virtiofsd": {func(socket string) qemuargs.Machine {
			return qemuargs.Machine{FileSystems: []qemuargs.FileSystem{{Name: "data", Socket: socket}}}
		}, []string{"filesystem/data", "lifeline/data"}, "log of the container virtiofs-data may say more"},
		"passt": {func(socket string) qemuargs.Machine {
			return qemuargs.Machine{NICs: []qemuargs.NIC{{Name: "tapped"}, {Name: "default", Passt: socket}}}
		}, []string{"passt-lifeline/default", "passt/default"}, "log of the container passt-default may say more"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "socket")
			request := &control.StartRequest{Machine: c.machine(socket)}
			listen(t, socket)
			if err := os.WriteFile(layout.Lifeline(socket), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			files := map[string]*os.File{}
			err := Sidecars{}.Prepare(t.Context(), request, files)
			if err == nil || !strings.Contains(err.Error(), c.failure) {
				t.Errorf("a lifeline that is a file: %v", err)
			}
			disks.CloseAll(files)
			if err := os.Remove(layout.Lifeline(socket)); err != nil {
				t.Fatal(err)
			}
			listen(t, layout.Lifeline(socket))
			files = begin(t, Sidecars{}, request)
			if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, c.names) {
				t.Errorf("the files are %v, want %v", got, c.names)
			}
		})
	}
}

// TestSidecarsShareTheirTime: a start does not wait for longer because it has more programs.
func TestSidecarsShareTheirTime(t *testing.T) {
	folder := t.TempDir()
	served, missing := filepath.Join(folder, "virtiofsd"), filepath.Join(folder, "passt")
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		time.AfterFunc(sidecar.Patience-time.Second, func() {
			listen(t, served)
			listen(t, layout.Lifeline(served))
		})
		request := &control.StartRequest{Machine: qemuargs.Machine{
			FileSystems: []qemuargs.FileSystem{{Name: "data", Socket: served}},
			NICs:        []qemuargs.NIC{{Name: "default", Passt: missing}}}}
		files := map[string]*os.File{}
		err := Sidecars{}.Prepare(t.Context(), request, files)
		disks.CloseAll(files)
		if took := time.Since(begin); !errors.Is(err, fs.ErrNotExist) || len(files) != 2 || took != sidecar.Patience {
			t.Errorf("%d files after %s: %v", len(files), took, err)
		}
	})
}

func listen(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}
