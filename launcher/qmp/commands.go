package qmp

import (
	"context"
	"fmt"
	"path"

	monitor "github.com/digitalocean/go-qemu/qmp"
)

// Cont lets the guest's CPUs run.
func (c *Client) Cont(ctx context.Context) error { return c.Execute(ctx, "cont", nil, nil) }

// Stop stops the guest's CPUs.
func (c *Client) Stop(ctx context.Context) error { return c.Execute(ctx, "stop", nil, nil) }

// SystemReset presses the reset button.
func (c *Client) SystemReset(ctx context.Context) error {
	return c.Execute(ctx, "system_reset", nil, nil)
}

// SetLink puts the link of a network card up or down, by the card's device id. The guest sees its cable pulled, or
// plugged in again. QEMU moves no packet over a link that is down, and neither does vhost-net.
func (c *Client) SetLink(ctx context.Context, device string, up bool) error {
	return c.Execute(ctx, "set_link", struct {
		Name string `json:"name"`
		Up   bool   `json:"up"`
	}{device, up}, nil)
}

// Quit ends QEMU at once. QEMU replies before it exits, but the connection may end before the
// reply is read: ErrClosed then means that QEMU has ended.
func (c *Client) Quit(ctx context.Context) error { return c.Execute(ctx, "quit", nil, nil) }

// SystemPowerdown presses the power button. The guest may ignore it.
func (c *Client) SystemPowerdown(ctx context.Context) error {
	return c.Execute(ctx, "system_powerdown", nil, nil)
}

// Status is the run state of the guest (qapi/run-state.json, StatusInfo).
type Status struct {
	Status  string `json:"status"` // a RunState: "running", "prelaunch", "paused", ...
	Running bool   `json:"running"`
}

// StatusFinishMigrate is the run state of a guest that a migration has stopped.
const StatusFinishMigrate = "finish-migrate"

// StatusPaused is the run state of a guest that QEMU was told to stop, or not to start.
const StatusPaused = "paused"

// QueryStatus returns the run state.
func (c *Client) QueryStatus(ctx context.Context) (Status, error) {
	var s Status
	err := c.Execute(ctx, "query-status", nil, &s)
	return s, err
}

// QueryVersion returns QEMU's version.
func (c *Client) QueryVersion(ctx context.Context) (monitor.Version, error) {
	var v monitor.Version
	err := c.Execute(ctx, "query-version", nil, &v)
	return v, err
}

// CPU is one virtual CPU (qapi/machine.json, CpuInfoFast).
type CPU struct {
	Index    int    `json:"cpu-index"`
	QOMPath  string `json:"qom-path"`
	ThreadID int    `json:"thread-id"` // of the host
	Target   string `json:"target"`    // "x86_64", "aarch64", ...
}

// QueryCPUsFast returns the virtual CPUs, without disturbing them.
func (c *Client) QueryCPUsFast(ctx context.Context) ([]CPU, error) {
	var cpus []CPU
	err := c.Execute(ctx, "query-cpus-fast", nil, &cpus)
	return cpus, err
}

// BlockDevice is a block backend of a device (qapi/block-core.json, BlockInfo).
type BlockDevice struct {
	// QDev is the device's id, or its path in QEMU's object tree.
	QDev     string `json:"qdev"`
	TrayOpen bool   `json:"tray_open"` // of a drive that has a tray
	Inserted *struct {
		NodeName string `json:"node-name"`
		Image    struct {
			VirtualSize int64 `json:"virtual-size"` // bytes
		} `json:"image"`
	} `json:"inserted"`
}

// QueryBlock returns the block backends.
func (c *Client) QueryBlock(ctx context.Context) ([]BlockDevice, error) {
	var devices []BlockDevice
	err := c.Execute(ctx, "query-block", nil, &devices)
	return devices, err
}

// TrayIsOpen reports whether the tray of a drive is open, by the drive's device id.
func (c *Client) TrayIsOpen(ctx context.Context, device string) (bool, error) {
	devices, err := c.QueryBlock(ctx)
	if err != nil {
		return false, err
	}
	for _, d := range devices {
		if path.Base(d.QDev) == device {
			return d.TrayOpen, nil
		}
	}
	return false, fmt.Errorf("QEMU has no drive %s", device)
}

// BlockResize gives a block node a new size, in bytes; its device tells the guest.
func (c *Client) BlockResize(ctx context.Context, node string, size int64) error {
	return c.Execute(ctx, "block_resize", struct {
		Node string `json:"node-name"`
		Size int64  `json:"size"`
	}{node, size}, nil)
}

const eventShutdown = "SHUTDOWN"

// Shutdown is the data of a SHUTDOWN event (qapi/run-state.json).
type Shutdown struct {
	Guest  bool   // the guest asked for it
	Reason string // a ShutdownCause: "guest-shutdown", "host-qmp-quit", ...; empty if QEMU said none
}

// ParseShutdown reads the data of a SHUTDOWN event. Data of another shape, or
// another event's, leaves the fields zero.
func ParseShutdown(e monitor.Event) Shutdown {
	var s Shutdown
	s.Guest, _ = e.Data["guest"].(bool)
	s.Reason, _ = e.Data["reason"].(string)
	return s
}

// What QEMU does when the guest has powered off.
const (
	ShutdownPoweroff = "poweroff" // it exits
	ShutdownPause    = "pause"    // it keeps the guest, stopped
)

// SetShutdownAction sets what QEMU does when the guest has powered off.
func (c *Client) SetShutdownAction(ctx context.Context, action string) error {
	return c.Execute(ctx, "set-action", map[string]string{"shutdown": action}, nil)
}

// HasCPUFeature reports whether the guest's CPU at a QOM path has a feature. QEMU has taken away those that its host
// lacks.
func (c *Client) HasCPUFeature(ctx context.Context, path, feature string) (has bool, err error) {
	return has, c.Execute(ctx, "qom-get", map[string]string{"path": path, "property": feature}, &has)
}

// LacksCPUFeatures reports whether a CPU lacks any of the features that QEMU was asked for. A feature that QEMU does
// without for the sake of another property, as KVM's with kvm=off, counts as no feature that was asked for.
func (c *Client) LacksCPUFeatures(ctx context.Context, path string) (bool, error) {
	var words []struct {
		Features uint64 `json:"features"`
	}
	if err := c.Execute(ctx, "qom-get", map[string]string{"path": path, "property": "filtered-features"}, &words); err != nil {
		return false, err
	}
	for _, word := range words {
		if word.Features != 0 {
			return true, nil
		}
	}
	return false, nil
}
