package parts

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Disks are the machine's disks, and the other files that it has on volumes.
type Disks struct {
	None
	Folders disks.Folders
	// Patience is how long a start waits for a disk that something else uses. 0: no wait.
	Patience time.Duration
	Log      *slog.Logger

	machine *qemuargs.Machine
}

// Prepare makes the files that QEMU opens, and opens those that QEMU inherits.
func (d *Disks) Prepare(ctx context.Context, request *control.StartRequest, files map[string]*os.File) error {
	opened, err := d.Folders.Prepare(ctx, request, d.Patience, d.Log)
	maps.Copy(files, opened)
	return err
}

// Start remembers the machine.
func (d *Disks) Start(request *control.StartRequest, _ map[string]*os.File) error {
	d.machine = &request.Machine
	return nil
}

// Whole notes that a migration has copied all of the disks in volumes. Any goroutine may call it.
func (d *Disks) Whole() { disks.Whole(d.machine, d.Log) }

// Arrive notes that the guest uses its disks here.
func (d *Disks) Arrive(context.Context) { go disks.Arrived(d.machine, d.Log) }
