// Package cluster runs a real Kubernetes on one machine, without downloads:
// the control plane as plain processes, each node in namespaces of its own.
package cluster

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"path"
	"regexp"
	"strings"
)

const (
	// indexes is how many clusters have addresses of their own (see NewPlan).
	indexes = 64
	// maxNodes is how many /24 pod networks a cluster's /22 holds.
	maxNodes = 4

	apiPort        = 6443
	etcdPort       = 2379
	etcdPeerPort   = 2380
	proxyCheckPort = 10256
)

// Plan is every name and address of one cluster. It follows from the cluster's
// name, folder, index and number of nodes alone.
//
// Index i (0 to 63) owns 10.199.i.0/24 for the bridge and the nodes,
// 10.200.(4i).0/22 for pods (a /24 for each node), 10.201.i.0/24 for services
// and 127.77.i.1 for what only the control plane itself dials. In IPv6 it owns
// fd00:10:199:i::/64, fd00:10:200:i::/64 (an /80 for each node) and
// fd00:10:201:i::/112, with i in hexadecimal digits.
type Plan struct {
	Name     string
	Dir      string // absolute; everything the cluster writes is in here
	ID       string // "kq" and 6 hex digits: the bridge, and the prefix of links and cgroups
	Index    int
	Families Families
	Loopback netip.Addr
	Ranges            // those of the first family
	All      []Ranges // one for each family
	Nodes    []NodePlan
	// OwnCPUs: the kubelets give pods CPUs of their own. Only up needs to know: it writes the kubelets' configuration.
	OwnCPUs bool
	// Emulates is the release of Kubernetes that the API server emulates; empty for its own.
	Emulates string
	// Containerd1: the nodes' containerd is 1.x, whose configuration has another format than that of 2.x.
	Containerd1 bool
}

// Ranges are the networks of one address family.
type Ranges struct {
	Network  netip.Prefix
	API      netip.Addr // the bridge's address; kube-apiserver listens at the first family's
	Pods     netip.Prefix
	Services netip.Prefix
}

// Families are the address families of a cluster's nodes, pods and Services.
type Families string

const (
	IPv4      Families = "" // also of a state file that does not say it
	DualStack Families = "dual"
	IPv6      Families = "ipv6"
)

// ParseFamilies takes ipv4, dual and ipv6.
func ParseFamilies(text string) (Families, error) {
	switch text {
	case "ipv4":
		return IPv4, nil
	case string(DualStack), string(IPv6):
		return Families(text), nil
	}
	return "", fmt.Errorf("address families %q: want ipv4, dual or ipv6", text)
}

func ranges4(index int) Ranges {
	i := byte(index)
	return Ranges{
		Network:  netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 199, i, 0}), 24),
		API:      netip.AddrFrom4([4]byte{10, 199, i, 1}),
		Pods:     netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, 4 * i, 0}), 22),
		Services: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 201, i, 0}), 24),
	}
}

func ranges6(index int) Ranges {
	network := func(second uint16, bits int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, byte(second >> 8), byte(second), 0, byte(index)}), bits)
	}
	nodes := network(0x199, 64)
	return Ranges{Network: nodes, API: nodes.Addr().Next(), Pods: network(0x200, 64), Services: network(0x201, 112)}
}

// node returns a node's address and its pods' network, counted from 1.
func (r Ranges) node(n int) (netip.Addr, netip.Prefix) {
	address := r.Network.Addr().AsSlice()
	address[len(address)-1] = byte(10 + n)
	pods, place, bits := r.Pods.Addr().AsSlice(), 2, 24
	if r.Pods.Addr().Is6() {
		place, bits = 9, 80
	}
	pods[place] += byte(n - 1)
	a, _ := netip.AddrFromSlice(address)
	b, _ := netip.AddrFromSlice(pods)
	return a, netip.PrefixFrom(b, bits)
}

// join writes a value of each family as the programs of Kubernetes take a pair.
func join[T fmt.Stringer](values []T) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ",")
}

func (p Plan) allPods() (out []netip.Prefix) {
	for _, r := range p.All {
		out = append(out, r.Pods)
	}
	return out
}

func (p Plan) allServices() (out []netip.Prefix) {
	for _, r := range p.All {
		out = append(out, r.Services)
	}
	return out
}

// NodePlan is the part of the plan that belongs to one node.
type NodePlan struct {
	Name    string
	Address netip.Addr // of the first family, as Pods is
	Pods    netip.Prefix
	// Addresses and PodNetworks are those of each family.
	Addresses   []netip.Addr
	PodNetworks []netip.Prefix
	Link        string // the root namespace's end of the veth pair; the node's is eth0
	Cgroup      string // below every cgroup hierarchy's root, with a leading slash
}

// Names become part of file names and of an environment variable.
var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// FirstIndex is where the search for a free index starts: clusters of
// different names usually need not search.
func FirstIndex(name string) int { return int(hash(name) % indexes) }

func hash(s string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s))
	return h.Sum32()
}

// NewPlan lays out a cluster. Link names have at most 15 bytes (IFNAMSIZ), so
// they carry a hash of name and folder instead of the name.
func NewPlan(name, dir string, index, nodes int, families Families) (Plan, error) {
	switch {
	case !validName.MatchString(name):
		return Plan{}, fmt.Errorf("cluster name %q: want 1 to 32 lower-case letters, digits and inner dashes", name)
	case index < 0 || index >= indexes:
		return Plan{}, fmt.Errorf("index %d: want 0 to %d", index, indexes-1)
	case nodes < 1 || nodes > maxNodes:
		return Plan{}, fmt.Errorf("%d nodes: want 1 to %d", nodes, maxNodes)
	case !path.IsAbs(dir):
		return Plan{}, fmt.Errorf("folder %q: want an absolute path", dir)
	}
	p := Plan{
		Name:     name,
		Dir:      path.Clean(dir),
		ID:       fmt.Sprintf("kq%06x", hash(name+"\x00"+path.Clean(dir))&0xffffff),
		Index:    index,
		Families: families,
		Loopback: netip.AddrFrom4([4]byte{127, 77, byte(index), 1}),
	}
	if families != IPv6 {
		p.All = append(p.All, ranges4(index))
	}
	if families != IPv4 {
		p.All = append(p.All, ranges6(index))
	}
	p.Ranges = p.All[0]
	for n := 1; n <= nodes; n++ {
		node := NodePlan{
			Name:   fmt.Sprintf("node-%d", n),
			Link:   fmt.Sprintf("%sn%d", p.ID, n),
			Cgroup: fmt.Sprintf("/%s/node-%d", p.ID, n),
		}
		for _, r := range p.All {
			address, pods := r.node(n)
			node.Addresses, node.PodNetworks = append(node.Addresses, address), append(node.PodNetworks, pods)
		}
		node.Address, node.Pods = node.Addresses[0], node.PodNetworks[0]
		p.Nodes = append(p.Nodes, node)
	}
	return p, nil
}

// ServiceAPI is the address of the service default/kubernetes: kube-apiserver
// takes the first of the first range.
func (p Plan) ServiceAPI() netip.Addr { return p.Services.Addr().Next() }

// APIURL is kube-apiserver's address for everyone but pods.
func (p Plan) APIURL() string {
	return "https://" + netip.AddrPortFrom(p.API, apiPort).String()
}

func (p Plan) etcdURL(port uint16) string {
	return "http://" + netip.AddrPortFrom(p.Loopback, port).String()
}

func (p Plan) file(elem ...string) string { return path.Join(append([]string{p.Dir}, elem...)...) }

// Kubeconfig is the administrator's, usable from the root network namespace.
func (p Plan) Kubeconfig() string { return p.file("kubeconfig") }

func (p Plan) stateFile() string          { return p.file("state.json") }
func (p Plan) pauseFile() string          { return p.file("pause.tar") }
func (p Plan) logs() string               { return p.file("logs") }
func (p Plan) log(process string) string  { return p.file("logs", process+".log") }
func (p Plan) pki(name string) string     { return p.file("pki", name) }
func (p Plan) nodeDir(n NodePlan) string  { return p.file(n.Name) }
func (p Plan) conf(process string) string { return p.file(process + ".kubeconfig") }
