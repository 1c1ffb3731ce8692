package launcher

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
	"github.com/kubeqemu/kubeqemu/netsetup/ipv6"
)

// serveDHCP starts servers on the sockets that virt-handler has sent, and takes these sockets
// out of l.files.
func (l *launcher) serveDHCP() error {
	resolver := readResolver(l.ResolvConf)
	for _, d := range l.start.DHCP {
		if err := l.serveDHCP4(d, resolver); err != nil {
			return fmt.Errorf("serve DHCP to %s: %w", d.NIC, err)
		}
	}
	for _, d := range l.start.IPv6 {
		if err := l.serveIPv6(d, resolver); err != nil {
			return fmt.Errorf("serve IPv6 to %s: %w", d.NIC, err)
		}
	}
	return nil
}

func (l *launcher) serveDHCP4(d control.DHCPServer, resolver resolver) error {
	lease := d.Lease
	if len(lease.DNS) == 0 {
		lease.DNS = resolver.servers4
	}
	if len(lease.SearchDomains) == 0 {
		lease.SearchDomains = withService(resolver.search, d.Service)
	}
	if err := lease.Check(); err != nil {
		return err
	}
	conn, err := l.socket(control.DHCPFile(d.NIC))
	if err != nil {
		return err
	}
	l.leases = append(l.leases, dhcp.Serve(conn, lease, l.Log))
	return nil
}

func (l *launcher) serveIPv6(d control.IPv6Server, resolver resolver) error {
	lease := d.Lease
	if len(lease.DNS) == 0 {
		lease.DNS = resolver.servers6
	}
	if len(lease.SearchDomains) == 0 {
		lease.SearchDomains = withService(resolver.search, d.Service)
	}
	if err := lease.Check(); err != nil {
		return err
	}
	router, err := l.socket(control.RouterFile(d.NIC))
	if err != nil {
		return err
	}
	server, err := l.socket(control.DHCP6File(d.NIC))
	if err != nil {
		router.Close()
		return err
	}
	both, err := ipv6.Serve(ipv6.Sockets{Router: router, DHCP: server}, lease, l.Log)
	if err != nil {
		router.Close()
		server.Close()
		return err
	}
	l.leases = append(l.leases, both)
	return nil
}

// socket takes a socket out of l.files.
func (l *launcher) socket(name string) (net.PacketConn, error) {
	file := l.files[name]
	delete(l.files, name)
	defer file.Close()
	return net.FilePacketConn(file)
}

// withService puts a Service's full domain before the pod's search domains. The cluster's
// domain comes from the search domain of the Service's namespace.
func withService(search []string, service string) []string {
	_, namespace, ok := strings.Cut(service, ".")
	if !ok {
		return search
	}
	for _, domain := range search {
		if cluster, ok := strings.CutPrefix(domain, namespace+"."); ok {
			return append([]string{service + "." + cluster}, search...)
		}
	}
	return search
}

// maxResolvConf is more than any pod's resolv.conf has, in bytes.
const maxResolvConf = 64 << 10

// resolver is what a pod's resolv.conf says, as far as a guest can use it.
type resolver struct {
	servers4, servers6 []netip.Addr
	search             []string
}

// readResolver reads the pod's name servers and search domains.
func readResolver(path string) (r resolver) {
	data, err := os.ReadFile(path)
	if err != nil || len(data) > maxResolvConf {
		return resolver{}
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			a, err := netip.ParseAddr(fields[1])
			switch {
			case err != nil:
			case a.Is4():
				r.servers4 = append(r.servers4, a)
			case ipv6.Tellable(a) && len(r.servers6) < ipv6.MaxServers:
				r.servers6 = append(r.servers6, a)
			}
		case "search":
			r.search = nil
			for _, domain := range fields[1:] {
				if domain != "." {
					r.search = append(r.search, strings.TrimSuffix(domain, "."))
				}
			}
		}
	}
	return r
}
