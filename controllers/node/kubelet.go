package node

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/kubeqemu/kubeqemu/controllers/vmi"
)

// kubeletTimeout bounds one question to the kubelet.
const kubeletTimeout = 5 * time.Second

// PodResources asks the kubelet's PodResources API which pod holds a device.
type PodResources struct {
	client podresources.PodResourcesListerClient
	conn   *grpc.ClientConn
}

// DialPodResources connects to the kubelet's socket, usually
// /var/lib/kubelet/pod-resources/kubelet.sock. The socket is root's: no more
// authentication is offered or needed.
func DialPodResources(socket string) (*PodResources, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dial kubelet's pod resources: %w", err)
	}
	return &PodResources{client: podresources.NewPodResourcesListerClient(conn), conn: conn}, nil
}

// Close ends the connection.
func (p *PodResources) Close() error { return p.conn.Close() }

// Devices maps each slot device in use to the pods that are said to hold it:
// one, but for the moment in which an ended pod still lingers.
func (p *PodResources) Devices(ctx context.Context) (map[string][]types.NamespacedName, error) {
	list, err := p.client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pod resources: %w", err)
	}
	held := map[string][]types.NamespacedName{}
	for _, pod := range list.PodResources {
		for _, container := range pod.Containers {
			for _, devices := range container.Devices {
				if devices.ResourceName != string(vmi.SlotResource) {
					continue
				}
				for _, id := range devices.DeviceIds {
					held[id] = append(held[id], types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
				}
			}
		}
	}
	return held, nil
}
