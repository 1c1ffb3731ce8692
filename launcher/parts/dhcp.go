package parts

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
	"github.com/kubeqemu/kubeqemu/netsetup/ipv6"
)

// DHCP is the servers that tell the guest its addresses, of IPv4 and of IPv6.
type DHCP struct {
	None
	// ResolvConf is the pod's resolv.conf.
	ResolvConf string
	Log        *slog.Logger

	servers []io.Closer
}

// Start starts servers on the sockets that virt-handler has sent, and takes these sockets out of files.
func (s *DHCP) Start(request *control.StartRequest, files map[string]*os.File) error {
	resolver := readResolver(s.ResolvConf)
	for _, d := range request.DHCP {
		if err := s.serve4(d, resolver, files); err != nil {
			return fmt.Errorf("serve DHCP to %s: %w", d.NIC, err)
		}
	}
	for _, d := range request.IPv6 {
		if err := s.serve6(d, resolver, files); err != nil {
			return fmt.Errorf("serve IPv6 to %s: %w", d.NIC, err)
		}
	}
	return nil
}

// Close ends the servers.
func (s *DHCP) Close() error {
	for _, server := range s.servers {
		server.Close()
	}
	return nil
}

func (s *DHCP) serve4(d control.DHCPServer, resolver resolver, files map[string]*os.File) error {
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
	conn, err := takeSocket(files, control.DHCPFile(d.NIC))
	if err != nil {
		return err
	}
	s.servers = append(s.servers, dhcp.Serve(conn, lease, s.Log))
	return nil
}

func (s *DHCP) serve6(d control.IPv6Server, resolver resolver, files map[string]*os.File) error {
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
	router, err := takeSocket(files, control.RouterFile(d.NIC))
	if err != nil {
		return err
	}
	server, err := takeSocket(files, control.DHCP6File(d.NIC))
	if err != nil {
		router.Close()
		return err
	}
	both, err := ipv6.Serve(ipv6.Sockets{Router: router, DHCP: server}, lease, s.Log)
	if err != nil {
		router.Close()
		server.Close()
		return err
	}
	s.servers = append(s.servers, both)
	return nil
}

// takeSocket takes a socket out of files.
func takeSocket(files map[string]*os.File, name string) (net.PacketConn, error) {
	file := files[name]
	delete(files, name)
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
