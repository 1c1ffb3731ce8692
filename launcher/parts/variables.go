package parts

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Variables are the guest's UEFI variables. While QEMU writes them, the launcher holds their file: by now others may
// have changed what is at its path.
type Variables struct {
	None
	firmware *qemuargs.Firmware // nil without UEFI
	file     *os.File
}

// Start holds the file that QEMU gets, without a lock.
func (v *Variables) Start(request *control.StartRequest, files map[string]*os.File) error {
	f := request.Machine.Firmware
	if f == nil {
		return nil
	}
	path, flags := f.Variables.Path, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW
	if inherited := files[string(qemuargs.InheritedVariables)]; inherited != nil {
		path, flags = fmt.Sprintf("/proc/self/fd/%d", inherited.Fd()), unix.O_PATH|unix.O_CLOEXEC
	}
	fd, err := unix.Open(path, flags, 0)
	if err != nil {
		return fmt.Errorf("hold the UEFI variables: %w", err)
	}
	v.firmware, v.file = f, os.NewFile(uintptr(fd), f.Variables.Path)
	return nil
}

// File returns the file of the variables, opened with O_PATH, or nil without UEFI.
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
