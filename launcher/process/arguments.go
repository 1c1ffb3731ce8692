package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// MaxArguments bounds the arguments of a process that are read, in bytes. QEMU's have 150 KiB with 200 disks.
const MaxArguments = 256 << 10

// Arguments returns the argument vector of a process in the folder /proc. The program's name comes first. A process
// can change the vector that the kernel shows of it, so Arguments reads no more than MaxArguments.
func Arguments(proc fs.FS, pid string) ([]string, error) {
	words, err := readArguments(proc, path.Join(pid, "cmdline"))
	if err != nil {
		return nil, fmt.Errorf("read the arguments of process %s: %w", pid, err)
	}
	return words, nil
}

func readArguments(proc fs.FS, name string) ([]string, error) {
	file, err := proc.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, MaxArguments+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) == 0:
		return nil, errors.New("it has none: it has ended, or is one of the kernel's")
	case len(text) > MaxArguments:
		return nil, fmt.Errorf("they have more than %d bytes", MaxArguments)
	}
	return strings.Split(string(bytes.TrimSuffix(text, []byte{0})), "\x00"), nil
}
