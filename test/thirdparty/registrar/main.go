// Command registrar tells a kubelet of a CSI driver, as node-driver-registrar does. The Go module proxy does not serve that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// driver answers the kubelet that has found its socket.
type driver struct {
	registration.UnimplementedRegistrationServer
	name, endpoint string
}

func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.name, Endpoint: d.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus says what the kubelet thinks of the driver.
func (d *driver) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	fmt.Printf("registered: %v %s\n", status.PluginRegistered, status.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func main() {
	d := &driver{}
	flag.StringVar(&d.name, "driver", "", "name of the CSI driver")
	flag.StringVar(&d.endpoint, "endpoint", "", "the driver's socket, as the kubelet sees it")
	socket := flag.String("socket", "", "socket in the kubelet's folder plugins_registry")
	flag.Parse()
	if err := serve(d, *socket); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve answers until the process is told to end.
func serve(d *driver, socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the last socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen at %s: %w", socket, err)
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, d)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, server.GracefulStop)()
	if err := server.Serve(listener); err != nil {
		return fmt.Errorf("serve %s: %w", socket, err)
	}
	return nil
}
