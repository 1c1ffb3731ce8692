package resolve

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// tpmEmulator starts the image's swtpm for the test's time, and returns QEMU's end of its control socket.
func tpmEmulator(t *testing.T) *os.File {
	t.Helper()
	ours, theirs := testkit.SocketFiles(t)
	defer theirs.Close()
	root, err := filepath.Abs(imageRoot)
	if err != nil {
		t.Fatal(err)
	}
	cmd := program{path: root + "/usr/bin/swtpm", root: root}.command("socket", "--tpm2", "--ctrl", "type=unixio,clientfd=3", "--tpmstate", "dir="+t.TempDir(), "--terminate")
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return ours
}
