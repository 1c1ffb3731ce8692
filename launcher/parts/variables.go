package parts

import (
	"fmt"
	"os"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Variables are the guest's UEFI variables. While QEMU writes them, the launcher holds their file: by now others may
// have changed what is at its path.
type Variables struct {
	None
	firmware *qemuargs.Firmware // nil without UEFI
	file     *os.File
}

// Start holds the file that QEMU gets.
func (v *Variables) Start(request *control.StartRequest, files map[string]*os.File) (err error) {
	v.firmware = request.Machine.Firmware
	v.file, err = disks.HoldVariables(v.firmware, files)
	return err
}

// File returns the file of the variables, opened without a lock, or nil without UEFI.
func (v *Variables) File() *os.File { return v.file }

// OnClaim returns a path that leads to the file of the variables, and the file's size. kept reports whether the file
// is on the claim with the guest's state.
func (v *Variables) OnClaim() (path string, size int64, kept bool) {
	if v.file == nil || !v.firmware.Variables.InState {
		return "", 0, false
	}
	return fmt.Sprintf("/proc/self/fd/%d", v.file.Fd()), v.firmware.VariablesSize(), true
}

// Close gives the file up.
func (v *Variables) Close() error {
	if v.file == nil {
		return nil
	}
	return v.file.Close()
}
