package v1

import (
	"fmt"
	"strings"
)

// Paths of the parts of interfaces: interfacesPath[NAME], and the state of its link with linkSuffix behind.
const (
	interfacesPath = "domain.devices.interfaces"
	linkSuffix     = ".state"
)

// linkFollower has a running guest follow the states of its cards' links, up and down.
type linkFollower struct{}

func (linkFollower) owns(path string) bool {
	return strings.HasPrefix(path, interfacesPath+"[") && strings.HasSuffix(path, "]"+linkSuffix)
}

// leavesOut reports whether neither a guest nor the next start of its VirtualMachine has an interface: the template
// says that it is absent, or no longer names it.
func (vm *VirtualMachine) leavesOut(vmi *VirtualMachineInstance, name string) bool {
	wanted := vm.Spec.Template.Spec.Domain.Devices.Interface(name)
	return vmi.Spec.Domain.Devices.Interface(name) == nil && (wanted == nil || wanted.State == LinkAbsent)
}

func (linkFollower) stays(vm *VirtualMachine, vmi *VirtualMachineInstance, path string) string {
	name := entryName(path)
	wanted := vm.Spec.Template.Spec.Domain.Devices.Interface(name)
	has := vmi.Spec.Domain.Devices.Interface(name)
	switch {
	case wanted == nil || wanted.State == LinkAbsent:
		return "the next start leaves the interface out"
	case has == nil:
		return "the next start brings the interface"
	case vmi.Status.Phase == Running && !vmi.Status.tellsLink(name):
		return "virt-handler does not tell the state of the link"
	}
	return ""
}

func (linkFollower) take(spec, template *VirtualMachineInstanceSpec, path string) {
	name := entryName(path)
	has, wanted := spec.Domain.Devices.Interface(name), template.Domain.Devices.Interface(name)
	if has != nil && wanted != nil {
		has.State = wanted.State
	}
}

func (linkFollower) told(vmi *VirtualMachineInstance, paths []string) string {
	var said []string
	for _, path := range paths {
		if nic := vmi.Spec.Domain.Devices.Interface(entryName(path)); nic != nil {
			said = append(said, fmt.Sprintf("%s is %s", nic.Name, nic.Link()))
		}
	}
	return "The links of the guest's interfaces follow the template: " + strings.Join(said, ", ")
}

func (linkFollower) how() string { return "at once, up and down" }
