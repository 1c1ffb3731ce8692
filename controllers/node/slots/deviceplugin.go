package slots

import (
	"context"
	"fmt"
	"strconv"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// Plugin advertises slots to the kubelet. It runs until its context ends, and registers again
// after each restart of the kubelet.
type Plugin struct {
	deviceplugin.UnimplementedDevicePluginServer

	// Dir is the kubelet's device plugin folder.
	Dir   string
	Slots *Slots
	// Chooser says whether the node can run guests: without an accelerator it has no slots.
	Chooser *accelerator.Chooser
	// KVMDevice is a device node on the host that becomes /dev/kvm in the pod. It exists where
	// guests run under KVM.
	KVMDevice string
	Log       logr.Logger

	stop <-chan struct{}
}

// Start implements manager.Runnable.
func (p *Plugin) Start(ctx context.Context) error {
	p.stop = ctx.Done()
	s := service{dir: p.Dir, socket: "kubeqemu-vm.sock", resource: vmi.SlotResource, server: p, log: p.Log,
		options: &deviceplugin.DevicePluginOptions{GetPreferredAllocationAvailable: true}, registered: p.Slots.Registered, unregistered: p.Slots.Unregistered}
	return s.run(ctx)
}

// GetDevicePluginOptions answers the kubelet that it may ask which devices to allocate.
func (p *Plugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

// ListAndWatch sends the kubelet the devices; there are none while the node cannot run guests. A pod that has a
// device keeps it.
func (p *Plugin) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	for {
		choice, changed := p.Chooser.Choice()
		devices := slotDevices(choice)
		if err := stream.Send(&deviceplugin.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		p.Log.Info("told the kubelet", "slots", len(devices), "accelerator", choice.String(), "reason", choice.Reason)
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		case <-p.stop:
			return nil
		}
	}
}

func slotDevices(choice accelerator.Choice) []*deviceplugin.Device {
	return numbered("vm", choice.Slots)
}

func numbered(name string, count int) []*deviceplugin.Device {
	devices := make([]*deviceplugin.Device, count)
	for i := range devices {
		devices[i] = &deviceplugin.Device{ID: name + strconv.Itoa(i), Health: deviceplugin.Healthy}
	}
	return devices
}

// GetPreferredAllocation prefers the devices that have been free the longest.
func (p *Plugin) GetPreferredAllocation(_ context.Context, request *deviceplugin.PreferredAllocationRequest) (*deviceplugin.PreferredAllocationResponse, error) {
	response := &deviceplugin.PreferredAllocationResponse{}
	for _, container := range request.ContainerRequests {
		preferred := append([]string(nil), container.MustIncludeDeviceIDs...)
		for _, id := range p.Slots.Prefer(container.AvailableDeviceIDs) {
			if len(preferred) >= int(container.AllocationSize) {
				break
			}
			preferred = append(preferred, id)
		}
		response.ContainerResponses = append(response.ContainerResponses, &deviceplugin.ContainerPreferredAllocationResponse{DeviceIDs: preferred})
	}
	return response, nil
}

// Allocate makes a slot for a container that is about to start.
func (p *Plugin) Allocate(_ context.Context, request *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	choice, _ := p.Chooser.Choice()
	if choice.Accelerator == "" {
		return nil, fmt.Errorf("the node cannot run guests: %s", choice.Reason)
	}
	response := &deviceplugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		if len(container.DevicesIds) != 1 {
			return nil, fmt.Errorf("a container may have 1 of %s, not %d", vmi.SlotResource, len(container.DevicesIds))
		}
		folder, err := p.Slots.New(container.DevicesIds[0])
		if err != nil {
			return nil, err
		}
		allocated := &deviceplugin.ContainerAllocateResponse{
			Mounts: []*deviceplugin.Mount{{ContainerPath: layout.SlotDir, HostPath: folder, ReadOnly: true}},
		}
		if choice.Accelerator == qemuargs.KVM {
			allocated.Devices = []*deviceplugin.DeviceSpec{{ContainerPath: "/dev/kvm", HostPath: p.KVMDevice, Permissions: "rw"}}
		}
		response.ContainerResponses = append(response.ContainerResponses, allocated)
	}
	return response, nil
}
