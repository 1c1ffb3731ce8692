package resolve

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// virtiofsd starts the image's virtiofsd for the test's time, and returns a connection to it. It ends with QEMU.
func virtiofsd(t *testing.T) *os.File {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "socket"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	theirs, err := listener.File()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	root, err := filepath.Abs(imageRoot)
	if err != nil {
		t.Fatal(err)
	}
	cmd := program{path: root + "/usr/libexec/virtiofsd", root: root}.command("--fd=3", "--shared-dir="+t.TempDir(), "--sandbox=none", "--rlimit-nofile=0")
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	conn, err := net.DialUnix("unix", nil, listener.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	file, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	return file
}
