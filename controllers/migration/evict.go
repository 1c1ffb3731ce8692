package migration

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// This file evicts guests that no migration brings to a launcher of the present image, some at a time, if the KubeVirt object says so.

// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create

// evict evicts the launcher pod of an outdated guest, if the strategy says so and the guest has its turn. It returns when to look again. The
// guest shuts down, and its VM starts it again by its runStrategy. PodDisruptionBudgets and virt-api may refuse the eviction, as any other.
func (m *Mover) evict(ctx context.Context, vmi *v1.VirtualMachineInstance, strategy *v1.WorkloadUpdateStrategy, all []v1.VirtualMachineInstanceMigration) (time.Duration, error) {
	if !strategy.Evicts() || strategy.BatchSize() <= 0 || isLeaving(vmi) {
		return 0, nil
	}
	if slices.ContainsFunc(all, func(m v1.VirtualMachineInstanceMigration) bool { return !m.IsFinal() }) {
		return 0, nil // its end brings us back
	}
	if rolledOut, err := m.RolledOut(ctx); err != nil || !rolledOut {
		return turnDelay, err
	}
	now := m.Clock.Now()
	if strategy.Moves() && !staysFor(vmi, settledTime, now) {
		return turnDelay, nil
	}
	if wait := m.updates.wait(vmi, m.updates.again(vmi), now); wait > 0 {
		return wait, nil
	}
	if !m.evictions.hasTurn(vmi, strategy, now) {
		return turnDelay, nil
	}
	switch err := m.evictPod(ctx, vmi); {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return 0, nil // the VMI's status is about to follow
	case err != nil && ctx.Err() != nil:
		return 0, fmt.Errorf("evict pod %s: %w", vmi.LauncherPod(), err)
	case err != nil:
		// A refusal is a 429 of a PodDisruptionBudget's or of virt-api's. It is a 500 where two budgets select the pod, and where virt-api does
		// not answer.
		m.updates.note(vmi, 1, now)
		m.Events.Eventf(vmi, nil, corev1.EventTypeWarning, v1.ReasonFailedEvict, "Evict", "The guest has a launcher of an earlier image, and its eviction was refused: %s", control.Short(err.Error()))
		return m.updates.again(vmi), nil
	}
	m.updates.note(vmi, 1, now)
	m.evictions.note(vmi, now)
	m.Events.Eventf(vmi, nil, corev1.EventTypeNormal, v1.ReasonSuccessfulEvict, "Evict", "Initiated eviction of VMI as part of automated workload update: its launcher is not of image %s", m.LauncherImage)
	return 0, nil
}

// isLeaving reports whether a VMI's launcher pod is being deleted already.
func isLeaving(vmi *v1.VirtualMachineInstance) bool {
	ready := vmi.Status.Condition(v1.ConditionReady)
	return ready != nil && ready.Reason == v1.ReasonPodTerminating
}

// settledTime is how long a guest must have been not migratable until it is evicted instead. Right after a start, and after a restart of
// virt-handler, something of a guest that can migrate is not known for a moment.
const settledTime = 5 * time.Minute

// staysFor reports whether a VMI has said for so long that its guest cannot migrate.
func staysFor(vmi *v1.VirtualMachineInstance, long time.Duration, now time.Time) bool {
	c := vmi.Status.Condition(v1.ConditionLiveMigratable)
	return c != nil && c.Status == metav1.ConditionFalse && now.Sub(c.LastTransitionTime.Time) >= long
}

// evictTime bounds an eviction. client-go tries again by itself what the API server puts off, and others wait for the Mover meanwhile.
const evictTime = 12 * time.Second

// evictPod evicts the pod that the VMI's status names, and no other pod of that name.
func (m *Mover) evictPod(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	ctx, cancel := context.WithTimeout(ctx, evictTime)
	defer cancel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: vmi.LauncherPod()}}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	if uid := podUID(vmi); uid != "" {
		eviction.DeleteOptions = &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	}
	return m.Client.SubResource("eviction").Create(ctx, pod, eviction)
}

// podUID returns the UID of the pod that has a VMI's guest, or "" if the status does not say it.
func podUID(vmi *v1.VirtualMachineInstance) types.UID {
	for _, p := range vmi.Status.LauncherPods {
		if p.Name == vmi.LauncherPod() {
			return p.UID
		}
	}
	return ""
}

// evictions are those of the present batch. Only evictions that were not refused count: a namespace whose guests cannot be evicted keeps
// nobody from being evicted.
type evictions struct {
	mu sync.Mutex
	// begin is when the batch's first eviction was.
	begin time.Time
	// done are the batch's evictions, by namespace.
	done  map[string]int
	turns turns
}

// hasTurn reports whether the batch has room for a guest, and it is the turn of the guest's namespace.
func (e *evictions) hasTurn(vmi *v1.VirtualMachineInstance, strategy *v1.WorkloadUpdateStrategy, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.Sub(e.begin) >= strategy.BatchInterval() || now.Before(e.begin) {
		e.begin, e.done = time.Time{}, nil
	}
	total := 0
	for _, n := range e.done {
		total += n
	}
	return e.turns.has(client.ObjectKeyFromObject(vmi), total < strategy.BatchSize(), e.done, now)
}

// note counts an eviction.
func (e *evictions) note(vmi *v1.VirtualMachineInstance, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done == nil {
		e.begin, e.done = now, map[string]int{}
	}
	e.done[vmi.Namespace]++
}

func (e *evictions) forget(guest types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.turns.forget(guest)
}
