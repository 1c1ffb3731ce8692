//go:build long

package churn

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

const nodeName = "node"

// node is the scheduler, and a kubelet that has the one node. Its pods are
// launchers that start no QEMU.
type node struct {
	podresources.UnimplementedPodResourcesListerServer
	deviceplugin.UnimplementedRegistrationServer

	root   string // the kubelet's folder
	client client.Client

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

// newNode starts it, with the rights that the scheduler and a kubelet have.
func newNode(t *testing.T, d *door) *node {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	n := &node{root: t.TempDir(), pods: map[types.UID]*runningPod{}, known: make(chan struct{})}
	for _, folder := range []string{"device-plugins", "pod-resources"} {
		if err := os.Mkdir(filepath.Join(n.root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.serve(t, "device-plugins", func(s *grpc.Server) { deviceplugin.RegisterRegistrationServer(s, n) })
	n.serve(t, "pod-resources", func(s *grpc.Server) { podresources.RegisterPodResourcesListerServer(s, n) })
	mgr, err := ctrl.NewManager(d.config(), ctrl.Options{Scheme: scheme.Scheme, Metrics: server.Options{BindAddress: "0"}})
	if err == nil {
		n.client = mgr.GetClient()
		err = ctrl.NewControllerManagedBy(mgr).For(&corev1.Pod{}).WithOptions(controller.Options{MaxConcurrentReconciles: 8}).Complete(n)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			t.Errorf("run the node: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		ended.Wait()
		for _, p := range n.pods {
			p.launcher.end()
		}
	})
	return n
}

// serve serves on a socket of the kubelet's.
func (n *node) serve(t *testing.T, folder string, register func(*grpc.Server)) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(n.root, folder, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	register(s)
	go s.Serve(listener)
	t.Cleanup(s.Stop)
}

// Register takes up virt-handler's device plugin.
func (n *node) Register(_ context.Context, r *deviceplugin.RegisterRequest) (*deviceplugin.Empty, error) {
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
func (n *node) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := &podresources.ListPodResourcesResponse{}
	for _, p := range n.pods {
		devices := []*podresources.ContainerDevices{{ResourceName: "devices.kubevirt.io/vm", DeviceIds: []string{p.device}}}
		list.PodResources = append(list.PodResources, &podresources.PodResources{Namespace: p.name.Namespace, Name: p.name.Name,
			Containers: []*podresources.ContainerResources{{Name: "compute", Devices: devices}}})
	}
	return list, nil
}

// Reconcile takes a pod a step further.
func (n *node) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	pod := &corev1.Pod{}
	if err := n.client.Get(ctx, request.NamespacedName, pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var err error
	switch {
	case pod.DeletionTimestamp != nil:
		err = n.end(ctx, pod)
	case pod.Spec.NodeName == "":
		err = n.client.SubResource("binding").Create(ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: nodeName}})
	case pod.Status.Phase == corev1.PodPending:
		err = n.run(ctx, pod)
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// run gives the pod its slot and starts its launcher, once, and says that it runs.
func (n *node) run(ctx context.Context, pod *corev1.Pod) error {
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
	before := pod.DeepCopy()
	now := metav1.Now()
	pod.Status.Phase, pod.Status.PodIP, pod.Status.StartTime = corev1.PodRunning, p.address, &now
	pod.Status.PodIPs = []corev1.PodIP{{IP: p.address}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "compute", Ready: true, Started: ptr.To(true),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}}
	for _, kind := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	return n.client.Status().Patch(ctx, pod, client.StrategicMergeFrom(before))
}

// admit asks virt-handler for a slot, as the kubelet does before it starts a
// pod's containers.
func (n *node) admit(ctx context.Context, pod *corev1.Pod) (p *runningPod, folder string, err error) {
	<-n.known
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
func (n *node) end(ctx context.Context, pod *corev1.Pod) error {
	n.mu.Lock()
	p := n.pods[pod.UID]
	n.mu.Unlock()
	if p != nil && p.launcher != nil {
		p.launcher.end()
		before := pod.DeepCopy()
		now := metav1.Now()
		pod.Status.Phase = corev1.PodSucceeded
		said := control.Termination{Reason: control.ReasonShutdown, Message: "the guest powered off"}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "compute", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Message: string(said.Encode()), Reason: "Completed", FinishedAt: now}}}}
		if err := n.client.Status().Patch(ctx, pod, client.StrategicMergeFrom(before)); err != nil {
			return err
		}
	}
	if err := n.client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID}); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if p != nil {
		delete(n.pods, pod.UID)
		n.free = append(n.free, p.device)
	}
	return nil
}

// poll asks again and again, until the answer is nil.
func poll(timeout time.Duration, ask func() error) (err error) {
	for deadline := time.Now().Add(timeout); ; time.Sleep(50 * time.Millisecond) {
		if err = ask(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
