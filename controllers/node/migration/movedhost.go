package migration

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/start"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// This file is about the facts from which a guest's arguments were made. They go along with a guest that moves, for
// those who ask later. No decision is made by them.

// hostOf returns the facts that a source's launcher keeps. A guest moves without them if there are none.
func hostOf(ctx context.Context, launcher *sessions.Session) string {
	var said control.Arguments
	if err := launcher.Call(ctx, control.CommandArguments, nil, &said); err != nil || len(said.Host) > peers.MaxHost {
		return ""
	}
	return string(said.Host)
}

// movedHost returns what the target's launcher keeps: the facts of the source, but for what this node decides. There is
// nothing to keep if nobody can read them, or if the source has another QEMU: no facts of one node make the arguments
// then.
func movedHost(offer *peers.Offer, here resolve.Host, knows control.Commands) (string, error) {
	told := toldHost(offer)
	if told == nil || offer.QEMUVersion != here.QEMUVersion {
		return "", nil
	}
	host := *told
	host.VhostNet = host.VhostNet && here.VhostNet
	if host.ContainerDisks != nil { // each node's pod has them in its own way
		maps.Copy(host.ContainerDisks, here.ContainerDisks)
	}
	if usesAIO(&offer.Machine) {
		host.AIO.Native = host.AIO.Native && here.AIO.Native
	}
	return start.Kept(host, knows)
}

// toldHost returns the facts of the source, or nil.
func toldHost(offer *peers.Offer) *resolve.Host {
	host := &resolve.Host{}
	if offer.Host == "" || len(offer.Host) > peers.MaxHost ||
		json.Unmarshal([]byte(offer.Host), host) != nil { // the source may be in others' hands
		return nil
	}
	return host
}

// toldImages returns the source's facts about container disks, or nil.
func toldImages(offer *peers.Offer) map[string]qemuargs.ImageFacts {
	if host := toldHost(offer); host != nil {
		return host.ContainerDisks
	}
	return nil
}

// usesAIO reports whether a machine has disks with a kind of I/O of their own, of which the target's launcher is asked.
func usesAIO(m *qemuargs.Machine) bool {
	return slices.ContainsFunc(m.Disks, func(d qemuargs.Disk) bool { return d.AIO != "" })
}
