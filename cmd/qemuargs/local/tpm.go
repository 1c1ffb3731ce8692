package local

import (
	"fmt"
	"os/exec"
	"path/filepath"
)

// findTPM is the path of swtpm.
func findTPM(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("find the emulator of the TPM: %w; install it (Debian: swtpm), or name it with --swtpm", err)
	}
	return path, nil
}
