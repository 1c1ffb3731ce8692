package slots

import (
	"context"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
)

// FaultPlugin advertises vmi.FaultResource to the kubelet. A pod that asks for it gets the node's /dev/userfaultfd,
// with which QEMU opens userfaultfd without a capability and without the system call userfaultfd(2), which the
// container runtime's seccomp profile forbids (QEMU's util/userfaultfd.c; Linux 6.1 and newer). On a node without the
// device the pod gets nothing, and QEMU says that it cannot receive a guest by post-copy.
type FaultPlugin struct {
	deviceplugin.UnimplementedDevicePluginServer

	// Dir is the kubelet's device plugin folder.
	Dir string
	// Device is a device node on the host that becomes /dev/userfaultfd in the pod; empty if the node has none.
	Device string
	Log    logr.Logger

	stop <-chan struct{}
}

// Start implements manager.Runnable.
func (p *FaultPlugin) Start(ctx context.Context) error {
	p.stop = ctx.Done()
	s := service{dir: p.Dir, socket: "kubeqemu-userfaultfd.sock", resource: vmi.FaultResource, server: p, log: p.Log, options: &deviceplugin.DevicePluginOptions{}}
	return s.run(ctx)
}

// GetDevicePluginOptions answers the kubelet that there are no options.
func (p *FaultPlugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

// ListAndWatch sends the kubelet as many devices as a node may have slots.
func (p *FaultPlugin) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	if err := stream.Send(&deviceplugin.ListAndWatchResponse{Devices: numbered("userfaultfd", accelerator.MaxSlots)}); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
	case <-p.stop:
	}
	return nil
}

// Allocate gives a container that is about to start the device, if the node has it.
func (p *FaultPlugin) Allocate(_ context.Context, request *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	response := &deviceplugin.AllocateResponse{}
	for range request.ContainerRequests {
		allocated := &deviceplugin.ContainerAllocateResponse{}
		if p.Device != "" {
			allocated.Devices = []*deviceplugin.DeviceSpec{{ContainerPath: "/dev/userfaultfd", HostPath: p.Device, Permissions: "rw"}}
		}
		response.ContainerResponses = append(response.ContainerResponses, allocated)
	}
	return response, nil
}
