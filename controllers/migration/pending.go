package migration

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/api/migrations/v1alpha1"
	"github.com/kubeqemu/kubeqemu/api/nodefit"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/claimcopy"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// waitDelay is the time between two looks at a migration that waits. Events mostly bring the next look.
const waitDelay = 10 * time.Second

// wait begins a migration when it may begin.
func (r *Reconciler) wait(ctx context.Context, w *work) (time.Duration, error) {
	status := &w.migration.Status
	if w.vmi != nil && moot(w.migration, w.vmi, w.drained) != "" && !w.migration.IsUnderway() {
		return r.drop(ctx, w)
	}
	if why := hopeless(w); why != "" {
		if behind, err := r.behind(ctx, w); behind || err != nil {
			return kit.WriteDelay, err
		}
		end(w, why)
		return 0, nil
	}
	status.SetPhase(v1.MigrationPending, w.stamp())
	if w.vmi.Status.Phase != v1.Running || w.vmi.Migration() != nil || unsettled(w.vmi) {
		return waitDelay, nil // its event brings us back
	}
	if goes, err := r.lastGoes(ctx, w); goes || err != nil {
		return waitDelay, err
	}
	config, err := r.configuration(ctx)
	if err != nil {
		return 0, err
	}
	if room, err := r.hasRoom(ctx, w, config); err != nil || !room {
		return waitDelay, err
	}
	policy, err := r.Policies.Now(ctx, w.vmi)
	if err != nil {
		return 0, err
	}
	if w.vmi.CopiesClaims() && !policy.CopiesClaims() {
		return waitDelay, nil // the VMI's controller is about to notice that
	}
	if alone, err := r.alone(ctx, w); alone != "" || err != nil {
		if alone != "" {
			end(w, alone)
		}
		return 0, err
	}
	if err := r.claims().HandOver(ctx, w.vmi); err != nil {
		return 0, err
	}
	return 0, r.begin(ctx, w, config, policy)
}

// alone is why no other node could take the guest of a migration that is to leave its node; empty if one could, now or once a fault has passed. The scheduler would say so
// after minutes, and name everything that the guest's node has besides.
func (r *Reconciler) alone(ctx context.Context, w *work) (string, error) {
	if w.migration.StaysOnNode() {
		return "", nil
	}
	cluster, err := r.Cluster(ctx)
	if err != nil {
		return "", err
	}
	if _, err := labels.ValidatedSelectorFromSet(w.migration.Spec.AddedNodeSelector); err != nil {
		return fmt.Sprintf("addedNodeSelector selects no node: %v", err), nil
	}
	wanted := w.vmi.DeepCopy()
	// As the target pod has it: what is added overrides neither the cluster's selector nor the VMI's.
	wanted.Spec.NodeSelector = map[string]string{}
	maps.Copy(wanted.Spec.NodeSelector, w.migration.Spec.AddedNodeSelector)
	maps.Copy(wanted.Spec.NodeSelector, cluster.NodeSelectors())
	maps.Copy(wanted.Spec.NodeSelector, w.vmi.Spec.NodeSelector)
	others, shut := 0, 0
	err = nodesFor(ctx, r.Live, wanted, cluster, func(nodes []corev1.Node) bool {
		for i := range nodes {
			switch n := &nodes[i]; {
			case n.Name == w.vmi.Status.NodeName:
			case nodefit.Takes(n, w.vmi.Spec.Tolerations):
				others++
			default:
				shut++
			}
		}
		return others > 0
	})
	if err != nil {
		return "", err
	}
	switch {
	case others > 0:
		return "", nil
	case shut > 0:
		return fmt.Sprintf("no other node takes the guest: %d are cordoned, or have a taint that the guest does not tolerate", shut), nil
	}
	return "there is no other node that the guest may be on: none runs virt-handler, or has the labels of the guest's nodeSelector and architecture", nil
}

// hopeless is why a migration that has not begun will never begin; empty if it may.
func hopeless(w *work) string {
	switch {
	case w.migration.DeletionTimestamp != nil:
		return "the migration was deleted before it began"
	case w.vmi == nil:
		return fmt.Sprintf("there is no VirtualMachineInstance %q", w.migration.Spec.VMIName)
	case w.migration.IsUnderway():
		return "the VirtualMachineInstance is not the one whose guest moved"
	case w.vmi.DeletionTimestamp != nil:
		return "the VirtualMachineInstance is being deleted"
	case w.vmi.IsFinal():
		return "the guest has ended"
	case len(w.vmi.Status.LauncherPods) >= maxLauncherPods:
		return "launcher pods of the VirtualMachineInstance are left on nodes that do not answer; delete them"
	}
	if reason, message := w.vmi.NotMigratable(); reason != "" && w.vmi.Status.Phase == v1.Running {
		return message
	}
	return ""
}

// drop deletes a migration of ours that nobody needs any more. It has not failed: it holds up no later one.
func (r *Reconciler) drop(ctx context.Context, w *work) (time.Duration, error) {
	if behind, err := r.behind(ctx, w); behind || err != nil {
		return kit.WriteDelay, err
	}
	if w.migration.DeletionTimestamp != nil {
		end(w, moot(w.migration, w.vmi, w.drained))
		return 0, nil
	}
	if err := r.Client.Delete(ctx, w.migration, client.Preconditions{UID: &w.migration.UID}); client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("delete migration: %w", err)
	}
	return waitDelay, nil
}

// maxLauncherPods is how many launcher pods the status of a VMI lists, by the CRD.
const maxLauncherPods = 8

// behind says whether the cache lacks what the API server has of the VMI.
func (r *Reconciler) behind(ctx context.Context, w *work) (bool, error) {
	now := &v1.VirtualMachineInstance{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: w.migration.Namespace, Name: w.migration.Spec.VMIName}, now)
	if apierrors.IsNotFound(err) {
		return w.vmi != nil, nil
	}
	if err != nil {
		return false, fmt.Errorf("get VMI %s: %w", w.migration.Spec.VMIName, err)
	}
	return w.vmi == nil || now.ResourceVersion != w.vmi.ResourceVersion, nil
}

// unsettled says whether it is decided where the VMI's guest runs, and the VMI does not say so yet.
func unsettled(vmi *v1.VirtualMachineInstance) bool {
	settled := vmi.Status.DeepCopy()
	settled.Settle()
	return settled.LauncherPod != vmi.Status.LauncherPod || settled.NodeName != vmi.Status.NodeName
}

// lastGoes says whether the VMI's last migration is still to be cleaned up after.
func (r *Reconciler) lastGoes(ctx context.Context, w *work) (bool, error) {
	last := w.vmi.Status.MigrationState
	if last == nil {
		return false, nil
	}
	all, err := r.list(ctx, client.InNamespace(w.migration.Namespace), client.MatchingFields{nameIndex: w.vmi.Name})
	if err != nil {
		return false, fmt.Errorf("list migrations: %w", err)
	}
	return slices.ContainsFunc(all, func(m v1.VirtualMachineInstanceMigration) bool {
		return m.UID == last.MigrationUID && (!m.IsFinal() || hasFinalizer(&m))
	}), nil
}

func (r *Reconciler) configuration(ctx context.Context) (*v1.MigrationConfiguration, error) {
	cluster, err := r.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	return cluster.Migrations(), nil
}

// begin writes into the VMI's status that the guest moves. The status holds one migration, so that a VMI has one
// target at a time. policy may be nil.
func (r *Reconciler) begin(ctx context.Context, w *work, config *v1.MigrationConfiguration, policy *v1alpha1.MigrationPolicy) error {
	target := v1.LauncherPodName(w.vmi.Name, w.vmi.UID, w.migration.UID)
	claims, name := claimcopy.Disks(w.vmi, w.migration), ""
	from, to := claimcopy.State(w.vmi, w.migration.UID)
	if policy != nil {
		config, name = overridden(config, policy), policy.Name
	}
	return r.writeVMI(ctx, w, func(s *v1.VirtualMachineInstanceStatus) {
		s.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: w.migration.UID, MigrationName: w.migration.Name, SourceNode: s.NodeName, SourcePod: w.vmi.LauncherPod(),
			TargetPod: target, SourcePersistentStatePVCName: from, TargetPersistentStatePVCName: to, MigrationConfiguration: config, MigrationPolicyName: name}
		s.MigratedVolumes = claims
		s.LauncherPods = append(slices.Clone(s.LauncherPods), v1.LauncherPod{Name: target})
	})
}

// hasRoom says whether a migration may begin: whether the limits leave it room, after all that wait and come
// first.
func (r *Reconciler) hasRoom(ctx context.Context, w *work, config *v1.MigrationConfiguration) (bool, error) {
	all, err := r.list(ctx)
	if err != nil {
		return false, fmt.Errorf("list migrations: %w", err)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(m v1.VirtualMachineInstanceMigration) bool { return r.isOverdue(&m, w.now) })
	// from is the node that a guest leaves, or is to leave.
	from := func(m *v1.VirtualMachineInstanceMigration) string {
		if m.Status.MigrationState != nil {
			return m.Status.MigrationState.SourceNode
		}
		vmi := &v1.VirtualMachineInstance{}
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}, vmi, client.UnsafeDisableDeepCopy)
		if err != nil || vmi.Status.Phase != v1.Running || vmi.Migration() != nil {
			return "" // it does not begin now, whatever the limits leave
		}
		return vmi.Status.NodeName
	}
	return slices.Contains(next(all, from, config), w.migration.UID), nil
}

// isOverdue says whether a migration has had its place for long enough: see overdue.
func (r *Reconciler) isOverdue(m *v1.VirtualMachineInstanceMigration, now time.Time) bool {
	s := m.Status.MigrationState
	return m.IsUnderway() && s != nil && s.Decision != "" && r.decided.since(m.UID, now) > overdue
}

// next returns the UIDs of the waiting migrations that may begin, in the order of priority and age. A migration
// that waits for room on its own node, or for a quota, holds up no other. Migrations of the lowest priority take half of the places at
// most, and one for each namespace: every user who may edit a VM can cause them. It is pure.
func next(all []v1.VirtualMachineInstanceMigration, source func(*v1.VirtualMachineInstanceMigration) string, config *v1.MigrationConfiguration) []types.UID {
	taken, lowest := places{nodes: map[string]int{}, namespaces: map[string]int{}}, places{nodes: map[string]int{}, namespaces: map[string]int{}}
	take := func(m *v1.VirtualMachineInstanceMigration, node string) {
		taken.take(m, node)
		if m.EffectivePriority() == v1.PrioritySystemMaintenance {
			lowest.take(m, node)
		}
	}
	var waiting []*v1.VirtualMachineInstanceMigration
	for i := range all {
		switch m := &all[i]; {
		case m.IsUnderway():
			take(m, source(m))
		case waits(m) && m.DeletionTimestamp == nil && source(m) != "":
			waiting = append(waiting, m)
		}
	}
	slices.SortFunc(waiting, func(a, b *v1.VirtualMachineInstanceMigration) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(string(a.UID), string(b.UID)))
	})
	var out []types.UID
	chosen := map[types.NamespacedName]bool{} // VMIs
	for _, m := range waiting {
		vmi, node := types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.VMIName}, source(m)
		if taken.all >= config.Parallel() {
			break
		}
		if taken.nodes[node] >= config.Outbound() || chosen[vmi] {
			continue
		}
		if m.EffectivePriority() == v1.PrioritySystemMaintenance &&
			(lowest.all >= max(1, config.Parallel()/2) || lowest.nodes[node] >= max(1, config.Outbound()/2) || isTenants(m) && lowest.namespaces[m.Namespace] >= 1) {
			continue
		}
		take(m, node)
		chosen[vmi] = true
		out = append(out, m.UID)
	}
	return out
}

// places are the places that migrations have taken. Of namespaces only those count that a tenant has caused.
type places struct {
	all               int
	nodes, namespaces map[string]int
}

func (p *places) take(m *v1.VirtualMachineInstanceMigration, node string) {
	p.all++
	p.nodes[node]++
	if isTenants(m) {
		p.namespaces[m.Namespace]++
	}
}

// isTenants says whether a user who may only edit the VM has caused the migration.
func isTenants(m *v1.VirtualMachineInstanceMigration) bool {
	return m.Annotations[v1.VolumeUpdateAnnotation] != ""
}

// rank is a priority as a number; the lowest comes first. A migration that a quota holds up comes last.
func rank(m *v1.VirtualMachineInstanceMigration) int {
	order := []v1.MigrationPriority{v1.PrioritySystemCritical, v1.PriorityUserTriggered, v1.PrioritySystemMaintenance}
	if m.Status.Condition(v1.MigrationRejectedByResourceQuota) != nil {
		return len(order)
	}
	return slices.Index(order, m.EffectivePriority())
}
