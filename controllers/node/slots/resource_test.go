package slots

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/apimachinery/pkg/types"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// registry is the kubelet's end of the registration of device plugins.
type registry struct {
	deviceplugin.UnimplementedRegistrationServer
	came chan *deviceplugin.RegisterRequest
}

func (r *registry) Register(_ context.Context, came *deviceplugin.RegisterRequest) (*deviceplugin.Empty, error) {
	r.came <- came
	return &deviceplugin.Empty{}, nil
}

// serveKubelet serves on a socket of the kubelet's, until the test's end.
func serveKubelet(t *testing.T, socket string, register func(*grpc.Server)) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
}

// three is an offer of three slots, and of nothing beside them.
type three struct{}

func (three) Slots() (count int, why string, changed <-chan struct{}) { return 3, "", nil }
func (three) Devices() ([]*deviceplugin.DeviceSpec, error)            { return nil, nil }

// TestResourcesSideBySide: a node has slots of two resources whose devices have the same names. Each resource has its
// plugin, its sockets and its pods.
func TestResourcesSideBySide(t *testing.T) {
	dir := testkit.ShortFolder(t)
	came := &registry{came: make(chan *deviceplugin.RegisterRequest, 2)}
	serveKubelet(t, filepath.Join(dir, "kubelet.sock"),
		func(s *grpc.Server) { deviceplugin.RegisterRegistrationServer(s, came) })
	chooser := accelerator.New(kvmcheck.Result{Verdict: kvmcheck.Works})
	resources := map[string]Resource{
		"launcher": Launchers(chooser, "/host/kvm"),
		"another": {Name: "example.com/another", Socket: "another.sock", Device: "vm", Mount: "/run/another",
			Offer: three{}},
	}
	pods := &lister{}
	for pod, r := range resources { // each is held by the pod of its name
		devices := []*podresources.ContainerDevices{{ResourceName: string(r.Name), DeviceIds: []string{"vm0"}}}
		pods.pods = append(pods.pods, &podresources.PodResources{Namespace: "default", Name: pod,
			Containers: []*podresources.ContainerResources{{Devices: devices}}})
	}
	listed := filepath.Join(dir, "pods.sock")
	serveKubelet(t, listed, func(s *grpc.Server) { podresources.RegisterPodResourcesListerServer(s, pods) })
	kubelet, err := DialKubelet(listed, types.NamespacedName{})
	if err != nil {
		t.Fatal(err)
	}
	defer kubelet.Close()

	arrivals := map[string]chan arrival{}
	for pod, r := range resources {
		d := &door{arrivals: make(chan arrival, 100)}
		held, err := Open(filepath.Join(dir, pod), r, kubelet, testr.New(t), d)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(held.Close)
		arrivals[pod] = d.arrivals
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- (&Plugin{Dir: dir, Slots: held, Log: testr.New(t)}).Start(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := testkit.Receive(t, ended, "the plugin's end"); err != nil {
				t.Error(err)
			}
		})
	}
	endpoints := map[string]string{}
	for range resources {
		r := testkit.Receive(t, came.came, "a registration")
		endpoints[r.ResourceName] = r.Endpoint
	}
	kvm := []*deviceplugin.DeviceSpec{{ContainerPath: "/dev/kvm", HostPath: "/host/kvm", Permissions: "rw"}}
	for pod, want := range map[string]struct {
		socket  string
		count   int
		mount   string
		devices []*deviceplugin.DeviceSpec
	}{
		"launcher": {"kubeqemu-vm.sock", accelerator.MaxSlots, layout.SlotDir, kvm},
		"another":  {"another.sock", 3, "/run/another", nil},
	} {
		if got := endpoints[string(resources[pod].Name)]; got != want.socket {
			t.Errorf("%s: the plugin's socket is %q, want %q", pod, got, want.socket)
		}
		count, given := allocated(t, filepath.Join(dir, want.socket))
		if count != want.count || len(given.Mounts) != 1 || given.Mounts[0].ContainerPath != want.mount {
			t.Fatalf("%s: %d devices, and a container gets %v", pod, count, given)
		}
		if diff := cmp.Diff(want.devices, given.Devices, protocmp.Transform()); diff != "" {
			t.Errorf("%s: the devices of a container: %s", pod, diff)
		}
		knock(t, given.Mounts[0].HostPath)
		if got := arrived(t, arrivals[pod]); got == nil || got.pod != nodetest.Pod(pod) {
			t.Errorf("%s: who dials is taken for %v", pod, got)
		}
	}
}

// allocated returns how many devices a plugin has, and what a container gets with the first.
func allocated(t *testing.T, socket string) (count int, given *deviceplugin.ContainerAllocateResponse) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	plugin := deviceplugin.NewDevicePluginClient(conn)
	stream, err := plugin.ListAndWatch(t.Context(), &deviceplugin.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	reply, err := plugin.Allocate(t.Context(), &deviceplugin.AllocateRequest{
		ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{DevicesIds: []string{"vm0"}}}})
	if err != nil || len(reply.ContainerResponses) != 1 {
		t.Fatalf("%v, %v", reply, err)
	}
	return len(list.Devices), reply.ContainerResponses[0]
}
