package slots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// service serves one device plugin, and registers it with the kubelet again after each restart of the kubelet.
type service struct {
	// dir is the kubelet's device plugin folder, and socket the plugin's socket in it.
	dir, socket string
	resource    corev1.ResourceName
	server      deviceplugin.DevicePluginServer
	options     *deviceplugin.DevicePluginOptions
	log         logr.Logger
	// registered and unregistered are called when the kubelet knows the plugin, and when it may not. Both may be nil.
	registered, unregistered func()
}

// registerInterval is the time between attempts while the kubelet starts, or is too busy to answer.
const registerInterval = 2 * time.Second

// run returns when ctx has ended.
func (s *service) run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch device plugin folder: %w", err)
	}
	defer watcher.Close()
	if err := watcher.Add(s.dir); err != nil {
		return fmt.Errorf("watch device plugin folder %s: %w", s.dir, err)
	}
	for {
		if err := s.serve(ctx, watcher); err != nil || ctx.Err() != nil {
			return err
		}
		s.log.Info("kubelet was restarted; registering again", "resource", s.resource)
	}
}

// serve serves and registers. It returns when the kubelet was restarted: a starting kubelet
// removes the sockets of all plugins, and makes its own anew.
func (s *service) serve(ctx context.Context, watcher *fsnotify.Watcher) error {
	if s.unregistered != nil {
		s.unregistered()
	}
	socket := filepath.Join(s.dir, s.socket)
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old device plugin socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen for the kubelet: %w", err)
	}
	server := grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(server, s.server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		<-served
	}()
	kubelet := filepath.Join(s.dir, filepath.Base(deviceplugin.KubeletSocket))
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
			if err := s.register(ctx, kubelet); err != nil {
				s.log.Info("not registered with the kubelet yet", "reason", err.Error())
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

func (s *service) register(ctx context.Context, kubelet string) error {
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = deviceplugin.NewRegistrationClient(conn).Register(ctx, &deviceplugin.RegisterRequest{
		Version: deviceplugin.Version, Endpoint: s.socket, ResourceName: string(s.resource), Options: s.options,
	})
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	if s.registered != nil {
		s.registered()
	}
	s.log.Info("registered with the kubelet", "resource", s.resource)
	return nil
}
