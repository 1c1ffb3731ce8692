package slots

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
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
// /var/lib/kubelet/pod-resources/kubelet.sock. Only root can dial the socket, and the kubelet
// asks for no other authentication. own is the pod of this process.
func DialKubelet(socket string, own types.NamespacedName) (*Kubelet, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dial kubelet's pod resources: %w", err)
	}
	return &Kubelet{client: podresources.NewPodResourcesListerClient(conn), conn: conn, own: own}, nil
}

// Close ends the connection.
func (k *Kubelet) Close() error { return k.conn.Close() }

// OwnCPUs reports whether the kubelet gives containers CPUs of their own: whether its CPU manager's policy is static.
// With the policy none there are no CPUs that a container could have to itself.
func (k *Kubelet) OwnCPUs(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	all, err := k.client.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return false, fmt.Errorf("ask the kubelet for allocatable CPUs: %w", err)
	}
	return len(all.CpuIds) > 0, nil
}

// CPUs returns the CPUs that the container of a pod with a slot has to itself.
func (k *Kubelet) CPUs(ctx context.Context, name types.NamespacedName) ([]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	list, err := k.client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet for a container's CPUs: %w", err)
	}
	for _, pod := range list.PodResources {
		if pod.Namespace != name.Namespace || pod.Name != name.Name {
			continue
		}
		for _, container := range pod.Containers {
			if slices.ContainsFunc(container.Devices, func(d *podresources.ContainerDevices) bool { return d.ResourceName == string(vmi.SlotResource) }) {
				return container.CpuIds, nil
			}
		}
	}
	return nil, fmt.Errorf("the kubelet knows no container with a slot in pod %s", name)
}

// Devices maps each device of a resource in use to the pods that the kubelet lists for it: one pod,
// except while an ended pod still lingers. whole says that the kubelet knows all pods of its
// node. The kubelet gets all its pods but the static ones from the API server in one list, so
// that it knows them all if it knows this process's own pod.
func (k *Kubelet) Devices(ctx context.Context, resource corev1.ResourceName) (
	held map[string][]types.NamespacedName, whole bool, err error) {
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
				if devices.ResourceName != string(resource) {
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
