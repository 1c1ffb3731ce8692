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
	own    types.NamespacedName
}

// DialPodResources connects to the kubelet's socket, usually
// /var/lib/kubelet/pod-resources/kubelet.sock. The socket is root's: no more
// authentication is offered or needed. The pod is the one that asks.
func DialPodResources(socket string, own types.NamespacedName) (*PodResources, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dial kubelet's pod resources: %w", err)
	}
	return &PodResources{client: podresources.NewPodResourcesListerClient(conn), conn: conn, own: own}, nil
}

// Close ends the connection.
func (p *PodResources) Close() error { return p.conn.Close() }

// held is what the kubelet says of slot devices.
type held struct {
	// pods by the device that they hold: one, but for the moment in which an ended
	// pod still lingers.
	pods map[string][]types.NamespacedName
	// whole says that the kubelet knows all pods of its node.
	whole bool
}

// Devices maps each slot device in use to the pods that are said to hold it. The
// kubelet knows all pods of its node, or none but static ones, for it gets them
// from the API server by one list: where this process's own pod is among them, the
// others are.
func (p *PodResources) Devices(ctx context.Context) (held, error) {
	list, err := p.client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return held{}, fmt.Errorf("list pod resources: %w", err)
	}
	out := held{pods: map[string][]types.NamespacedName{}}
	for _, pod := range list.PodResources {
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		out.whole = out.whole || name == p.own
		for _, container := range pod.Containers {
			for _, devices := range container.Devices {
				if devices.ResourceName != string(vmi.SlotResource) {
					continue
				}
				for _, id := range devices.DeviceIds {
					out.pods[id] = append(out.pods[id], name)
				}
			}
		}
	}
	return out, nil
}
