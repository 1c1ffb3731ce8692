package migration

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/api/nodefit"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// This file has guests move to launchers of the present image, one after the other, if the KubeVirt object says so.

const (
	// turnDelay is the time between two looks at a guest that waits for its turn, or for virt-handlers.
	turnDelay = 30 * time.Second
	// aloneDelay is the time between two looks at a guest that no node takes.
	aloneDelay = 5 * time.Minute
	// againDelay is how long after an update the guest gets another: somebody took the update back, or it failed, or a webhook gave the new launcher
	// another image. With each further one the time doubles, at most againDoubled times.
	againDelay   = 10 * time.Minute
	againDoubled = 5
	// volumesDelay is how long after an update of its volumes a guest gets another.
	volumesDelay = time.Minute
)

// outdated reports whether a guest runs, and has a launcher of another image.
func (m *Mover) outdated(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Outdated(m.LauncherImage, m.ARM64Image) && vmi.Status.Phase == v1.Running && vmi.DeletionTimestamp == nil
}

// update returns why an outdated guest is to move now. If it is not to, update returns when to look again, and evicts
// the guest if the KubeVirt object says so. all are the VMI's migrations.
func (m *Mover) update(ctx context.Context, vmi *v1.VirtualMachineInstance, all []v1.VirtualMachineInstanceMigration) (*cause, time.Duration, error) {
	if !m.outdated(vmi) {
		return nil, 0, nil
	}
	spec, err := m.KubeVirt(ctx)
	if err != nil {
		return nil, 0, err
	}
	strategy := spec.WorkloadUpdateStrategy
	if !strategy.Moves() {
		if err := m.withdraw(ctx, vmi); err != nil {
			return nil, 0, err
		}
	}
	if stays, _ := vmi.NotMigratable(); stays != "" || !strategy.Moves() {
		wait, err := m.evict(ctx, vmi, strategy, all)
		return nil, wait, err
	}
	if rolledOut, err := m.RolledOut(ctx); err != nil || !rolledOut {
		return nil, turnDelay, err
	}
	if wait := m.updates.wait(vmi, m.updates.again(vmi), m.Clock.Now()); wait > 0 {
		return nil, wait, nil
	}
	if turn, err := m.hasTurn(ctx, vmi, spec.Configuration.Migrations()); err != nil || !turn {
		return nil, turnDelay, err
	}
	to, err := m.goesTo(ctx, vmi, &spec.Configuration)
	if err != nil || !to.other && to.hostname == "" {
		return nil, aloneDelay, err
	}
	why := &cause{annotation: v1.WorkloadUpdateMigrationAnnotation, value: vmi.LauncherPod(), prefix: "kubevirt-workload-update-", priority: v1.PrioritySystemMaintenance,
		purpose: "a launcher of image " + m.LauncherImage}
	if !to.other {
		why.hostname = to.hostname
	}
	return why, 0, nil
}

// withdraw deletes the migrations that were made for an update and have not begun.
func (m *Mover) withdraw(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	var all v1.VirtualMachineInstanceMigrationList
	if err := m.Client.List(ctx, &all, client.InNamespace(vmi.Namespace), client.MatchingFields{nameIndex: vmi.Name}); err != nil {
		return fmt.Errorf("list migrations: %w", err)
	}
	for i := range all.Items {
		update := &all.Items[i]
		if !update.UpdatesLauncher() || !waits(update) || update.DeletionTimestamp != nil {
			continue
		}
		if err := m.Client.Delete(ctx, update, client.Preconditions{UID: &update.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete migration %s: %w", update.Name, err)
		}
	}
	return nil
}

// hasTurn says whether a guest may have its update now: no more of them are made than may run, see next. A user who may edit a VM can have its
// updates fail, by an affinity to no node say, and each such update has a place for minutes. So namespaces with fewer failed updates come first.
func (m *Mover) hasTurn(ctx context.Context, vmi *v1.VirtualMachineInstance, config *v1.MigrationConfiguration) (bool, error) {
	var all v1.VirtualMachineInstanceMigrationList
	if err := m.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list migrations: %w", err)
	}
	under, from, failed := 0, 0, map[string]int{}
	for i := range all.Items {
		other := &all.Items[i]
		if other.UpdatesLauncher() && other.Status.Phase == v1.MigrationFailed {
			failed[other.Namespace]++
		}
		if other.IsFinal() || !other.UpdatesLauncher() || other.Namespace == vmi.Namespace && other.Spec.VMIName == vmi.Name {
			continue
		}
		under++
		moves := &v1.VirtualMachineInstance{}
		err := m.Client.Get(ctx, client.ObjectKey{Namespace: other.Namespace, Name: other.Spec.VMIName}, moves, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("get VMI %s: %w", other.Spec.VMIName, err)
		}
		if err == nil && moves.Status.NodeName == vmi.Status.NodeName {
			from++
		}
	}
	room := under < max(1, config.Parallel()/2) && from < max(1, config.Outbound()/2)
	return m.updates.hasTurn(vmi, room, failed, m.Clock.Now()), nil
}

// destination is where an update can bring a guest.
type destination struct {
	// other: another node takes the guest.
	other bool
	// hostname is the label of the guest's own node, if that node takes another pod of the guest.
	hostname string
}

// look takes a page of nodes into account. A node that virt-handler has left takes no guest. It is pure.
func (d *destination) look(nodes []corev1.Node, own string, tolerations []corev1.Toleration) {
	for i := range nodes {
		switch n := &nodes[i]; {
		case n.Labels[v1.SchedulableLabel] != "true" || !nodefit.Takes(n, tolerations):
		case n.Name == own:
			d.hostname = n.Labels[corev1.LabelHostname]
		default:
			d.other = true
		}
	}
}

// goesTo says where an update can bring a guest.
func (m *Mover) goesTo(ctx context.Context, vmi *v1.VirtualMachineInstance, cluster *v1.KubeVirtConfiguration) (to destination, err error) {
	err = nodesFor(ctx, m.Live, vmi, cluster, func(nodes []corev1.Node) bool {
		to.look(nodes, vmi.Status.NodeName, vmi.Spec.Tolerations)
		return to.other
	})
	return to, err
}

// nodesFor reads the nodes that the pods of a VMI may be on, past the cache, which has no taints. It hands them out page by page, until
// enough returns true.
func nodesFor(ctx context.Context, live client.Reader, vmi *v1.VirtualMachineInstance, cluster *v1.KubeVirtConfiguration, enough func([]corev1.Node) bool) error {
	selector, err := nodefit.Selector(vmi, cluster)
	if err != nil {
		return fmt.Errorf("read nodeSelector: %w", err)
	}
	const page = 100
	for more := ""; ; {
		var nodes corev1.NodeList
		if err := live.List(ctx, &nodes, client.MatchingLabelsSelector{Selector: selector}, client.Limit(page), client.Continue(more)); err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		if more = nodes.Continue; enough(nodes.Items) || more == "" {
			return nil
		}
	}
}

// updates are the last updates of guests that were made, of launchers and of volumes. A user who deletes an update of a launcher does not get
// it back at once, and a user who names other claims all the time does not have migrations made without a pause.
type updates struct {
	mu    sync.Mutex
	made  map[types.NamespacedName]madeUpdate
	turns turns
}

// hasTurn says whether a guest has its turn, if there is room, and notes that it waits if it does not. failed are the updates that failed, by
// namespace.
func (u *updates) hasTurn(vmi *v1.VirtualMachineInstance, room bool, failed map[string]int, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.turns.has(client.ObjectKeyFromObject(vmi), room, failed, now)
}

type madeUpdate struct {
	vmi types.UID
	// times is how many updates of the launcher were made.
	times int
	at    time.Time
}

// note notes that an update was made, or was taken back. launchers is how many updates of the launcher were made.
func (u *updates) note(vmi *v1.VirtualMachineInstance, launchers int, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.made == nil {
		u.made = map[types.NamespacedName]madeUpdate{}
	}
	last := u.last(vmi)
	u.made[client.ObjectKeyFromObject(vmi)] = madeUpdate{vmi.UID, last.times + launchers, now}
}

// last returns the latest update of the VMI, or the zero value. The caller holds u.mu.
func (u *updates) last(vmi *v1.VirtualMachineInstance) madeUpdate {
	if last := u.made[client.ObjectKeyFromObject(vmi)]; last.vmi == vmi.UID {
		return last
	}
	return madeUpdate{}
}

// again is the pause after the last update of a guest's launcher.
func (u *updates) again(vmi *v1.VirtualMachineInstance) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	return againDelay << min(max(u.last(vmi).times-1, 0), againDoubled)
}

// wait is how long a guest has to wait for its next update.
func (u *updates) wait(vmi *v1.VirtualMachineInstance, pause time.Duration, now time.Time) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	last := u.last(vmi)
	if last.at.IsZero() {
		return 0
	}
	return max(0, last.at.Add(pause).Sub(now))
}

func (u *updates) forget(key types.NamespacedName) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.made, key)
	u.turns.forget(key)
}
