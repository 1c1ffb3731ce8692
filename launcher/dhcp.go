package launcher

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
)

// serveDHCP starts a DHCP server on each socket that virt-handler has sent, and takes these
// sockets out of l.files.
func (l *launcher) serveDHCP() error {
	servers, search := resolver(l.ResolvConf)
	for _, d := range l.start.DHCP {
		lease := d.Lease
		if len(lease.DNS) == 0 {
			lease.DNS = servers
		}
		if len(lease.SearchDomains) == 0 {
			lease.SearchDomains = withService(search, d.Service)
		}
		if err := lease.Check(); err != nil {
			return fmt.Errorf("serve DHCP to %s: %w", d.NIC, err)
		}
		socket := l.files[control.DHCPFile(d.NIC)]
		delete(l.files, control.DHCPFile(d.NIC))
		conn, err := net.FilePacketConn(socket)
		socket.Close()
		if err != nil {
			return fmt.Errorf("serve DHCP to %s: %w", d.NIC, err)
		}
		l.leases = append(l.leases, dhcp.Serve(conn, lease, l.Log))
	}
	return nil
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

// resolver reads the pod's name servers and search domains. It leaves out what DHCPv4 cannot
// tell a guest, such as IPv6 servers.
func resolver(path string) (servers []netip.Addr, search []string) {
	data, err := os.ReadFile(path)
	if err != nil || len(data) > maxResolvConf {
		return nil, nil
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(fields[1]); err == nil && a.Is4() {
				servers = append(servers, a)
			}
		case "search":
			search = nil
			for _, domain := range fields[1:] {
				if domain != "." {
					search = append(search, strings.TrimSuffix(domain, "."))
				}
			}
		}
	}
	return servers, search
}
