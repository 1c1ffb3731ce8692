package netsetup

import (
	"fmt"
	"strings"
)

const (
	// firstLink is the pod's own interface, by the CRI's convention. Its bridge and tap keep the
	// names of releases that knew no other interface.
	firstLink = "eth0"
	// hashPrefix begins the name of an interface on a network beside the pod's own, before 11
	// hexadecimal digits (KubeVirt's choice). The digits alone are in the names of what is made
	// for it, because the name of a link has 15 characters at most.
	hashPrefix = "pod"

	bridgePrefix  = "k6t-"
	standInPrefix = "k6p-"
	tapPrefix     = "tap"
	// takeoverSuffix is appended to the pod interface's name (KubeVirt's choice).
	takeoverSuffix = "-nic"
)

// names are the names of what is made for an interface of the pod.
type names struct {
	// Bridge, Tap, NIC and StandIn are links. NIC is the pod's interface as a port of the bridge,
	// StandIn the stand-in while it is made.
	Bridge, Tap, NIC, StandIn string
	// Table is an nftables table.
	Table string
}

func namesFor(link string) (names, error) {
	id := strings.TrimPrefix(link, hashPrefix)
	n := names{Bridge: bridgePrefix + id, Tap: tapPrefix + id, NIC: id + takeoverSuffix, StandIn: standInPrefix + id, Table: TableName + "_" + id}
	if id == "" || tapPrefix+id == TapName || len(n.Bridge) > maxLinkName {
		return names{}, fmt.Errorf("bridge name %q for pod interface %q: want at most %d characters", n.Bridge, link, maxLinkName)
	}
	if link == firstLink {
		n.Tap, n.Table = TapName, TableName
	}
	return n, nil
}
