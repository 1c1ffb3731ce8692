package slots

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// Resource is a resource of the node. Each of its devices stands for a slot.
type Resource struct {
	// Name is what a container asks for.
	Name corev1.ResourceName
	// Socket is the file name of the plugin's socket in the kubelet's folder.
	Socket string
	// Device begins the name of each device.
	Device string
	// Mount is where a container finds the folder of its slot.
	Mount string
	Offer Offer
}

// Offer decides how many slots the node has, and what a container gets with its slot.
type Offer interface {
	// Slots returns how many slots there are, and why. changed is closed when the number may be another.
	Slots() (count int, why string, changed <-chan struct{})
	// Devices returns the device nodes that a container gets beside its slot, or why the container gets no slot.
	Devices() ([]*deviceplugin.DeviceSpec, error)
}

// Launchers returns the resource of launcher pods. chooser says whether the node can run guests: without an accelerator
// it has no slots. kvm is a device node on the host that becomes /dev/kvm in the pod. It exists where guests run under
// KVM.
func Launchers(chooser *accelerator.Chooser, kvm string) Resource {
	return Resource{Name: vmi.SlotResource, Socket: "kubeqemu-vm.sock", Device: "vm", Mount: layout.SlotDir,
		Offer: guests{chooser, kvm}}
}

// guests offers what the node's accelerator can run.
type guests struct {
	chooser *accelerator.Chooser
	kvm     string
}

func (g guests) Slots() (count int, why string, changed <-chan struct{}) {
	choice, changed := g.chooser.Choice()
	return choice.Slots, fmt.Sprintf("accelerator %s: %s", choice, choice.Reason), changed
}

func (g guests) Devices() ([]*deviceplugin.DeviceSpec, error) {
	choice, _ := g.chooser.Choice()
	switch choice.Accelerator {
	case "":
		return nil, fmt.Errorf("the node cannot run guests: %s", choice.Reason)
	case qemuargs.KVM:
		return []*deviceplugin.DeviceSpec{{ContainerPath: "/dev/kvm", HostPath: g.kvm, Permissions: "rw"}}, nil
	}
	return nil, nil
}
