package main

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSchemaIsNotWrittenToATerminal: a schema is compressed, and a terminal would obey its bytes.
func TestSchemaIsNotWrittenToATerminal(t *testing.T) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	terminal := os.NewFile(uintptr(fd), "ptmx")
	defer terminal.Close()
	var said strings.Builder
	if code := run([]string{"schema", "--qemu", "/bin/false"}, strings.NewReader(""), terminal, &said); code != exitUsage || !strings.Contains(said.String(), "--output") {
		t.Errorf("exit code %d, %s", code, said.String())
	}
}
