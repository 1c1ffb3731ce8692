package simulation

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Fleet is the scheduler, and nodes that are nothing but what a kubelet and a
// virt-handler write of them: no launcher, no network namespace.
type Fleet struct {
	kube     client.Client            // the scheduler's and the kubelets'
	handlers map[string]client.Client // by node
	names    []string
	manager  running
	making   making

	mu   sync.Mutex
	pods map[types.UID]int // numbers, in order
}

// StartFleet starts so many nodes.
func (c *Cluster) StartFleet(ctx context.Context, nodes int) error {
	f := &Fleet{handlers: map[string]client.Client{}, pods: map[types.UID]int{}}
	c.closers = append(c.closers, f)
	for i := range nodes {
		name := fmt.Sprintf("%s-%d", nodeName, i)
		user := c.As("virt-handler")
		user.Impersonate.Extra = onNode(name)
		handler, err := client.New(user, client.Options{Scheme: c.scheme})
		if err == nil {
			err = c.addNode(ctx, name)
		}
		if err != nil {
			return fmt.Errorf("start nodes: %w", err)
		}
		f.handlers[name], f.names = handler, append(f.names, name)
	}
	mgr, err := c.newManager()
	if err != nil {
		return fmt.Errorf("start nodes: %w", err)
	}
	f.kube = mgr.GetClient()
	for object, step := range map[client.Object]reconcile.Func{&corev1.Pod{}: f.pod, &v1.VirtualMachineInstance{}: f.instance} {
		if err := ctrl.NewControllerManagedBy(mgr).For(object).WithOptions(controller.Options{MaxConcurrentReconciles: 8}).Complete(step); err != nil {
			return fmt.Errorf("start nodes: %w", err)
		}
	}
	f.manager.start(ctx, mgr)
	return nil
}

// Close ends the nodes.
func (f *Fleet) Close() error { return f.manager.close() }

// number of a pod, from 0.
func (f *Fleet) number(pod *corev1.Pod) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, known := f.pods[pod.UID]
	if !known {
		n = len(f.pods)
		f.pods[pod.UID] = n
	}
	return n
}

// pod takes a pod a step further, as the scheduler and a kubelet do.
func (f *Fleet) pod(ctx context.Context, request ctrl.Request) (result ctrl.Result, err error) {
	pod := &corev1.Pod{}
	if err := f.kube.Get(ctx, request.NamespacedName, pod); err != nil {
		return result, client.IgnoreNotFound(err)
	}
	n := f.number(pod)
	switch {
	case pod.DeletionTimestamp != nil:
		err = f.kube.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	case pod.Spec.NodeName == "":
		err = bind(ctx, f.kube, pod, f.names[n%len(f.names)])
	case pod.Status.Phase == corev1.PodPending:
		if result.RequeueAfter, err = f.making.step(ctx, f.kube, pod); result.RequeueAfter == 0 && err == nil {
			err = runs(ctx, f.kube, pod, fmt.Sprintf("10.244.%d.%d", n/250, n%250+1))
		}
	}
	return result, client.IgnoreNotFound(err)
}

// instance has a VMI run once its node and its pod's address are known, as virt-handler
// does, in one write.
func (f *Fleet) instance(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := &v1.VirtualMachineInstance{}
	if err := f.kube.Get(ctx, request.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	s := &object.Status
	if s.NodeName == "" || len(s.LauncherPods) == 0 || len(s.LauncherPods[0].IPs) == 0 || s.Phase == v1.Running || object.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	before := object.DeepCopy()
	now := metav1.Now()
	s.SetPhase(v1.Scheduled, now)
	s.SetPhase(v1.Running, now)
	s.Machine = &v1.Machine{Type: "pc-q35-11.0"}
	for _, nic := range object.Spec.Domain.Devices.Interfaces {
		s.Interfaces = append(s.Interfaces, v1.NetworkInterfaceStatus{Name: nic.Name, MAC: "02:00:00:00:00:01", IP: s.LauncherPods[0].IPs[0],
			IPs: s.LauncherPods[0].IPs, PodInterfaceName: "eth0", InfoSource: "domain", QueueCount: 1})
	}
	for _, c := range []v1.VirtualMachineInstanceCondition{
		{Type: v1.ConditionSoftwareEmulation, Status: metav1.ConditionTrue, Reason: v1.ReasonTCG, Message: "the guest is emulated"},
		{Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1.ReasonGuestRunning, Message: v1.MessageGuestRunning},
	} {
		s.SetCondition(c, now)
	}
	err := f.handlers[s.NodeName].Status().Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		err = nil // the other write brings us back
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}
