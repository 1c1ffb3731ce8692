package slots

import (
	"github.com/go-logr/logr"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
)

// Faults returns the plugin of vmi.FaultResource. A pod that asks for it gets the node's /dev/userfaultfd, with which
// QEMU opens userfaultfd without a capability and without the system call userfaultfd(2), which the container runtime's
// seccomp profile forbids (QEMU's util/userfaultfd.c; Linux 6.1 and newer). device is the device node on the host, or
// empty if the node has none: then the pod gets nothing, and QEMU says that it cannot receive a guest by post-copy. dir
// is the kubelet's device plugin folder. There are as many devices as a node may have slots.
func Faults(dir, device string, log logr.Logger) *Shared {
	give := func() (*deviceplugin.ContainerAllocateResponse, error) {
		given := &deviceplugin.ContainerAllocateResponse{}
		if device != "" {
			given.Devices = []*deviceplugin.DeviceSpec{
				{ContainerPath: "/dev/userfaultfd", HostPath: device, Permissions: "rw"}}
		}
		return given, nil
	}
	return &Shared{Dir: dir, Resource: vmi.FaultResource, Socket: "kubeqemu-userfaultfd.sock",
		Device: "userfaultfd", Count: accelerator.MaxSlots, Give: give, Log: log}
}
