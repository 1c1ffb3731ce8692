package evacuation

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeqemu/kubeqemu/api/nodefit"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// pageOfNodes is how many nodes are read at once. The search ends at the first page that has a node to go to.
const pageOfNodes = "100"

// mustEnd says whether a guest can only end: its node is being emptied, and no other node would ever take the guest.
func (g *Guard) mustEnd(ctx context.Context, vmi *v1.VirtualMachineInstance) (bool, error) {
	var node corev1.Node
	switch err := g.nodes.Get().Resource("nodes").Name(vmi.Status.NodeName).Do(ctx).Into(&node); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return false, fmt.Errorf("get node %s: %w", vmi.Status.NodeName, err)
	case !node.Spec.Unschedulable:
		return false, nil
	}
	other, err := g.OtherNode(ctx, vmi)
	return !other, err
}

// OtherNode says whether a node besides the guest's own may take the guest, now or once a fault has passed. It knows of node
// selectors, cordons and taints. The scheduler knows more: where affinities or a lack of memory keep the guest off, the
// guest's migration says so.
func (g *Guard) OtherNode(ctx context.Context, vmi *v1.VirtualMachineInstance) (bool, error) {
	selector, err := nodefit.Selector(vmi, g.cluster())
	if err != nil {
		return false, fmt.Errorf("read nodeSelector: %w", err)
	}
	for more := ""; ; {
		var page corev1.NodeList
		request := g.nodes.Get().Resource("nodes").Param("labelSelector", selector.String()).Param("limit", pageOfNodes)
		if more != "" {
			request = request.Param("continue", more)
		}
		if err := request.Do(ctx).Into(&page); err != nil {
			return false, fmt.Errorf("list nodes: %w", err)
		}
		for i := range page.Items {
			if node := &page.Items[i]; node.Name != vmi.Status.NodeName && nodefit.Takes(node, vmi.Spec.Tolerations) {
				return true, nil
			}
		}
		if more = page.Continue; more == "" {
			return false, nil
		}
	}
}
