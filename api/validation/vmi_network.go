package validation

import (
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func validateNetworks(spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	devices := &spec.Domain.Devices
	nics := path.Child("domain", "devices", "interfaces")
	networks, connected, links := map[string]v1.Network{}, sets.New[string](), map[string]int{}
	first := -1 // the network that is the pod's own
	for i, n := range spec.Networks {
		p := path.Child("networks").Index(i)
		if _, ok := networks[n.Name]; ok {
			errs = append(errs, field.Duplicate(p.Child("name"), n.Name))
		}
		networks[n.Name] = n
		errs = append(errs, validateNetwork(n, p)...)
		// Of names with one sum, one would decide what the other's guest interface is connected to.
		if other, ok := links[n.Link()]; ok && !n.IsPods() && spec.Networks[other].Name != n.Name {
			errs = append(errs, field.Invalid(p.Child("name"), n.Name,
				"gives the pod's interface the same name, "+n.Link()+", as spec.networks["+strconv.Itoa(other)+
					"].name does: choose another name"))
		}
		links[n.Link()] = i
		switch {
		case !n.IsPods():
		case first < 0:
			first = i
		case n.Pod != nil:
			errs = append(errs, field.Forbidden(p.Child("pod"),
				"only one network can be the pod's, and spec.networks["+strconv.Itoa(first)+"] is"))
		default:
			errs = append(errs, field.Forbidden(p.Child("multus", "default"),
				"only one network can be the pod's, and spec.networks["+strconv.Itoa(first)+"] is"))
		}
	}
	if n := len(devices.Interfaces); n > maxInterfaces {
		errs = append(errs, field.TooMany(nics, n, maxInterfaces))
	}
	for i, nic := range devices.Interfaces {
		p := nics.Index(i)
		if connected.Has(nic.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), nic.Name))
		}
		connected.Insert(nic.Name)
		if !interfaceName.MatchString(nic.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), nic.Name, "must be at most 63 letters, digits, '-' and '_'"))
		}
		network, ok := networks[nic.Name]
		if !ok {
			errs = append(errs, field.NotFound(p.Child("name"), nic.Name+" (no network of this name in spec.networks)"))
		}
		if nic.Masquerade != nil && network.Multus != nil && network.Pod == nil {
			errs = append(errs, field.Forbidden(p.Child("masquerade"),
				"masquerade is for the pod network only; a network of multus takes bridge"))
		}
		errs = append(errs, validateSRIOV(&nic, network, ok, p)...)
		if nic.PasstBinding != nil && network.Multus != nil && network.Pod == nil {
			errs = append(errs, field.Forbidden(p.Child("passtBinding"),
				"passtBinding is for the pod network only; a network of multus takes bridge"))
		}
		errs = append(errs, validateInterface(&nic, p)...)
		errs = append(errs, validateAbsent(&nic, network, p.Child("state"))...)
	}
	for i, n := range spec.Networks {
		if !connected.Has(n.Name) {
			errs = append(errs, field.Invalid(path.Child("networks").Index(i).Child("name"), n.Name,
				"no interface of this name in spec.domain.devices.interfaces"))
		}
	}
	return errs
}

func validateNetwork(n v1.Network, path *field.Path) field.ErrorList {
	switch {
	case n.Pod != nil && n.Multus != nil:
		return field.ErrorList{field.Forbidden(path.Child("multus"), "exactly one network source must be set, and pod is")}
	case n.Multus != nil:
		return validateMultus(n.Multus, path.Child("multus"))
	case n.Pod == nil && n.ResourceClaim != nil:
		return nil // reported as not supported
	case n.Pod == nil:
		return field.ErrorList{field.Required(path.Child("pod"),
			"exactly one network source must be set (supported: pod, multus)")}
	}
	cidr := path.Child("pod", "vmNetworkCIDR")
	prefix, err := v1.ParseNetwork(n.Pod.VMNetworkCIDR)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(cidr, n.Pod.VMNetworkCIDR, "must be an IPv4 network such as 10.0.2.0/24")}
	case prefix.Addr().IsLoopback() || prefix.Addr().IsMulticast() || prefix.Addr().IsUnspecified():
		return field.ErrorList{field.Invalid(cidr, n.Pod.VMNetworkCIDR, "must be a unicast network")}
	case !prefix.Addr().Is4() || prefix.Masked() != prefix || prefix.Bits() > 29 || prefix.Bits() < 8:
		return field.ErrorList{field.Invalid(cidr, n.Pod.VMNetworkCIDR,
			"must be an IPv4 network address with a prefix length between 8 and 29")}
	}
	return validateIPv6Network(n.Pod.VMIPv6NetworkCIDR, path.Child("pod", "vmIPv6NetworkCIDR"))
}

// validateIPv6Network allows none, and networks that have room for a gateway and a guest.
func validateIPv6Network(network string, path *field.Path) field.ErrorList {
	if network == "" {
		return nil
	}
	prefix, err := netip.ParsePrefix(network)
	addr := prefix.Addr()
	switch {
	case err != nil || !addr.Is6() || addr.Is4In6():
		return field.ErrorList{field.Invalid(path, network, "must be an IPv6 network such as fd10:0:2::/120")}
	case addr.IsLoopback() || addr.IsMulticast() || addr.IsLinkLocalUnicast() || addr.IsUnspecified():
		return field.ErrorList{field.Invalid(path, network, "must be a unicast network, and not a link-local one")}
	case prefix.Masked() != prefix || prefix.Bits() < 48 || prefix.Bits() > 126:
		return field.ErrorList{field.Invalid(path, network,
			"must be an IPv6 network address with a prefix length between 48 and 126")}
	}
	return nil
}

func validateMultus(m *v1.MultusNetwork, path *field.Path) field.ErrorList {
	path = path.Child("networkName")
	if m.NetworkName == "" {
		return field.ErrorList{field.Required(path, "the name of a NetworkAttachmentDefinition, or namespace/name")}
	}
	namespace, name, both := strings.Cut(m.NetworkName, "/")
	if !both {
		namespace, name = "", m.NetworkName
	}
	var errs field.ErrorList
	if both {
		for _, message := range utilvalidation.IsDNS1123Label(namespace) {
			errs = append(errs, field.Invalid(path, m.NetworkName, "the namespace: "+message))
		}
	}
	for _, message := range utilvalidation.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(path, m.NetworkName, "the name: "+message))
	}
	return errs
}
