package disks

import (
	"fmt"
	"os"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// makeTPM makes the empty folder in which a new TPM keeps its state. A guest that arrives from another launcher brings the
// state of its TPM.
func makeTPM(t *qemuargs.TPM) error {
	if t == nil {
		return nil
	}
	if err := os.Mkdir(t.Folder, 0o700); err != nil {
		return fmt.Errorf("make the folder of the TPM's state: %w", err)
	}
	return nil
}
