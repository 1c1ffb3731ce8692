package netsetup

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// replaceTables replaces every table, each in one transaction: there is no moment without
// rules. Established connections keep their translation, which lives in connection tracking.
// An error for which Wired is true says which tables the kernel cannot have. The others are replaced.
func replaceTables(netns ns.NetNS, tables []Table) error {
	conn, err := nftables.New(nftables.WithNetNSFd(int(netns.Fd())), nftables.WithSockOptions(bounded))
	if err != nil {
		return fmt.Errorf("dial nftables: %w", err)
	}
	var without error
	for _, t := range tables {
		if err := addTable(conn, t); err != nil {
			return fmt.Errorf("table %s %s: %w", t.Family, t.Name, err)
		}
		err := conn.Flush()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && errors.Is(err, unix.EOPNOTSUPP):
			err = errNoNFTables
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = fmt.Errorf("the kernel has not answered for %s: %w", nftPatience, os.ErrDeadlineExceeded)
		// A kernel without the family has no chain type for it, and one without an expression has not found its module.
		case t.spared() != nil && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP)):
			without, err = errors.Join(without, t.spared()), nil
		}
		if err != nil {
			return fmt.Errorf("replace nftables table %s %s: %w", t.Family, t.Name, err)
		}
	}
	return without
}

// spared is what it means that the kernel lacks the table's family; nil if no guest is wired then.
func (t Table) spared() error {
	switch t.Family {
	case "bridge":
		return ErrUnfiltered
	case "arp":
		return ErrManyNeighbours
	}
	return nil
}

// ErrManyNeighbours means that the kernel has no nftables for ARP (CONFIG_NF_TABLES_ARP), or none that limit rates
// (CONFIG_NFT_LIMIT). All else is done.
var ErrManyNeighbours = errors.New("the kernel has no nftables for ARP (CONFIG_NF_TABLES_ARP), or none that limit rates (CONFIG_NFT_LIMIT): the guest may fill the node's table of neighbours")

// Wired says whether an error of Apply's means that all is done but filters that the kernel cannot have.
func Wired(err error) bool { return errors.Is(err, ErrUnfiltered) || errors.Is(err, ErrManyNeighbours) }

// errNoNFTables means that the node's kernel has no nftables, and cannot load it.
var errNoNFTables = errors.New("the kernel has no nftables: load the module nf_tables")

// nftPatience is how long the kernel may take for a table. It answers before the send returns,
// and the send may load modules. A kernel that has no nftables, or no memory, answers once for
// all messages (nfnetlink_rcv_batch in net/netfilter/nfnetlink.c), and package nftables waits for
// an answer to each.
const nftPatience = 30 * time.Second

func bounded(conn *netlink.Conn) error { return conn.SetDeadline(time.Now().Add(nftPatience)) }

func addTable(conn *nftables.Conn, t Table) error {
	families := map[string]nftables.TableFamily{
		"ip": nftables.TableFamilyIPv4, "ip6": nftables.TableFamilyIPv6, "arp": nftables.TableFamilyARP, "bridge": nftables.TableFamilyBridge,
	}
	family, ok := families[t.Family]
	if !ok {
		return fmt.Errorf("unknown family %q", t.Family)
	}
	table := &nftables.Table{Name: t.Name, Family: family}
	conn.AddTable(table) // deleting one that is not there would fail the transaction
	conn.DelTable(table)
	conn.AddTable(table)
	for _, c := range t.Chains {
		if err := addChain(conn, table, c); err != nil {
			return fmt.Errorf("chain %q: %w", c.Name, err)
		}
	}
	return nil
}

func addChain(conn *nftables.Conn, table *nftables.Table, c Chain) error {
	hooks := map[string]*nftables.ChainHook{
		"prerouting": nftables.ChainHookPrerouting, "input": nftables.ChainHookInput,
		"forward": nftables.ChainHookForward, "output": nftables.ChainHookOutput,
		"postrouting": nftables.ChainHookPostrouting,
	}
	if table.Family == nftables.TableFamilyARP {
		// NF_ARP_IN and NF_ARP_OUT in linux/netfilter_arp.h
		hooks = map[string]*nftables.ChainHook{"input": nftables.ChainHookRef(0), "output": nftables.ChainHookRef(1)}
	}
	hook, ok := hooks[c.Hook]
	if !ok {
		return fmt.Errorf("unknown hook %q", c.Hook)
	}
	chain := conn.AddChain(&nftables.Chain{
		Name: c.Name, Table: table, Type: nftables.ChainType(c.Type), Hooknum: hook,
		Priority: nftables.ChainPriorityRef(nftables.ChainPriority(c.Priority)),
	})
	for i, r := range c.Rules {
		exprs, err := r.exprs(table.Family)
		if err != nil {
			return fmt.Errorf("rule %d: %w", i, err)
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
	}
	return nil
}

func (r Rule) exprs(family nftables.TableFamily) ([]expr.Any, error) {
	var out []expr.Any
	out = append(out, matchLink(expr.MetaKeyIIFNAME, expr.CmpOpEq, r.In)...)
	out = append(out, matchLink(expr.MetaKeyOIFNAME, expr.CmpOpEq, r.Out)...)
	out = append(out, matchLink(expr.MetaKeyOIFNAME, expr.CmpOpNeq, r.NotOut)...)
	frame, err := r.matchFrame()
	if err != nil {
		return nil, err
	}
	out = append(out, frame...)
	// Offsets of source and destination in the IPv4 and IPv6 headers.
	source, destination := uint32(12), uint32(16)
	if family == nftables.TableFamilyIPv6 || r.EtherType == "ip6" {
		source, destination = 8, 24
	}
	out = append(out, matchAddress(source, r.Source)...)
	out = append(out, matchAddress(destination, r.Destination)...)
	if r.Fragment {
		out = append(out, &expr.Exthdr{DestRegister: 1, Type: unix.IPPROTO_FRAGMENT, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT, Op: expr.ExthdrOpIpv6},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{1}})
	}
	port, err := matchPort(r.Protocol, r.Port)
	if err != nil {
		return nil, err
	}
	port = append(port, r.matchICMP()...)
	connection, err := matchConnection(r.Connection)
	if err != nil {
		return nil, err
	}
	verdict, err := r.verdict(family)
	if err != nil {
		return nil, err
	}
	out = append(append(out, port...), connection...)
	if r.Over != 0 {
		// The burst is a second's packets.
		out = append(out, &expr.Limit{Type: expr.LimitTypePkts, Unit: expr.LimitTimeSecond, Rate: r.Over, Burst: uint32(r.Over), Over: true})
	}
	return append(append(out, &expr.Counter{}), verdict...), nil
}

func matchLink(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	if name == "" {
		return nil
	}
	// The whole field, zero-filled: an exact match, not one by prefix.
	var data [unix.IFNAMSIZ]byte
	copy(data[:], name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: data[:]}}
}

func matchAddress(offset uint32, p netip.Prefix) []expr.Any {
	return matchAddressIn(expr.PayloadBaseNetworkHeader, offset, p)
}

func matchAddressIn(header expr.PayloadBase, offset uint32, p netip.Prefix) []expr.Any {
	if !p.IsValid() {
		return nil
	}
	size := uint32(p.Addr().BitLen() / 8)
	out := []expr.Any{&expr.Payload{DestRegister: 1, Base: header, Offset: offset, Len: size}}
	if !p.IsSingleIP() {
		mask := net.CIDRMask(p.Bits(), p.Addr().BitLen())
		out = append(out, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)})
	}
	return append(out, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()})
}

func matchPort(protocol string, port uint16) ([]expr.Any, error) {
	if protocol == "" {
		return nil, nil
	}
	number, ok := map[string]byte{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP}[protocol]
	if !ok {
		return nil, fmt.Errorf("unknown protocol %q", protocol)
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{number}},
		// TCP and UDP both have the destination port at offset 2.
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}, nil
}

// matchICMP matches an ICMPv6 message. Its type is its first octet (RFC 4443, 2.1), and the
// target of a neighbour solicitation or advertisement is at 8 (RFC 4861, 4.3 and 4.4).
func (r Rule) matchICMP() []expr.Any {
	if r.ICMP == 0 {
		return nil
	}
	return append([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{r.ICMP}},
	}, matchAddressIn(expr.PayloadBaseTransportHeader, 8, r.Target)...)
}

func matchConnection(connection string) ([]expr.Any, error) {
	const dstNAT = 1 << 5 // IPS_DST_NAT in linux/netfilter/nf_conntrack_common.h
	key, bits := expr.CtKeySTATE, uint32(0)
	switch connection {
	case "":
		return nil, nil
	case "invalid":
		bits = expr.CtStateBitINVALID
	case "established":
		bits = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
	case "dnat":
		key, bits = expr.CtKeySTATUS, dstNAT
	default:
		return nil, fmt.Errorf("unknown connection state %q", connection)
	}
	none := make([]byte, 4)
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: none},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: none},
	}, nil
}

// matchFrame matches what only a bridge table sees.
func (r Rule) matchFrame() ([]expr.Any, error) {
	var out []expr.Any
	mac, err := matchNotMAC(expr.PayloadBaseLLHeader, 6, r.NotSourceMAC)
	if err != nil {
		return nil, err
	}
	out = append(out, mac...)
	switch r.Tag {
	case "":
	case "8021q", "8021ad":
		// The kernel keeps the outer tag beside the frame; a load from the link
		// layer's header finds it in its place (nft_payload_copy_vlan).
		number := map[string]uint16{"8021q": unix.ETH_P_8021Q, "8021ad": unix.ETH_P_8021AD}[r.Tag]
		out = append(out, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 12, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(number)})
	default:
		return nil, fmt.Errorf("unknown VLAN tag %q", r.Tag)
	}
	switch r.EtherType {
	case "":
	case "arp", "rarp", "ip", "ip6":
		number := map[string]uint16{"arp": unix.ETH_P_ARP, "rarp": unix.ETH_P_RARP, "ip": unix.ETH_P_IP, "ip6": unix.ETH_P_IPV6}[r.EtherType]
		out = append(out, &expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(number)})
	default:
		return nil, fmt.Errorf("unknown Ethernet type %q", r.EtherType)
	}
	// ARP for IPv4 on Ethernet (RFC 826): the sender's MAC at 8, its address at 14, the target's address at 24.
	if mac, err = matchNotMAC(expr.PayloadBaseNetworkHeader, 8, r.NotSenderMAC); err != nil {
		return nil, err
	}
	out = append(append(out, mac...), matchAddress(14, r.Sender)...)
	if r.EtherType == "arp" {
		out = append(out, matchAddress(24, r.Target)...)
	}
	return out, nil
}

func matchNotMAC(base expr.PayloadBase, offset uint32, text string) ([]expr.Any, error) {
	if text == "" {
		return nil, nil
	}
	mac, err := ethernet(text)
	if err != nil {
		return nil, err
	}
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: 6},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: mac}}, nil
}

// deliver sends a frame to the bridge itself. It sets the packet type too: the kernel has set
// that before the bridge's hooks, by the frame's first address.
func deliver(text string) ([]expr.Any, error) {
	mac, err := ethernet(text)
	if err != nil {
		return nil, err
	}
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: mac},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseLLHeader, Len: 6},
		&expr.Immediate{Register: 1, Data: []byte{unix.PACKET_HOST}},
		&expr.Meta{Key: expr.MetaKeyPKTTYPE, SourceRegister: true, Register: 1},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}, nil
}

func (r Rule) verdict(family nftables.TableFamily) ([]expr.Any, error) {
	kind := expr.NATTypeDestNAT
	switch r.Verdict {
	case "accept":
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}, nil
	case "drop":
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}, nil
	case "masquerade":
		return []expr.Any{&expr.Masq{}}, nil
	case "deliver":
		return deliver(r.ToMAC)
	case "dnat":
	case "snat":
		kind = expr.NATTypeSourceNAT
	default:
		return nil, fmt.Errorf("unknown verdict %q", r.Verdict)
	}
	if !r.To.IsValid() {
		return nil, errors.New("translation without an address")
	}
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: r.To.AsSlice()},
		&expr.NAT{Type: kind, Family: uint32(family), RegAddrMin: 1},
	}, nil
}
