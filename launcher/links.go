package launcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// This file is about the links of the guest's network cards. QEMU's command line has no word for a link that is down.

// setLinks takes down the links that the Machine says are down, before the guest runs.
func setLinks(ctx context.Context, client *qmp.Client, nics []qemuargs.NIC) error {
	for _, nic := range nics {
		if !nic.Down {
			continue
		}
		if err := client.SetLink(ctx, nic.ID(), false); err != nil {
			return fmt.Errorf("take down the link of interface %q: %w", nic.Name, err)
		}
	}
	return nil
}

// settleLinks gives the links of a guest that has come the states that the Machine says. What has come says what they
// were when the guest left, and a link may have changed after the Machine was sent.
func (l *launcher) settleLinks(ctx context.Context) {
	client, nics := l.qmp, l.start.Machine.NICs
	l.linking = true // nobody changes a link meanwhile
	l.ask(ctx, 2*operateTimeout, func(ctx context.Context) error { return settleEach(ctx, operateTimeout, client, nics) },
		func(err error) {
			l.linking = false
			l.warn("settle the links of the guest that has come")(err)
		})
}

// settleEach refreshes links, and then gives each link its state. Links that were taken down come up again also if
// QEMU was too slow to take down another link, so each of the two has a time of its own.
func settleEach(ctx context.Context, each time.Duration, client *qmp.Client, nics []qemuargs.NIC) error {
	refreshing, cancel := context.WithTimeout(ctx, each)
	errs := []error{refreshLinks(refreshing, client, nics)}
	cancel()
	settling, cancel := context.WithTimeout(ctx, each)
	defer cancel()
	for _, nic := range nics {
		if nic.HostDevice == "" {
			errs = append(errs, client.SetLink(settling, nic.ID(), !nic.Down))
		}
	}
	return errors.Join(errs...)
}

// refreshTime is how long a link is down that is refreshed. The guest's driver reads the link's state when an
// interrupt comes, and would see no change if the link were up again by then.
const refreshTime = time.Second

// refreshLinks takes down the links of which the Machine says so, and returns when the guest had the time to see that.
func refreshLinks(ctx context.Context, client *qmp.Client, nics []qemuargs.NIC) error {
	refreshed := false
	for _, nic := range nics {
		if !nic.RefreshLink || nic.Down {
			continue
		}
		refreshed = true
		if err := client.SetLink(ctx, nic.ID(), false); err != nil {
			return err
		}
	}
	if !refreshed {
		return nil
	}
	seen := time.NewTimer(refreshTime)
	defer seen.Stop()
	select {
	case <-seen.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
