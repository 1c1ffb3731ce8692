package migration

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// State returns the launcher's end of the channel for the guest's memory and devices.
func (a *Arrivals) State(ctx context.Context, node string, migration types.UID) (net.Conn, error) {
	offered, err := a.open(ctx, node, migration, stateChannel)
	if err != nil {
		return nil, err
	}
	return offered.launcher.Stream(ctx, control.CommandOpenChannel, nil)
}

// Receive asks the launcher to receive the guest over the channels.
func (a *Arrivals) Receive(ctx context.Context, node string, migration types.UID) error {
	offered, err := a.open(ctx, node, migration, reception)
	if err != nil {
		return err
	}
	if slices.Contains(offered.disks, control.VariablesDisk) && !a.opened(offered, control.VariablesDisk) {
		return errors.New("the source's virt-handler does not send the UEFI variables, which go to another claim")
	}
	return offered.launcher.Call(ctx, control.CommandReceive, nil, nil)
}

// Names of what is opened beside the disks. No disk has such a name.
const (
	stateChannel = ""
	reception    = " receive"
)

// Disk returns the launcher's end of a channel to a disk.
func (a *Arrivals) Disk(ctx context.Context, node string, migration types.UID, disk string) (net.Conn, error) {
	offered, err := a.open(ctx, node, migration, disk)
	if err != nil {
		return nil, err
	}
	return offered.launcher.Stream(ctx, control.CommandExportDisk, control.DiskRequest{Disk: disk})
}

// open notes that the source opens a channel, or has the guest received, if it may.
func (a *Arrivals) open(ctx context.Context, node string, migration types.UID, channel string) (*arrival, error) {
	if _, err := a.expected(ctx, func(m *v1.VirtualMachineInstanceMigrationState) bool {
		return m.SourceNode == node && m.MigrationUID == migration
	}); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	offered := a.offered[migration]
	if offered == nil || slices.Contains(offered.opened, channel) ||
		channel != stateChannel && channel != reception && !slices.Contains(offered.disks, channel) {
		return nil, peers.ErrUnexpected
	}
	offered.opened = append(offered.opened, channel)
	return offered, nil
}

func (a *Arrivals) opened(offered *arrival, channel string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Contains(offered.opened, channel)
}

// remember keeps an arrival until its launcher's session has ended, and another guest is offered.
func (a *Arrivals) remember(migration types.UID, offered *arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.offered, func(_ types.UID, o *arrival) bool {
		if o.refused != "" {
			return false
		}
		select {
		case <-o.launcher.Client.Done():
			return true
		default:
			return false
		}
	})
	if a.offered == nil {
		a.offered = map[types.UID]*arrival{}
	}
	a.offered[migration] = offered
}
