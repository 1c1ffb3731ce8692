package qmp

import (
	"context"
	"maps"
	"os"
	"slices"
)

// Capabilities of a migration (qapi/migration.json, MigrationCapability). Both QEMUs need the same.
const (
	// CapabilityEvents has QEMU send MIGRATION events.
	CapabilityEvents = "events"
	// CapabilityReturnPath has the target tell the source whether the target could load the state.
	// Without it a source says "completed" although its target has died.
	CapabilityReturnPath = "return-path"
	// CapabilityPause has the source wait with its guest stopped, until MigrateContinue.
	CapabilityPause = "pause-before-switchover"
	// CapabilityLateActivate keeps the target from its disks until Cont.
	CapabilityLateActivate = "late-block-activate"
	// CapabilityAutoConverge has the source slow its guest down, if the guest changes memory faster
	// than the channel carries it. Only the source needs it.
	CapabilityAutoConverge = "auto-converge"
	// CapabilityPostCopy lets a guest run on the target before its memory is there. A QEMU that waits
	// for a guest refuses it where QEMU cannot use userfaultfd(2).
	CapabilityPostCopy = "postcopy-ram"
)

// SetMigrationCapabilities turns capabilities on, or off. The others stay as they are.
func (c *Client) SetMigrationCapabilities(ctx context.Context, capabilities map[string]bool) error {
	type capability struct {
		Name  string `json:"capability"`
		State bool   `json:"state"`
	}
	list := []capability{}
	for _, name := range slices.Sorted(maps.Keys(capabilities)) {
		list = append(list, capability{name, capabilities[name]})
	}
	return c.Execute(ctx, "migrate-set-capabilities", map[string]any{"capabilities": list}, nil)
}

// MigrationParameters bound a migration (qapi/migration.json, MigrationParameters).
type MigrationParameters struct {
	// MaxBandwidth is in bytes per second.
	MaxBandwidth int64 `json:"max-bandwidth"`
	// MaxPostCopyBandwidth is in bytes per second. Pages that the guest waits for do not count.
	MaxPostCopyBandwidth int64 `json:"max-postcopy-bandwidth"`
	// DowntimeLimit is in milliseconds.
	DowntimeLimit int64 `json:"downtime-limit"`
}

// SetMigrationParameters may also be called while a migration runs.
func (c *Client) SetMigrationParameters(ctx context.Context, p MigrationParameters) error {
	return c.Execute(ctx, "migrate-set-parameters", p, nil)
}

// GetFD gives QEMU a descriptor under a name. QEMU closes an earlier one of that name. The file
// stays the caller's.
func (c *Client) GetFD(ctx context.Context, name string, file *os.File) error {
	return c.Execute(ctx, "getfd", map[string]string{"fdname": name}, nil, file)
}

// CloseFD has QEMU close a descriptor that GetFD gave and no command has used.
func (c *Client) CloseFD(ctx context.Context, name string) error {
	return c.Execute(ctx, "closefd", map[string]string{"fdname": name}, nil)
}

// Migrate begins to send the guest to a descriptor that GetFD gave.
func (c *Client) Migrate(ctx context.Context, fd string) error {
	return c.Execute(ctx, "migrate", map[string]string{"uri": "fd:" + fd}, nil)
}

// AnnounceSelf has QEMU send a frame with each card's MAC, once and at once, so that switches learn where the guest is. A virtio card has its
// guest send ARP besides. More rounds would go on after a short migration, when the guest is elsewhere.
func (c *Client) AnnounceSelf(ctx context.Context) error {
	return c.Execute(ctx, "announce-self", map[string]int{"initial": 50, "max": 550, "rounds": 1, "step": 100}, nil) // milliseconds, as after a migration
}

// MigrateIncoming begins to receive a guest from a descriptor that GetFD gave. QEMU was started
// with -incoming defer.
func (c *Client) MigrateIncoming(ctx context.Context, fd string) error {
	return c.Execute(ctx, "migrate-incoming", map[string]string{"uri": "fd:" + fd}, nil)
}

// MigrateContinue lets a source in MigrationPreSwitchover send the rest.
func (c *Client) MigrateContinue(ctx context.Context) error {
	return c.Execute(ctx, "migrate-continue", map[string]string{"state": MigrationPreSwitchover}, nil)
}

// MigrateStartPostCopy has a source with CapabilityPostCopy stop its guest and send the state of CPUs and
// devices, and the memory after that. It has no effect once QEMU has stopped the guest anyway.
func (c *Client) MigrateStartPostCopy(ctx context.Context) error {
	return c.Execute(ctx, "migrate-start-postcopy", nil, nil)
}

// MigrateCancel ends a migration, and the guest runs on. Without a migration nothing happens.
func (c *Client) MigrateCancel(ctx context.Context) error {
	return c.Execute(ctx, "migrate_cancel", nil, nil)
}

// States of a migration (qapi/migration.json, MigrationStatus). An empty status: there was none.
const (
	MigrationPreSwitchover = "pre-switchover"
	MigrationCompleted     = "completed"
	MigrationFailed        = "failed"
	MigrationCancelled     = "cancelled"
	// MigrationPostCopy: the target has, or is about to get, the state of CPUs and devices, and memory
	// follows. The source's QEMU cannot run the guest again.
	MigrationPostCopy = "postcopy-active"
	// MigrationPostCopyPaused: the channel has ended meanwhile.
	MigrationPostCopyPaused = "postcopy-paused"
)

// Migration is how far a migration is (qapi/migration.json, MigrationInfo).
type Migration struct {
	Status string `json:"status"`
	// Error says why the migration failed. QEMU 7.2 does not say why a target could not load.
	Error string `json:"error-desc"`
	// TotalTime and Downtime are in milliseconds. Downtime is known at the end.
	TotalTime int64 `json:"total-time"`
	Downtime  int64 `json:"downtime"`
	RAM       struct {
		// Transferred, Remaining and Total are in bytes.
		Transferred int64 `json:"transferred"`
		Remaining   int64 `json:"remaining"`
		Total       int64 `json:"total"`
		// DirtyPages is how many pages of PageSize bytes the guest changes in a second.
		DirtyPages int64 `json:"dirty-pages-rate"`
		PageSize   int64 `json:"page-size"`
	} `json:"ram"`
}

// QueryMigrate returns the state of the last migration.
func (c *Client) QueryMigrate(ctx context.Context) (Migration, error) {
	var m Migration
	err := c.Execute(ctx, "query-migrate", nil, &m)
	return m, err
}
