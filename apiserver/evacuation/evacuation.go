// Package evacuation answers evictions of launcher pods, such as kubectl drain's. An eviction may end
// the guest, or is refused and asks that the guest be brought to another node.
package evacuation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Eviction is a request to evict a pod.
type Eviction struct {
	Pod types.NamespacedName
	// Trusted: the API server asks, for an account that may evict pods of all namespaces. Anybody in
	// the cluster can ask virt-api, and could otherwise have others' guests brought elsewhere.
	Trusted bool
	// DryRun: nothing is written.
	DryRun bool
}

// Guard answers evictions. It reads from the API server, never from a cache: evictions are rare, and
// must see the present state.
type Guard struct {
	client rest.Interface
}

// New makes a Guard.
func New(config *rest.Config) (*Guard, error) {
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
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
	return &Guard{client}, nil
}

const instances = "virtualmachineinstances"

// attempts is how often an eviction is answered anew because the VMI changed meanwhile.
const attempts = 3

// Evict returns nil if the pod may be evicted. Otherwise it returns a TooManyRequests, as the API
// server does for a PodDisruptionBudget: a client such as kubectl drain then tries again later. It
// has written the VMI's evacuationNodeName by then.
func (g *Guard) Evict(ctx context.Context, e Eviction) error {
	name := v1.VMIOfLauncherPod(e.Pod.Name)
	if name == "" {
		return nil
	}
	for range attempts {
		vmi, err := g.get(ctx, e.Pod.Namespace, name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("get VMI %s/%s: %w", e.Pod.Namespace, name, err)
		}
		if err = g.answer(ctx, vmi, e); !apierrors.IsConflict(err) {
			return err
		}
	}
	return tooMany("VMI %s/%s keeps changing: try again", e.Pod.Namespace, name)
}

func (g *Guard) get(ctx context.Context, namespace, name string) (*v1.VirtualMachineInstance, error) {
	vmi := &v1.VirtualMachineInstance{}
	return vmi, g.client.Get().Namespace(namespace).Resource(instances).Name(name).Do(ctx).Into(vmi)
}

func (g *Guard) answer(ctx context.Context, vmi *v1.VirtualMachineInstance, e Eviction) error {
	node := nodeToLeave(vmi, e.Pod.Name)
	switch {
	case node == "":
		return nil
	case vmi.Status.EvacuationNodeName == node:
		return tooMany("Evacuation in progress: Eviction triggered evacuation of VMI \"%s/%s\"", vmi.Namespace, vmi.Name) // KubeVirt's words
	case !e.Trusted:
		return tooMany("VMI %s/%s is not evicted, because its evictionStrategy is External; only an account that may evict pods in all namespaces can have it brought elsewhere, once virt-api has started: stop or delete it instead",
			vmi.Namespace, vmi.Name)
	case !e.DryRun:
		if err := g.write(ctx, vmi, node, nil); err != nil {
			return err
		}
	}
	return tooMany("Eviction triggered evacuation of VMI \"%s/%s\"", vmi.Namespace, vmi.Name) // KubeVirt's words
}

// nodeToLeave returns the node that the eviction of a pod asks a guest to leave. It is empty if the pod may
// be evicted.
func nodeToLeave(vmi *v1.VirtualMachineInstance, pod string) string {
	s := vmi.Spec.EvictionStrategy
	if s == nil || *s != v1.EvictionStrategyExternal || vmi.IsFinal() || vmi.DeletionTimestamp != nil || vmi.Status.NodeName == "" {
		return ""
	}
	for _, p := range vmi.Status.LauncherPods {
		// Only the pod where the guest runs.
		if p.Name == pod && vmi.Status.ActivePods[p.UID] == vmi.Status.NodeName {
			return vmi.Status.NodeName
		}
	}
	return ""
}

// Cancel takes back that a guest is asked to leave its node. With a node, it fails with a conflict if
// the guest is asked to leave another node, or none. dryRun is the API's.
func (g *Guard) Cancel(ctx context.Context, vmi *v1.VirtualMachineInstance, node string, dryRun []string) error {
	if asked := vmi.Status.EvacuationNodeName; node != "" && node != asked {
		text := fmt.Sprintf("the VMI is not asked to leave node %q", node)
		if asked != "" {
			text += fmt.Sprintf(", but %q", asked)
		}
		return apierrors.NewConflict(v1.GroupVersion.WithResource("virtualmachineinstance").GroupResource(), vmi.Name, errors.New(text))
	}
	if vmi.Status.EvacuationNodeName == "" {
		return nil
	}
	return g.write(ctx, vmi, "", dryRun)
}

// write sets a VMI's evacuationNodeName, or removes it if node is empty. It fails with a conflict if
// the VMI has changed since it was read.
func (g *Guard) write(ctx context.Context, vmi *v1.VirtualMachineInstance, node string, dryRun []string) error {
	var value any
	if node != "" {
		value = node
	}
	text, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": vmi.ResourceVersion, "uid": vmi.UID},
		"status":   map[string]any{"evacuationNodeName": value},
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	request := g.client.Patch(types.MergePatchType).Namespace(vmi.Namespace).Resource(instances).Name(vmi.Name).SubResource("status")
	for _, d := range dryRun {
		request = request.Param("dryRun", d)
	}
	now := &v1.VirtualMachineInstance{}
	if err := request.Body(text).Do(ctx).Into(now); err != nil {
		return err
	}
	if now.Status.EvacuationNodeName != node {
		return errors.New("write evacuationNodeName: the API server does not keep it: is the kind VirtualMachineInstance of an earlier version?")
	}
	return nil
}

func tooMany(format string, args ...any) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf(format, args...), 0)
}
