package subresources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
)

// cluster reads from the API server, never from a cache: requests are rare, and must see the
// present state.
type cluster struct {
	client rest.Interface
	rights *callers.Rights
}

func newCluster(config *rest.Config, rights *callers.Rights) (*cluster, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), appsv1.AddToScheme(scheme), v1.AddToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	config = rest.CopyConfig(config)
	group := v1.GroupVersion
	config.GroupVersion, config.APIPath = &group, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.QPS = -1 // no limit here: the API server limits its clients itself
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return &cluster{client, rights}, nil
}

// machine returns a VirtualMachine, or a NotFound like KubeVirt's, which names the resource in
// the singular.
func (c *cluster) machine(ctx context.Context, namespace, name string) (*v1.VirtualMachine, error) {
	vm := &v1.VirtualMachine{}
	err := c.client.Get().Namespace(namespace).Resource(machines).Name(name).Do(ctx).Into(vm)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(vmResource, name)
	}
	return vm, err
}

// instance returns a VirtualMachineInstance, or a NotFound like KubeVirt's.
func (c *cluster) instance(ctx context.Context, namespace, name string) (*v1.VirtualMachineInstance, error) {
	vmi := &v1.VirtualMachineInstance{}
	err := c.client.Get().Namespace(namespace).Resource(instances).Name(name).Do(ctx).Into(vmi)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(vmiResource, name)
	}
	return vmi, err
}

// patch changes a VirtualMachine's spec or status. It fails with a conflict if the VM has
// changed since it was read.
func (c *cluster) patch(ctx context.Context, vm *v1.VirtualMachine, ch *change, dryRun []string) error {
	body := map[string]any{"metadata": map[string]any{"resourceVersion": vm.ResourceVersion, "uid": vm.UID}}
	request := c.client.Patch(types.MergePatchType).Namespace(vm.Namespace).Resource(machines).Name(vm.Name)
	if ch.requests != nil {
		body["status"] = map[string]any{"stateChangeRequests": ch.requests}
		request = request.SubResource("status")
	} else {
		body["spec"] = ch.spec
	}
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	for _, d := range dryRun {
		request = request.Param("dryRun", d)
	}
	return request.Body(text).Do(ctx).Error()
}

// handlerAddress returns the pod IP of a node's virt-handler. Its certificate, not this
// address, proves that the peer is the virt-handler of that node.
func (c *cluster) handlerAddress(ctx context.Context, node string) (string, error) {
	pods := &corev1.PodList{}
	err := c.client.Get().AbsPath("/api/v1/namespaces/"+v1.KubeVirtNamespace+"/pods").
		Param("labelSelector", "kubevirt.io=virt-handler").Param("fieldSelector", "spec.nodeName="+node).Do(ctx).Into(pods)
	if err != nil {
		return "", fmt.Errorf("find virt-handler of node %s: %w", node, err)
	}
	for _, pod := range pods.Items {
		if pod.Status.PodIP != "" && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
			return pod.Status.PodIP, nil
		}
	}
	return "", apierrors.NewServiceUnavailable("there is no virt-handler on node " + node)
}

var (
	vmResource  = v1.GroupVersion.WithResource("virtualmachine").GroupResource()
	vmiResource = v1.GroupVersion.WithResource("virtualmachineinstance").GroupResource()
)
