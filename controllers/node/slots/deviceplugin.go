package slots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
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

const (
	pluginSocket = "kubeqemu-vm.sock"
	// registerInterval is the time between attempts while the kubelet starts, or is too busy
	// to answer.
	registerInterval = 2 * time.Second
)

// Start implements manager.Runnable.
func (p *Plugin) Start(ctx context.Context) error {
	p.stop = ctx.Done()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch device plugin folder: %w", err)
	}
	defer watcher.Close()
	if err := watcher.Add(p.Dir); err != nil {
		return fmt.Errorf("watch device plugin folder %s: %w", p.Dir, err)
	}
	for {
		if err := p.serve(ctx, watcher); err != nil || ctx.Err() != nil {
			return err
		}
		p.Log.Info("kubelet was restarted; registering again")
	}
}

// serve serves and registers. It returns when the kubelet was restarted: a starting kubelet
// removes the sockets of all plugins, and makes its own anew.
func (p *Plugin) serve(ctx context.Context, watcher *fsnotify.Watcher) error {
	p.Slots.Unregistered()
	socket := filepath.Join(p.Dir, pluginSocket)
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old device plugin socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen for the kubelet: %w", err)
	}
	server := grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		<-served
	}()
	kubelet := filepath.Join(p.Dir, filepath.Base(deviceplugin.KubeletSocket))
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
			if err := p.register(ctx, kubelet); err != nil {
				p.Log.Info("not registered with the kubelet yet", "reason", err.Error())
				retry.Reset(registerInterval)
			}
		case event := <-watcher.Events:
			if event.Name == kubelet && event.Has(fsnotify.Create) {
				return nil
			}
		case err := <-watcher.Errors:
			return fmt.Errorf("watch device plugin folder: %w", err)
		}
	}
}

func (p *Plugin) register(ctx context.Context, kubelet string) error {
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = deviceplugin.NewRegistrationClient(conn).Register(ctx, &deviceplugin.RegisterRequest{
		Version: deviceplugin.Version, Endpoint: pluginSocket, ResourceName: string(vmi.SlotResource),
		Options: &deviceplugin.DevicePluginOptions{GetPreferredAllocationAvailable: true},
	})
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	p.Slots.Registered()
	p.Log.Info("registered with the kubelet", "resource", vmi.SlotResource)
	return nil
}

// GetDevicePluginOptions is called by the kubelet.
func (p *Plugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

// ListAndWatch tells the kubelet the devices; there are none while the node cannot run guests. A
// pod that has a device keeps it.
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
	devices := make([]*deviceplugin.Device, choice.Slots)
	for i := range devices {
		devices[i] = &deviceplugin.Device{ID: "vm" + strconv.Itoa(i), Health: deviceplugin.Healthy}
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
