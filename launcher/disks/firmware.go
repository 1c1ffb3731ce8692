package disks

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// makeVariables makes the file of the guest's UEFI variables: a copy of the template, whatever was there. A guest that
// arrives from another launcher brings its variables, and QEMU writes them over the copy.
func makeVariables(f *qemuargs.Firmware) error {
	if f == nil {
		return nil
	}
	err := diskimage.HasSize(f.Code, qemuargs.CodeBytes)
	if err == nil {
		err = diskimage.Copy(f.Variables.Template, f.Variables.Path, qemuargs.VariablesBytes)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make the UEFI variables: %w; UEFI needs OVMF's files in %s (Debian's package ovmf)", err, filepath.Dir(f.Code))
	}
	if err != nil {
		return fmt.Errorf("make the UEFI variables: %w", err)
	}
	return nil
}
