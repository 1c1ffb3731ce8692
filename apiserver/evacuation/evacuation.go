// Package evacuation answers evictions of launcher pods, such as kubectl drain's. An eviction may end
// the guest, or is refused and asks that the guest be brought to another node.
package evacuation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

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
	nodes  rest.Interface // of Kubernetes' own kinds
	// cluster is the cluster's configuration.
	cluster func() *v1.KubeVirtConfiguration
}

// New makes a Guard. cluster returns the cluster's configuration.
func New(config *rest.Config, cluster func() *v1.KubeVirtConfiguration) (*Guard, error) {
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
	core := rest.CopyConfig(config)
	core.GroupVersion, core.APIPath, core.NegotiatedSerializer = &corev1.SchemeGroupVersion, "/api", clientscheme.Codecs.WithoutConversion()
	nodes, err := rest.RESTClientFor(core)
	if err != nil {
		return nil, fmt.Errorf("make client of nodes: %w", err)
	}
	return &Guard{client, nodes, cluster}, nil
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
	strategy := ptr.Deref(vmi.Spec.EvictionStrategy, v1.EvictionStrategyNone)
	if strategy == v1.EvictionStrategyNone || vmi.IsFinal() || vmi.DeletionTimestamp != nil {
		return nil
	}
	node := runsIn(vmi, e.Pod.Name)
	if m := vmi.Migration(); node == "" && m != nil && (e.Pod.Name == m.SourcePod || e.Pod.Name == m.TargetPod) {
		// The guest may be there in the next moment, or in this one: the status follows the decision.
		return tooMany("VMI %s/%s migrates between two pods: try again", vmi.Namespace, vmi.Name)
	}
	switch {
	case node == "":
		return nil
	case strategy == v1.EvictionStrategyExternal:
		return g.ask(ctx, vmi, node, e)
	}
	return g.move(ctx, vmi, node, e)
}

// runsIn returns the node of a guest that runs in a pod, by the VMI's status. It is empty if the guest is not there.
func runsIn(vmi *v1.VirtualMachineInstance, pod string) string {
	for _, p := range vmi.Status.LauncherPods {
		if p.Name == pod && pod == vmi.LauncherPod() && vmi.Status.ActivePods[p.UID] == vmi.Status.NodeName {
			return vmi.Status.NodeName
		}
	}
	return ""
}

// move answers the eviction of a guest that is to move. A guest that does not run yet has nothing to lose. Where no other
// node would ever take the guest, the guest could never leave: the eviction ends it.
func (g *Guard) move(ctx context.Context, vmi *v1.VirtualMachineInstance, node string, e Eviction) error {
	reason, why := vmi.NotMigratable()
	if vmi.Status.Phase != v1.Running || reason != "" && *vmi.Spec.EvictionStrategy == v1.EvictionStrategyLiveMigrateIfPossible {
		return nil
	}
	if !e.Trusted {
		return stranger(vmi) // who is told nothing of the VMI or of the nodes
	}
	if !goesElsewhere(vmi) {
		if end, err := g.mustEnd(ctx, vmi); end || err != nil {
			return err
		}
	}
	if reason != "" { // KubeVirt's words, up to the colon
		return tooMany("VMI %s is configured with an eviction strategy but is not live-migratable: %s", vmi.Name, why)
	}
	return g.ask(ctx, vmi, node, e)
}

// goesElsewhere says whether a guest migrates, and has a pod on another node. A target pod that no node has taken, and one on the guest's own
// node, do not bring the guest off its node.
func goesElsewhere(vmi *v1.VirtualMachineInstance) bool {
	if vmi.Migration() == nil {
		return false
	}
	for _, node := range vmi.Status.ActivePods {
		if node != vmi.Status.NodeName {
			return true
		}
	}
	return false
}

// stranger is the answer to a question of which nobody knows who asks it.
func stranger(vmi *v1.VirtualMachineInstance) error {
	return tooMany("VMI %s/%s is not evicted, because its evictionStrategy is %s; only an account that may evict pods in all namespaces can have it brought elsewhere, once virt-api has started: stop or delete it instead",
		vmi.Namespace, vmi.Name, *vmi.Spec.EvictionStrategy)
}

// ask asks a guest to leave its node, and refuses the eviction.
func (g *Guard) ask(ctx context.Context, vmi *v1.VirtualMachineInstance, node string, e Eviction) error {
	switch {
	case !e.Trusted:
		return stranger(vmi)
	case vmi.Status.EvacuationNodeName == node:
		return tooMany("Evacuation in progress: Eviction triggered evacuation of VMI \"%s/%s\"%s", vmi.Namespace, vmi.Name, lastFailure(vmi)) // KubeVirt's words
	case !e.DryRun:
		if err := g.write(ctx, vmi, node, nil); err != nil {
			return err
		}
	}
	return tooMany("Eviction triggered evacuation of VMI \"%s/%s\"", vmi.Namespace, vmi.Name) // KubeVirt's words
}

// lastFailure is why the last migration of a guest has failed, to be added to a sentence. kubectl drain prints it.
func lastFailure(vmi *v1.VirtualMachineInstance) string {
	last := vmi.Status.MigrationState
	if last == nil || !last.Failed || last.FailureReason == "" {
		return ""
	}
	return ": its last migration failed: " + last.FailureReason
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
