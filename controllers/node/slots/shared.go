package slots

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Shared advertises a resource of which all containers that ask for it get the same.
type Shared struct {
	deviceplugin.UnimplementedDevicePluginServer

	// Dir is the kubelet's device plugin folder.
	Dir string
	// Resource is what a container asks for.
	Resource corev1.ResourceName
	// Socket is the file name of the plugin's socket in Dir.
	Socket string
	// Device begins the name of each device, and Count is how many there are.
	Device string
	Count  int
	// Give returns what a container gets, or why it gets nothing. It is also called from time to time: while it fails,
	// the node offers none, and pods wait.
	Give func() (*deviceplugin.ContainerAllocateResponse, error)
	Log  logr.Logger

	stop <-chan struct{}
}

// lookInterval is the time between two looks whether containers would get something.
const lookInterval = time.Minute

// Start implements manager.Runnable.
func (p *Shared) Start(ctx context.Context) error {
	if _, err := p.Give(); err != nil {
		return err
	}
	p.stop = ctx.Done()
	s := service{dir: p.Dir, socket: p.Socket, resource: p.Resource, server: p, log: p.Log,
		options: &deviceplugin.DevicePluginOptions{}}
	return s.run(ctx)
}

// GetDevicePluginOptions answers the kubelet that there are no options.
func (p *Shared) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (
	*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

// ListAndWatch sends the kubelet the devices: none while there is nothing to give.
func (p *Shared) ListAndWatch(_ *deviceplugin.Empty,
	stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for told := -1; ; {
		count := p.Count
		if _, err := p.Give(); err != nil {
			p.Log.Error(err, "hand out a resource", "resource", p.Resource)
			count = 0
		}
		if count != told {
			told = count
			err := stream.Send(&deviceplugin.ListAndWatchResponse{Devices: numbered(p.Device, count)})
			if err != nil {
				return err
			}
		}
		select {
		case <-look.C:
		case <-stream.Context().Done():
			return nil
		case <-p.stop:
			return nil
		}
	}
}

// Allocate gives a container that is about to start what all of them get.
func (p *Shared) Allocate(_ context.Context, request *deviceplugin.AllocateRequest) (
	*deviceplugin.AllocateResponse, error) {
	response := &deviceplugin.AllocateResponse{}
	for range request.ContainerRequests {
		given, err := p.Give()
		if err != nil {
			p.Log.Error(err, "hand out a resource", "resource", p.Resource)
			return nil, err
		}
		response.ContainerResponses = append(response.ContainerResponses, given)
	}
	return response, nil
}
