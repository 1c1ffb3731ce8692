package slots

import (
	"context"
	"fmt"
	"strconv"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Plugin advertises the slots of one resource to the kubelet. It runs until its context ends, and registers again
// after each restart of the kubelet.
type Plugin struct {
	deviceplugin.UnimplementedDevicePluginServer

	// Dir is the kubelet's device plugin folder.
	Dir   string
	Slots *Slots
	Log   logr.Logger

	stop <-chan struct{}
}

// Start implements manager.Runnable.
func (p *Plugin) Start(ctx context.Context) error {
	p.stop = ctx.Done()
	resource := p.Slots.resource
	s := service{dir: p.Dir, socket: resource.Socket, resource: resource.Name, server: p, log: p.Log,
		options:    &deviceplugin.DevicePluginOptions{GetPreferredAllocationAvailable: true},
		registered: p.Slots.Registered, unregistered: p.Slots.Unregistered}
	return s.run(ctx)
}

// GetDevicePluginOptions answers the kubelet that it may ask which devices to allocate.
func (p *Plugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

// ListAndWatch sends the kubelet the devices that there are. A pod that has a device keeps it.
func (p *Plugin) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	for {
		count, why, changed := p.Slots.resource.Offer.Slots()
		devices := numbered(p.Slots.resource.Device, count)
		if err := stream.Send(&deviceplugin.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		p.Log.Info("told the kubelet", "resource", p.Slots.resource.Name, "slots", count, "reason", why)
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		case <-p.stop:
			return nil
		}
	}
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
	devices, err := p.Slots.resource.Offer.Devices()
	if err != nil {
		return nil, err
	}
	response := &deviceplugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		if len(container.DevicesIds) != 1 {
			return nil, fmt.Errorf("a container may have 1 of %s, not %d", p.Slots.resource.Name, len(container.DevicesIds))
		}
		folder, err := p.Slots.New(container.DevicesIds[0])
		if err != nil {
			return nil, err
		}
		response.ContainerResponses = append(response.ContainerResponses, &deviceplugin.ContainerAllocateResponse{
			Mounts:  []*deviceplugin.Mount{{ContainerPath: p.Slots.resource.Mount, HostPath: folder, ReadOnly: true}},
			Devices: devices,
		})
	}
	return response, nil
}
