package cluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
)

// ip runs iproute2's ip in the root network namespace.
func ip(ctx context.Context, args ...string) error {
	return runQuiet(exec.CommandContext(ctx, "ip", args...))
}

// runQuiet runs the command and puts what it printed into the error.
func runQuiet(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// addresses are all local addresses with their networks.
func addresses() ([]netip.Prefix, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list local addresses: %w", err)
	}
	var prefixes []netip.Prefix
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes, nil
}

// clashes says whether a local network overlaps one of the plan's.
func (p Plan) clashes(local []netip.Prefix) bool {
	for _, l := range local {
		for _, r := range p.All {
			if l.Overlaps(r.Network) || l.Overlaps(r.Pods) || l.Overlaps(r.Services) {
				return true
			}
		}
	}
	return false
}

func (p Plan) addBridge(ctx context.Context) error {
	steps := [][]string{{"link", "add", p.ID, "type", "bridge"}}
	for _, r := range p.All {
		steps = append(steps, addAddress(netip.PrefixFrom(r.API, r.Network.Bits()), p.ID))
	}
	for _, args := range append(steps, []string{"link", "set", p.ID, "up"}) {
		if err := ip(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// addAddress is ip's command. Nobody else has the address: the kernel need not look before it is of use.
func addAddress(address netip.Prefix, link string) []string {
	args := []string{"address", "add", address.String(), "dev", link}
	if address.Addr().Is6() {
		args = append(args, "nodad")
	}
	return args
}

// connect gives the node, whose PID 1 is init, its eth0 and every route. Over them the machine
// reaches the node's pods (webhooks, aggregated APIs), and so do the other nodes, over the
// bridge. The default route lets the node itself send to a service address, which nftables
// then rewrites.
func (p Plan) connect(ctx context.Context, n NodePlan, init Process) error {
	for _, args := range [][]string{
		{"link", "add", n.Link, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(init.PID)},
		{"link", "set", n.Link, "master", p.ID, "up"},
	} {
		if err := ip(ctx, args...); err != nil {
			return err
		}
	}
	inside := [][]string{{"link", "set", "lo", "up"}, {"link", "set", "eth0", "up"}}
	for i, r := range p.All {
		inside = append(inside, addAddress(netip.PrefixFrom(n.Addresses[i], r.Network.Bits()), "eth0"),
			[]string{"route", "add", "default", "via", r.API.String()})
		for _, other := range p.Nodes {
			if other.Name != n.Name {
				inside = append(inside, []string{"route", "add", other.PodNetworks[i].String(), "via", other.Addresses[i].String()})
			}
		}
	}
	for _, args := range inside {
		if err := enterQuiet(ctx, init, "ip", args...); err != nil {
			return err
		}
	}
	for i, pods := range n.PodNetworks {
		if err := ip(ctx, "route", "add", pods.String(), "via", n.Addresses[i].String(), "dev", p.ID); err != nil {
			return err
		}
	}
	return nil
}

// links are the root namespace's links of this cluster.
func (p Plan) links() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var names []string
	for _, link := range all {
		if strings.HasPrefix(link.Name, p.ID) {
			names = append(names, link.Name)
		}
	}
	return names, nil
}
