package slots

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"testing"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// lister is the kubelet's end of the PodResources API.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	pods []*podresources.PodResources
	cpus []int64
}

func (l *lister) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{CpuIds: l.cpus}, nil
}

func (l *lister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: l.pods}, nil
}

// TestKubeletMustListTheAsker: a kubelet that does not list the asker has not read its pods.
func TestKubeletMustListTheAsker(t *testing.T) {
	slot := func(id string) []*podresources.ContainerResources {
		return []*podresources.ContainerResources{{Devices: []*podresources.ContainerDevices{{ResourceName: string(vmi.SlotResource), DeviceIds: []string{id}}}}}
	}
	own := types.NamespacedName{Namespace: "kubevirt", Name: "virt-handler-x"}
	launcher := &podresources.PodResources{Namespace: "default", Name: "a", Containers: slot("vm1")}
	tests := []struct {
		name  string
		pods  []*podresources.PodResources
		held  map[string][]types.NamespacedName
		whole bool
	}{
		{"nothing", nil, map[string][]types.NamespacedName{}, false},
		{"a launcher", []*podresources.PodResources{launcher}, nodetest.Holds("vm1", "a"), false},
		{"all", []*podresources.PodResources{{Namespace: own.Namespace, Name: own.Name}, launcher}, nodetest.Holds("vm1", "a"), true},
		{"another of that name", []*podresources.PodResources{{Namespace: "default", Name: own.Name}}, map[string][]types.NamespacedName{}, false},
	}
	for _, tt := range tests {
		socket := filepath.Join(testkit.ShortFolder(t), "s")
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		podresources.RegisterPodResourcesListerServer(server, &lister{pods: tt.pods})
		go server.Serve(listener)
		defer server.Stop()
		asker, err := DialKubelet(socket, own)
		if err != nil {
			t.Fatal(err)
		}
		defer asker.Close()
		if held, whole, err := asker.Devices(t.Context(), vmi.SlotResource); err != nil || whole != tt.whole || !reflect.DeepEqual(held, tt.held) {
			t.Errorf("%s: %v, %v, %v; want %v, %v", tt.name, held, whole, err, tt.held, tt.whole)
		}
	}
}

// TestOnlyPolicyStaticGivesCPUsAway: only with the policy static are there CPUs to give away.
func TestOnlyPolicyStaticGivesCPUsAway(t *testing.T) {
	for want, cpus := range map[bool][]int64{false: nil, true: {1, 2}} {
		socket := filepath.Join(testkit.ShortFolder(t), "s")
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		podresources.RegisterPodResourcesListerServer(server, &lister{cpus: cpus})
		go server.Serve(listener)
		defer server.Stop()
		asker, err := DialKubelet(socket, types.NamespacedName{})
		if err != nil {
			t.Fatal(err)
		}
		defer asker.Close()
		if got, err := asker.OwnCPUs(t.Context()); err != nil || got != want {
			t.Errorf("with CPUs %v: %v, %v", cpus, got, err)
		}
	}
}

// TestCPUsAreThoseOfTheSlotsContainer: the CPUs are those of the pod's container with the slot, and of no other.
func TestCPUsAreThoseOfTheSlotsContainer(t *testing.T) {
	container := func(resource, id string, cpus ...int64) *podresources.ContainerResources {
		return &podresources.ContainerResources{CpuIds: cpus, Devices: []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: []string{id}}}}
	}
	socket := filepath.Join(testkit.ShortFolder(t), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, &lister{pods: []*podresources.PodResources{
		{Name: "a", Namespace: "other", Containers: []*podresources.ContainerResources{container(string(vmi.SlotResource), "vm1", 8)}},
		{Name: "a", Namespace: "default", Containers: []*podresources.ContainerResources{container("example.com/other", "x", 7), container(string(vmi.SlotResource), "vm2", 1, 2)}},
		{Name: "b", Namespace: "default", Containers: []*podresources.ContainerResources{{CpuIds: []int64{9}}}},
	}})
	go server.Serve(listener)
	defer server.Stop()
	asker, err := DialKubelet(socket, types.NamespacedName{})
	if err != nil {
		t.Fatal(err)
	}
	defer asker.Close()
	if got, err := asker.CPUs(t.Context(), types.NamespacedName{Namespace: "default", Name: "a"}); err != nil || !reflect.DeepEqual(got, []int64{1, 2}) {
		t.Errorf("the CPUs are %v, %v", got, err)
	}
	if got, err := asker.CPUs(t.Context(), types.NamespacedName{Namespace: "default", Name: "b"}); err == nil {
		t.Errorf("a pod without a slot has the CPUs %v", got)
	}
}
