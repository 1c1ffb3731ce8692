package wiring

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// MissingLink is the error of a pod that lacks the link of an interface.
type MissingLink struct {
	network, link string
	index         int // of the interface in the spec
	multus        bool
}

func (m MissingLink) Error() string {
	text := fmt.Sprintf("network %q: the pod has no interface %q", m.network, m.link)
	if m.multus {
		text += ": is Multus installed on this node?"
	}
	return text
}

// InSpec returns the error with the interface's field.
func (m MissingLink) InSpec() *field.Error {
	return field.Forbidden(InterfacePath(m.index), m.Error())
}

// InterfacePath returns the field of an interface in a VMI.
func InterfacePath(index int) *field.Path {
	return field.NewPath("spec", "domain", "devices", "interfaces").Index(index)
}

// Links returns the pod's link behind each of the VMI's interfaces, by interface, and those that there are with the
// error.
func Links(launcher *sessions.Session, object *v1.VirtualMachineInstance) (map[string]netsetup.Facts, error) {
	out := map[string]netsetup.Facts{}
	var errs []error
	for i, nic := range object.Spec.Domain.Devices.Interfaces {
		if nic.SRIOV != nil {
			continue
		}
		link := LinkName(object, nic.Name)
		facts, err := launcher.Link(link)
		switch {
		case errors.Is(err, netsetup.ErrNoLink):
			errs = append(errs, MissingLink{network: nic.Name, link: link, index: i, multus: link != v1.PodLink})
		case err != nil:
			errs = append(errs, err)
		default:
			out[nic.Name] = facts
		}
	}
	return out, errors.Join(errs...)
}

// LinkName returns the name of the pod's link behind an interface.
func LinkName(object *v1.VirtualMachineInstance, nic string) string {
	if object.Spec.OnPods(nic) {
		return v1.PodLink
	}
	return object.Spec.Network(nic).Link()
}
