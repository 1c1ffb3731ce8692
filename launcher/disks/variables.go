package disks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// makeVariables makes the file of the guest's UEFI variables: a copy of the template, whatever was there. It leaves
// variables alone that are part of the guest's state: openVariables makes these. A guest that arrives from another
// launcher brings its variables, and QEMU writes them over the copy.
func makeVariables(f *qemuargs.Firmware) error {
	if f == nil {
		return nil
	}
	var err error
	if f.Format == "" || f.Format == qemuargs.Raw { // QEMU itself compares the size of another image with the chip's
		err = diskimage.HasSize(f.Code, f.CodeSize())
	}
	if err == nil && !f.Variables.InState {
		err = diskimage.Copy(f.Variables.Template, f.Variables.Path, f.VariablesSize())
	}
	return explainVariables(f, err)
}

// openVariables opens the variables that are part of the guest's state, and makes them of the template if there are
// none.
func openVariables(f *qemuargs.Firmware) (*os.File, error) {
	folder := filepath.Dir(f.Variables.Path)
	file, err := diskimage.OpenState(filepath.Dir(folder), filepath.Base(folder), filepath.Base(f.Variables.Path),
		f.Variables.Template, f.VariablesSize())
	return file, explainVariables(f, err)
}

func explainVariables(f *qemuargs.Firmware, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist) && (missing(f.Code) || missing(f.Variables.Template)):
		return fmt.Errorf("make the UEFI variables: %w; UEFI needs its firmware's files in %s "+
			"(Debian's package ovmf, or qemu-efi-aarch64 for arm64)", err, filepath.Dir(f.Code))
	case f.Variables.InState:
		return fmt.Errorf("open the UEFI variables on the claim with the guest's state: %w", err)
	}
	return fmt.Errorf("make the UEFI variables: %w", err)
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}
