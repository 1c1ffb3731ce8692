package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// wiring holds the open files that a launcher gets for its network.
type wiring struct {
	files  []control.File
	leases []control.DHCPServer
	ipv6   []control.IPv6Server
	// unfiltered are the interfaces whose guests may send from any address
	// (netsetup.ErrUnfiltered).
	unfiltered []string
	// manyNeighbours: the node's kernel lacks a filter (netsetup.ErrManyNeighbours).
	manyNeighbours bool

	openVhostNet func(queues int) ([]*os.File, error)
}

// wiring is for one hand-over to the launcher of a pod. It counts as one of vhost-net's files, however many cards
// have some, once the first is open: a hand-over that fails before has given the launcher none.
func (r *Reconciler) wiring(vmi *v1.VirtualMachineInstance, pod string) *wiring {
	counted := false
	return &wiring{openVhostNet: func(queues int) ([]*os.File, error) {
		if !counted {
			r.vhostCounts.note(vmi, pod)
			counted = true
		}
		return r.OpenVhostNet(queues)
	}}
}

// close closes this process's copies; QEMU and the launcher have their own.
func (w *wiring) close() {
	for _, f := range w.files {
		f.Close()
	}
}

// connection is how an interface of the VMI's is going to be wired.
type connection struct {
	name  string // of the interface
	nic   qemuargs.NIC
	plan  *netsetup.Plan
	lease dhcp.Lease // if the plan Serves
}

// connections plans the VMI's interfaces, before any is wired, but for those of passt, which need nothing. facts holds the pod's link
// behind each interface, by interface. Neither the spec nor what the plugins have made changes
// later: an interface that cannot be planned never can. It is pure.
func connections(vmi *v1.VirtualMachineInstance, machine *qemuargs.Machine, facts map[string]netsetup.Facts) ([]connection, field.ErrorList) {
	var out []connection
	var errs field.ErrorList
	for i, nic := range vmi.Spec.Domain.Devices.Interfaces {
		if nic.SRIOV != nil || nic.PasstBinding != nil {
			continue // QEMU has the card itself; passt uses the pod's network as any program does
		}
		c := connection{name: nic.Name, nic: machine.NICs[i]}
		var err error
		if c.plan, err = plan(vmi, nic, c.nic, facts[nic.Name]); err == nil && c.plan.Serves() {
			c.lease, err = lease(vmi, nic, c.nic, c.plan)
		}
		if err != nil {
			errs = append(errs, field.Forbidden(interfacePath(i), fmt.Sprintf("network %q: %v", nic.Name, err)))
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
func overlaps(all []connection) (errs field.ErrorList) {
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
						errs = append(errs, field.Forbidden(interfacePath(i), fmt.Sprintf("network %q gives the address %s, which is in the private network %s of interface %q: set spec.networks[].pod.vmNetworkCIDR to another network",
							c.name, a.Addr(), private.Masked(), masqueraded.name)))
					}
				}
			}
		}
	}
	return errs
}

// wire connects the VMI's interfaces in the launcher's network namespace.
func (w *wiring) wire(vmi *v1.VirtualMachineInstance, connections []connection, netns ns.NetNS) error {
	for _, c := range connections {
		if err := w.connect(vmi, c, netns); err != nil {
			return fmt.Errorf("wire interface %s: %w", c.name, err)
		}
	}
	return nil
}

func (w *wiring) connect(vmi *v1.VirtualMachineInstance, c connection, netns ns.NetNS) error {
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
		w.files = append(w.files, control.File{Name: control.DHCPFile(c.name), File: socket})
		w.leases = append(w.leases, control.DHCPServer{NIC: c.name, Lease: c.lease, Service: service})
	}
	if c.plan.IPv6 != nil {
		router, dhcp, err := netsetup.ListenIPv6(netns, c.plan)
		if err != nil {
			return err
		}
		w.files = append(w.files, control.File{Name: control.RouterFile(c.name), File: router}, control.File{Name: control.DHCP6File(c.name), File: dhcp})
		w.ipv6 = append(w.ipv6, control.IPv6Server{NIC: c.name, Lease: c.plan.Lease6(), Service: service})
	}
	return nil
}

// bring adds the files behind an interface's queues.
func (w *wiring) bring(kind qemuargs.InheritedKind, nic string, files []*os.File) {
	for queue, file := range files {
		name := qemuargs.Inherited{Kind: kind, Name: nic, Index: queue}.String()
		w.files = append(w.files, control.File{Name: name, File: file})
	}
}

// plan is the network plan of an interface.
func plan(vmi *v1.VirtualMachineInstance, nic v1.Interface, resolved qemuargs.NIC, facts netsetup.Facts) (*netsetup.Plan, error) {
	if nic.IsBridged() {
		return netsetup.PlanBridge(facts, netsetup.Bridged{MAC: resolved.MAC, Queues: resolved.Queues, Beside: !vmi.Spec.OnPods(nic.Name), Managed: !nic.MayServe()})
	}
	binding := netsetup.Masquerade{Queues: resolved.Queues}
	for _, n := range vmi.Spec.Networks {
		if n.Name != nic.Name || n.Pod == nil {
			continue
		}
		for text, into := range map[string]*netip.Prefix{n.Pod.VMNetworkCIDR: &binding.Network, n.Pod.VMIPv6NetworkCIDR: &binding.Network6} {
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

// lease is what DHCP tells the guest. An option that DHCP cannot carry is an error here,
// before the launcher gets it.
func lease(vmi *v1.VirtualMachineInstance, nic v1.Interface, resolved qemuargs.NIC, plan *netsetup.Plan) (dhcp.Lease, error) {
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

// warnUnfiltered warns that this node's kernel does not hold the guest to its own addresses. Only administrators can mend a
// node's table of neighbours that guests fill, so the log has that warning, once.
func (r *Reconciler) warnUnfiltered(ctx context.Context, vmi *v1.VirtualMachineInstance, w *wiring) {
	if w.manyNeighbours {
		r.neighboursLogged.Do(func() { ctrl.LoggerFrom(ctx).Error(netsetup.ErrManyNeighbours, "connect guests without a filter") })
	}
	for _, name := range w.unfiltered {
		ctrl.LoggerFrom(ctx).Error(netsetup.ErrUnfiltered, "connect a guest without a filter", "interface", name)
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "NetworkUnfiltered", "Start", "Interface %s: %v", name, netsetup.ErrUnfiltered)
	}
}
