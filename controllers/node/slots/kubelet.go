package slots

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

// Kubelet asks the kubelet's PodResources API which pod holds a device.
type Kubelet struct {
	client podresources.PodResourcesListerClient
	conn   *grpc.ClientConn
	own    types.NamespacedName
}

// DialKubelet connects to the kubelet's socket, usually
// /var/lib/kubelet/pod-resources/kubelet.sock. The socket is root's: no more
// authentication is offered or needed. The pod is the one that asks.
func DialKubelet(socket string, own types.NamespacedName) (*Kubelet, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dial kubelet's pod resources: %w", err)
	}
	return &Kubelet{client: podresources.NewPodResourcesListerClient(conn), conn: conn, own: own}, nil
}

// Close ends the connection.
func (k *Kubelet) Close() error { return k.conn.Close() }

// Devices maps each slot device in use to the pods that are said to hold it: one
// pod, but for the moment in which an ended pod still lingers. whole says that the
// kubelet knows all pods of its node. It knows all, or none but static pods, for it
// gets them from the API server by one list: where this process's own pod is among
// them, the others are.
func (k *Kubelet) Devices(ctx context.Context) (held map[string][]types.NamespacedName, whole bool, err error) {
	list, err := k.client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, false, fmt.Errorf("list pod resources: %w", err)
	}
	held = map[string][]types.NamespacedName{}
	for _, pod := range list.PodResources {
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		whole = whole || name == k.own
		for _, container := range pod.Containers {
			for _, devices := range container.Devices {
				if devices.ResourceName != string(vmi.SlotResource) {
					continue
				}
				for _, id := range devices.DeviceIds {
					held[id] = append(held[id], name)
				}
			}
		}
	}
	return held, whole, nil
}
