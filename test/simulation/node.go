package simulation

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kubeqemu/kubeqemu/controllers/vmi"
)

// nodeName is the name of a Node.
const nodeName = "node"

// Node is the scheduler, and a kubelet that has the one node. Its pods are
// launchers that start no QEMU.
type Node struct {
	podresources.UnimplementedPodResourcesListerServer
	deviceplugin.UnimplementedRegistrationServer

	root    string // the kubelet's folder
	client  client.Client
	servers []*grpc.Server
	manager running
	making  making

	mu      sync.Mutex
	free    []string // devices
	pods    map[types.UID]*runningPod
	started int
	plugin  deviceplugin.DevicePluginClient
	known   chan struct{} // closed when there is a plugin that has told of its devices
}

// runningPod is a pod that has its slot.
type runningPod struct {
	name     types.NamespacedName
	device   string
	address  string
	launcher *launcher
}

// StartNode starts a node and its virt-handler.
func (c *Cluster) StartNode(ctx context.Context) (*Component, error) {
	if err := c.addNode(ctx, nodeName); err != nil {
		return nil, err
	}
	n := &Node{root: c.file("kubelet"), pods: map[types.UID]*runningPod{}, known: make(chan struct{})}
	c.closers = append(c.closers, n)
	if err := n.start(ctx, c); err != nil {
		return nil, fmt.Errorf("start the node: %w", err)
	}
	metrics, err := freeAddress()
	if err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	user := c.As("virt-handler")
	user.Impersonate.Extra = onNode(nodeName)
	return c.run("virt-handler", metrics, user, "--metrics-bind-address="+metrics, "--bind-address="+address,
		"--node-name="+nodeName, "--accelerator=tcg", "--kubelet-root="+n.root, "--run-dir="+c.file("run"),
		"--program-dir="+c.file("programs"), "--launcher-root="+c.file("launcher"))
}

// onNode is what a token says of the node of its pod.
func onNode(name string) map[string][]string {
	return map[string][]string{"authentication.kubernetes.io/node-name": {name}}
}

// start starts it, with the rights that the scheduler and a kubelet have.
func (n *Node) start(ctx context.Context, c *Cluster) error {
	for folder, register := range map[string]func(*grpc.Server){
		"device-plugins": func(s *grpc.Server) { deviceplugin.RegisterRegistrationServer(s, n) },
		"pod-resources":  func(s *grpc.Server) { podresources.RegisterPodResourcesListerServer(s, n) },
	} {
		if err := n.serve(folder, register); err != nil {
			return err
		}
	}
	mgr, err := c.newManager()
	if err != nil {
		return err
	}
	n.client = mgr.GetClient()
	if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.Pod{}).WithOptions(controller.Options{MaxConcurrentReconciles: 8}).Complete(n); err != nil {
		return err
	}
	n.manager.start(ctx, mgr)
	return nil
}

// newManager makes a manager of what stands for the scheduler and the kubelets.
func (c *Cluster) newManager() (manager.Manager, error) {
	return ctrl.NewManager(c.Server.As("kubelet", "system:masters"), ctrl.Options{Scheme: c.scheme, Logger: logr.Discard(),
		Metrics: server.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: ptr.To(true)}})
}

// running is a manager that runs.
type running struct {
	stop  context.CancelFunc
	ended chan error
}

func (r *running) start(ctx context.Context, mgr manager.Manager) {
	// Not ctx's end, but Close, ends it: what is started later ends before.
	ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	r.ended = make(chan error, 1)
	go func() { r.ended <- mgr.Start(ctx) }()
}

func (r *running) close() error {
	if r.stop == nil {
		return nil
	}
	r.stop()
	return <-r.ended
}

// Close ends the node, and its launchers.
func (n *Node) Close() error {
	err := n.manager.close()
	for _, s := range n.servers {
		s.Stop()
	}
	for _, p := range n.pods {
		if p.launcher != nil {
			p.launcher.end()
		}
	}
	return err
}

// serve serves on a socket of the kubelet's.
func (n *Node) serve(folder string, register func(*grpc.Server)) error {
	folder = filepath.Join(n.root, folder)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	listener, err := net.Listen("unix", filepath.Join(folder, "kubelet.sock"))
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	register(s)
	n.servers = append(n.servers, s)
	go s.Serve(listener)
	return nil
}

// Register takes up virt-handler's device plugin of slots. No pod here asks for what the others hand out.
func (n *Node) Register(_ context.Context, r *deviceplugin.RegisterRequest) (*deviceplugin.Empty, error) {
	if r.ResourceName != string(vmi.SlotResource) {
		return &deviceplugin.Empty{}, nil
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.root, "device-plugins", r.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	plugin := deviceplugin.NewDevicePluginClient(conn)
	stream, err := plugin.ListAndWatch(context.Background(), &deviceplugin.Empty{})
	if err != nil {
		return nil, err
	}
	go func() {
		defer conn.Close()
		for first := true; ; first = false {
			list, err := stream.Recv()
			if err != nil {
				return
			}
			if !first {
				continue // that all are there or none is of other tests
			}
			n.mu.Lock()
			n.plugin = plugin
			for _, d := range list.Devices {
				n.free = append(n.free, d.ID)
			}
			n.mu.Unlock()
			close(n.known)
		}
	}()
	return &deviceplugin.Empty{}, nil
}

// List says which pod has which slot.
func (n *Node) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := &podresources.ListPodResourcesResponse{}
	for _, p := range n.pods {
		devices := []*podresources.ContainerDevices{{ResourceName: string(vmi.SlotResource), DeviceIds: []string{p.device}}}
		list.PodResources = append(list.PodResources, &podresources.PodResources{Namespace: p.name.Namespace, Name: p.name.Name,
			Containers: []*podresources.ContainerResources{{Name: "compute", Devices: devices}}})
	}
	return list, nil
}

// Reconcile takes a pod a step further.
func (n *Node) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	pod := &corev1.Pod{}
	if err := n.client.Get(ctx, request.NamespacedName, pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var wait time.Duration
	var err error
	switch {
	case pod.DeletionTimestamp != nil:
		err = n.end(ctx, pod)
	case pod.Spec.NodeName == "":
		err = bind(ctx, n.client, pod, nodeName)
	case pod.Status.Phase == corev1.PodPending:
		if wait, err = n.making.step(ctx, n.client, pod); wait == 0 && err == nil {
			err = n.run(ctx, pod)
		}
	}
	return ctrl.Result{RequeueAfter: wait}, client.IgnoreNotFound(err)
}

// run gives the pod its slot and starts its launcher, once, and says that it runs.
func (n *Node) run(ctx context.Context, pod *corev1.Pod) error {
	p, folder, err := n.admit(ctx, pod)
	if err != nil {
		return err
	}
	if p.launcher == nil {
		launcher, err := startLauncher(filepath.Join(folder, "handler.sock"), p.address)
		if err != nil {
			return err
		}
		n.mu.Lock()
		p.launcher = launcher
		n.mu.Unlock()
	}
	return runs(ctx, n.client, pod, p.address)
}

// admit asks virt-handler for a slot, as the kubelet does before it starts a
// pod's containers.
func (n *Node) admit(ctx context.Context, pod *corev1.Pod) (p *runningPod, folder string, err error) {
	select {
	case <-n.known:
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.pods[pod.UID]; p != nil {
		return p, "", nil
	}
	if len(n.free) == 0 {
		return nil, "", fmt.Errorf("admit pod %s: no device is free", pod.Name)
	}
	preferred, err := n.plugin.GetPreferredAllocation(ctx, &deviceplugin.PreferredAllocationRequest{
		ContainerRequests: []*deviceplugin.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: n.free, AllocationSize: 1}}})
	if err != nil {
		return nil, "", err
	}
	device := preferred.ContainerResponses[0].DeviceIDs[0]
	allocated, err := n.plugin.Allocate(ctx, &deviceplugin.AllocateRequest{ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{DevicesIds: []string{device}}}})
	if err != nil {
		return nil, "", err
	}
	for i := range n.free {
		if n.free[i] == device {
			n.free = append(n.free[:i:i], n.free[i+1:]...)
			break
		}
	}
	n.started++
	p = &runningPod{name: client.ObjectKeyFromObject(pod), device: device, address: fmt.Sprintf("10.244.%d.%d", n.started/250, n.started%250+1)}
	n.pods[pod.UID] = p
	return p, allocated.ContainerResponses[0].Mounts[0].HostPath, nil
}

// end ends the pod's launcher, says how it ended, and lets the pod go.
func (n *Node) end(ctx context.Context, pod *corev1.Pod) error {
	n.mu.Lock()
	p := n.pods[pod.UID]
	n.mu.Unlock()
	if p != nil && p.launcher != nil {
		p.launcher.end()
		if err := ends(ctx, n.client, pod); err != nil {
			return err
		}
	}
	if err := n.client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID}); err != nil {
		return err
	}
	n.making.forget(pod)
	n.mu.Lock()
	defer n.mu.Unlock()
	if p != nil {
		delete(n.pods, pod.UID)
		n.free = append(n.free, p.device)
	}
	return nil
}
