package parts

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
)

// Disks are the machine's disks, and the other files that it has on volumes.
type Disks struct {
	None
	Folders disks.Folders
	// Patience is how long a start waits for a disk that something else uses. 0: no wait.
	Patience time.Duration
	Log      *slog.Logger
}

// Prepare makes the files that QEMU opens, and opens those that QEMU inherits.
func (d Disks) Prepare(ctx context.Context, request *control.StartRequest, files map[string]*os.File) error {
	return d.Folders.Prepare(ctx, request, files, d.Patience, d.Log)
}

// Arrive notes that the guest uses its disks here.
func (d Disks) Arrive(_ context.Context, request *control.StartRequest) {
	go disks.Arrived(&request.Machine, d.Log)
}
