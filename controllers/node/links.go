package node

import (
	"slices"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// linkState returns the state of the link of a guest's card; empty if the launcher does not tell.
func linkState(launcher *sessions.Session, nic string) v1.InterfaceState {
	m := launcher.State().Machine
	if m == nil {
		return ""
	}
	i := slices.IndexFunc(m.NICs, func(n qemuargs.NIC) bool { return n.Name == nic })
	switch {
	case i < 0 || m.NICs[i].HostDevice != "":
		return ""
	case m.NICs[i].Down:
		return v1.LinkDown
	}
	return v1.LinkUp
}
