// Package wiring connects guests to their pods' networks. It knows the pod's link behind each of a VMI's interfaces,
// plans how each is wired, and wires them all in the network namespace of the launcher.
package wiring

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Wirer wires the networks of launchers' pods.
type Wirer struct {
	// OpenVhostNet opens the kernel's vhost-net (netsetup.OpenVhostNet). It is tried before each
	// start, because a module may be loaded at any time. Nil stands for a kernel without it.
	OpenVhostNet func(queues int) ([]*os.File, error)
	Events       events.EventRecorder

	vhostCounts vhostCounts
	// neighboursLogged: virt-handler's log has netsetup.ErrManyNeighbours.
	neighboursLogged sync.Once
}

// Forget forgets a VMI that is gone.
func (w *Wirer) Forget(name types.NamespacedName) { w.vhostCounts.forget(name) }

// Wires holds the open files that a launcher gets for its network, and what the launcher tells the guest over them.
type Wires struct {
	Files  []control.File
	Leases []control.DHCPServer
	IPv6   []control.IPv6Server

	// unfiltered are the interfaces whose guests may send from any address
	// (netsetup.ErrUnfiltered).
	unfiltered []string
	// manyNeighbours: the node's kernel lacks a filter (netsetup.ErrManyNeighbours).
	manyNeighbours bool

	openVhostNet func(queues int) ([]*os.File, error)
}

// Wire connects the VMI's interfaces in the launcher's network namespace. The caller closes the Wires.
func (w *Wirer) Wire(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session,
	connections []Connection) (*Wires, error) {
	wires := w.wires(vmi, launcher.Pod.Name)
	if err := launcher.Inside(func(netns ns.NetNS) error { return wires.wire(vmi, connections, netns) }); err != nil {
		wires.Close()
		return nil, err
	}
	w.warnUnfiltered(ctx, vmi, wires)
	return wires, nil
}

// wires returns the Wires of one hand-over to the launcher of a pod. It counts as one of vhost-net's files, however
// many cards have some, once the first is open: a hand-over that fails before has given the launcher none.
func (w *Wirer) wires(vmi *v1.VirtualMachineInstance, pod string) *Wires {
	counted := false
	return &Wires{openVhostNet: func(queues int) ([]*os.File, error) {
		if !counted {
			w.vhostCounts.note(vmi, pod)
			counted = true
		}
		return w.OpenVhostNet(queues)
	}}
}

// Close closes this process's copies; QEMU and the launcher have their own.
func (w *Wires) Close() {
	for _, f := range w.Files {
		f.Close()
	}
}

// Connection is how an interface of the VMI's is going to be wired.
type Connection struct {
	name  string // of the interface
	nic   qemuargs.NIC
	plan  *netsetup.Plan
	lease dhcp.Lease // if the plan Serves
}

// Plan plans the VMI's interfaces, before any is wired, but for those of passt, which need nothing. links holds the
// pod's link behind each interface, by interface. Neither the spec nor what the plugins have made changes later: an
// interface that cannot be planned never can. It is pure.
func Plan(vmi *v1.VirtualMachineInstance, machine *qemuargs.Machine,
	links map[string]netsetup.Facts) ([]Connection, field.ErrorList) {
	var out []Connection
	var errs field.ErrorList
	for i, nic := range vmi.Spec.Domain.Devices.Interfaces {
		if nic.SRIOV != nil || nic.PasstBinding != nil {
			continue // QEMU has the card itself; passt uses the pod's network as any program does
		}
		at := slices.IndexFunc(machine.NICs, func(n qemuargs.NIC) bool { return n.Name == nic.Name })
		if at < 0 {
			errs = append(errs, field.Forbidden(InterfacePath(i), "the machine has no such card"))
			continue
		}
		c := Connection{name: nic.Name, nic: machine.NICs[at]}
		var err error
		if c.plan, err = planOf(vmi, nic, c.nic, links[nic.Name]); err == nil && c.plan.Serves() {
			c.lease, err = lease(vmi, nic, c.nic, c.plan)
		}
		if err != nil {
			errs = append(errs, field.Forbidden(InterfacePath(i), fmt.Sprintf("network %q: %v", nic.Name, err)))
		}
		out = append(out, c)
	}
	if len(errs) == 0 {
		errs = overlaps(out)
	}
	return out, errs
}

// overlaps refuses an interface whose address is in the private network of a masqueraded one. The
// stand-in has the address, so the pod's stack would take the masqueraded guest's packets for its own.
func overlaps(all []Connection) (errs field.ErrorList) {
	for _, masqueraded := range all {
		if masqueraded.plan.Takeover != nil {
			continue
		}
		for i, c := range all {
			if c.plan.Takeover == nil {
				continue
			}
			for _, a := range c.plan.Takeover.Addresses {
				for _, private := range masqueraded.plan.Bridge.Addresses {
					if private.Contains(a.Addr()) {
						errs = append(errs, field.Forbidden(InterfacePath(i), fmt.Sprintf(
							"network %q gives the address %s, which is in the private network %s of interface %q: "+
								"set spec.networks[].pod.vmNetworkCIDR to another network",
							c.name, a.Addr(), private.Masked(), masqueraded.name)))
					}
				}
			}
		}
	}
	return errs
}

func (w *Wires) wire(vmi *v1.VirtualMachineInstance, connections []Connection, netns ns.NetNS) error {
	for _, c := range connections {
		if err := w.connect(vmi, c, netns); err != nil {
			return fmt.Errorf("wire interface %s: %w", c.name, err)
		}
	}
	return nil
}

func (w *Wires) connect(vmi *v1.VirtualMachineInstance, c Connection, netns ns.NetNS) error {
	err := netsetup.Apply(netns, c.plan)
	if err != nil && !netsetup.Wired(err) {
		return err
	}
	if errors.Is(err, netsetup.ErrUnfiltered) {
		w.unfiltered = append(w.unfiltered, c.name)
	}
	w.manyNeighbours = w.manyNeighbours || errors.Is(err, netsetup.ErrManyNeighbours)
	taps, err := netsetup.OpenTap(netns, c.plan)
	if err != nil {
		return err
	}
	w.bring(qemuargs.InheritedTap, c.nic.Name, taps)
	if c.nic.Vhost {
		files, err := w.openVhostNet(c.nic.Queues)
		if err != nil {
			return err
		}
		w.bring(qemuargs.InheritedVhost, c.nic.Name, files)
	}
	service := ""
	if vmi.Spec.Subdomain != "" {
		service = vmi.Spec.Subdomain + "." + vmi.Namespace + ".svc"
	}
	if c.plan.Serves() {
		socket, err := netsetup.ListenDHCP(netns, c.plan)
		if err != nil {
			return err
		}
		w.Files = append(w.Files, control.File{Name: control.DHCPFile(c.name), File: socket})
		w.Leases = append(w.Leases, control.DHCPServer{NIC: c.name, Lease: c.lease, Service: service})
	}
	if c.plan.IPv6 != nil {
		router, dhcp, err := netsetup.ListenIPv6(netns, c.plan)
		if err != nil {
			return err
		}
		w.Files = append(w.Files, control.File{Name: control.RouterFile(c.name), File: router},
			control.File{Name: control.DHCP6File(c.name), File: dhcp})
		w.IPv6 = append(w.IPv6, control.IPv6Server{NIC: c.name, Lease: c.plan.Lease6(), Service: service})
	}
	return nil
}

// bring adds the files behind an interface's queues.
func (w *Wires) bring(kind qemuargs.InheritedKind, nic string, files []*os.File) {
	for queue, file := range files {
		name := qemuargs.Inherited{Kind: kind, Name: nic, Index: queue}.String()
		w.Files = append(w.Files, control.File{Name: name, File: file})
	}
}

// planOf returns the network plan of an interface.
func planOf(vmi *v1.VirtualMachineInstance, nic v1.Interface, resolved qemuargs.NIC,
	facts netsetup.Facts) (*netsetup.Plan, error) {
	if nic.IsBridged() {
		return netsetup.PlanBridge(facts, netsetup.Bridged{MAC: resolved.MAC, Queues: resolved.Queues,
			Beside: !vmi.Spec.OnPods(nic.Name), Managed: !nic.MayServe()})
	}
	binding := netsetup.Masquerade{Queues: resolved.Queues}
	for _, n := range vmi.Spec.Networks {
		if n.Name != nic.Name || n.Pod == nil {
			continue
		}
		for text, into := range map[string]*netip.Prefix{n.Pod.VMNetworkCIDR: &binding.Network,
			n.Pod.VMIPv6NetworkCIDR: &binding.Network6} {
			if text == "" {
				continue
			}
			var err error
			if *into, err = v1.ParseNetwork(text); err != nil {
				return nil, err
			}
		}
	}
	for _, p := range nic.Ports {
		protocol := p.Protocol
		if protocol == "" {
			protocol = "TCP"
		}
		binding.Ports = append(binding.Ports, netsetup.Port{Protocol: protocol, Port: uint16(p.Port)})
	}
	return netsetup.PlanMasquerade(facts, binding)
}

// lease returns what DHCP tells the guest. An option that DHCP cannot carry is an error here, before the launcher
// gets it.
func lease(vmi *v1.VirtualMachineInstance, nic v1.Interface, resolved qemuargs.NIC,
	plan *netsetup.Plan) (dhcp.Lease, error) {
	out := plan.Lease(resolved.MAC)
	out.Hostname, out.MTU = vmi.GuestHostname(), mtuOf(resolved, out.MTU)
	options := nic.DHCPOptions
	if options == nil {
		return out, out.Check()
	}
	out.TFTPServer, out.BootFile = options.TFTPServerName, options.BootFileName
	for _, server := range options.NTPServers {
		a, err := netip.ParseAddr(server)
		if err != nil {
			return out, fmt.Errorf("read NTP server: %w", err)
		}
		out.NTP = append(out.NTP, a)
	}
	for _, o := range options.PrivateOptions {
		if o.Option < 0 || o.Option > 255 {
			return out, fmt.Errorf("DHCP option %d: want 224 to 254", o.Option)
		}
		out.Private = append(out.Private, dhcp.Option{Code: uint8(o.Option), Value: o.Value})
	}
	return out, out.Check()
}

// mtuOf returns the MTU that the guest is told of a network. The drivers of old cards take no more than some, and
// then may take none at all.
func mtuOf(nic qemuargs.NIC, mtu uint16) uint16 {
	most := map[string]uint16{
		"e1000":   16110, // MAX_JUMBO_FRAME_SIZE in Linux's e1000, without the header and the checksum
		"e1000e":  9212,  // DEFAULT_JUMBO in Linux's e1000e, without the header, a VLAN tag and the checksum
		"rtl8139": 4096,  // CP_MAX_MTU in Linux's 8139cp
	}
	if limit, ok := most[nic.Driver]; ok {
		return min(mtu, limit)
	}
	return mtu
}

// warnUnfiltered warns that this node's kernel does not hold the guest to its own addresses. Only administrators can
// mend a node's table of neighbours that guests fill, so the log has that warning, once.
func (w *Wirer) warnUnfiltered(ctx context.Context, vmi *v1.VirtualMachineInstance, wires *Wires) {
	if wires.manyNeighbours {
		w.neighboursLogged.Do(func() {
			ctrl.LoggerFrom(ctx).Error(netsetup.ErrManyNeighbours, "connect guests without a filter")
		})
	}
	for _, name := range wires.unfiltered {
		ctrl.LoggerFrom(ctx).Error(netsetup.ErrUnfiltered, "connect a guest without a filter", "interface", name)
		w.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "NetworkUnfiltered", "Start", "Interface %s: %v", name,
			netsetup.ErrUnfiltered)
	}
}
