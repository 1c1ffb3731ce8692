package migration

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Mover makes the migrations for which users make no object: see cause. It evicts guests that an update of launchers cannot move.
type Mover struct {
	Client client.Client
	// Live reads past the cache. It is used only where the cache may be behind.
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.PassiveClock
	// LauncherImage is the image of new launcher pods.
	LauncherImage string
	// ARM64Image is that of new launcher pods of emulated guests of arm64.
	ARM64Image string
	// KubeVirt returns the spec of the KubeVirt object that is in force.
	KubeVirt func(context.Context) (*v1.KubeVirtSpec, error)
	// RolledOut says whether every node has a virt-handler of the present version.
	RolledOut func(context.Context) (bool, error)

	updates   updates
	evictions evictions
}

// Setup registers the reconciler with a manager, after Reconciler, whose index it uses.
func (m *Mover) Setup(mgr ctrl.Manager) error {
	toMove := predicate.NewPredicateFuncs(func(o client.Object) bool { return m.toMove(context.Background(), o.(*v1.VirtualMachineInstance)) })
	return ctrl.NewControllerManagedBy(mgr).Named("mover").
		For(&v1.VirtualMachineInstance{}, builder.WithPredicates(toMove)).
		Watches(&v1.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(itsVMI)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(m.itsGuests), builder.WithPredicates(getsTaints())).
		Watches(&v1.KubeVirt{}, handler.EnqueueRequestsFromMapFunc(m.all), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(kit.Options(1)).
		Complete(kit.Patient(m, m.Clock))
}

// itsVMI queues the VMI of a migration: a VMI whose migration has failed, or was deleted, gets another.
func itsVMI(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: o.(*v1.VirtualMachineInstanceMigration).Spec.VMIName}}}
}

// Reconcile makes the next migration of a guest that is to move, unless the guest moves already, or has a migration of the
// same cause that waits. A user's migration that waits holds up nothing.
func (m *Mover) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	vmi := &v1.VirtualMachineInstance{}
	if err := m.Client.Get(ctx, request.NamespacedName, vmi); err != nil {
		m.updates.forget(request.NamespacedName)
		m.evictions.forget(request.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var all v1.VirtualMachineInstanceMigrationList
	if err := m.Client.List(ctx, &all, client.InNamespace(vmi.Namespace), client.MatchingFields{nameIndex: vmi.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("list migrations: %w", err)
	}
	if slices.ContainsFunc(all.Items, func(m v1.VirtualMachineInstanceMigration) bool {
		return m.UpdatesLauncher() && m.DeletionTimestamp != nil && !m.IsFinal()
	}) {
		m.updates.note(vmi, 0, m.Clock.Now()) // somebody takes it back
	}
	if vmi.Migration() != nil {
		return ctrl.Result{}, nil
	}
	drained, err := m.drained(ctx, vmi)
	if err != nil {
		return ctrl.Result{}, err
	}
	if drained {
		m.complain(vmi)
	}
	why := causeOf(vmi, drained)
	if why == nil {
		var wait time.Duration
		if why, wait, err = m.update(ctx, vmi, all.Items); why == nil || err != nil {
			return ctrl.Result{RequeueAfter: wait}, err
		}
	}
	if slices.ContainsFunc(all.Items, func(m v1.VirtualMachineInstanceMigration) bool {
		return !m.IsFinal() && (m.IsUnderway() || why.of(&m))
	}) {
		return ctrl.Result{}, nil // its end brings us back
	}
	if drained && vmi.Status.EvacuationNodeName != vmi.Status.NodeName {
		if alone, err := m.alone(ctx, vmi); err != nil || alone {
			return ctrl.Result{RequeueAfter: aloneDelay}, err
		}
	}
	if wait := m.updates.wait(vmi, volumesDelay, m.Clock.Now()); wait > 0 && why.annotation == v1.VolumeUpdateAnnotation {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	failed := failures(vmi, why, all.Items)
	if wait := why.backOff(failed, m.Clock.Now()); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	behind, err := m.create(ctx, vmi, drained, migrationFor(vmi, why, failed))
	if err != nil {
		m.Events.Eventf(vmi, nil, corev1.EventTypeWarning, v1.ReasonFailedCreate, "Migrate", "cannot make a migration to %s: %s", why.purpose, control.Short(err.Error()))
		return ctrl.Result{}, fmt.Errorf("create migration: %w", err)
	}
	if behind {
		return ctrl.Result{RequeueAfter: kit.WriteDelay}, nil
	}
	switch why.annotation {
	case v1.WorkloadUpdateMigrationAnnotation:
		m.updates.note(vmi, 1, m.Clock.Now())
	case v1.VolumeUpdateAnnotation:
		m.updates.note(vmi, 0, m.Clock.Now())
	}
	return ctrl.Result{}, nil
}

// create makes a migration. It says whether the cache is behind: the migration is there already. A migration of that name
// that has ended, or that is of somebody else, gives way to a name that the API server makes.
func (m *Mover) create(ctx context.Context, vmi *v1.VirtualMachineInstance, drained bool, made *v1.VirtualMachineInstanceMigration) (behind bool, err error) {
	err = m.Client.Create(ctx, made)
	if !apierrors.IsAlreadyExists(err) {
		return false, err
	}
	there := &v1.VirtualMachineInstanceMigration{}
	switch err := m.Live.Get(ctx, client.ObjectKeyFromObject(made), there); {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("get migration %s: %w", made.Name, err)
	case !there.IsFinal() && there.Spec.VMIName == vmi.Name && moot(there, vmi, drained) == "":
		return true, nil
	}
	made.GenerateName, made.Name, made.ResourceVersion = made.Name+"-", "", ""
	return false, m.Client.Create(ctx, made)
}

// failures returns the migrations of a cause that have failed, the newest last. The API server's clock says which is the newest.
func failures(vmi *v1.VirtualMachineInstance, why *cause, all []v1.VirtualMachineInstanceMigration) []*v1.VirtualMachineInstanceMigration {
	var out []*v1.VirtualMachineInstanceMigration
	for i := range all {
		m := &all[i]
		own := slices.ContainsFunc(m.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == vmi.UID })
		if own && m.Status.Phase == v1.MigrationFailed && why.counts(m) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *v1.VirtualMachineInstanceMigration) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return out
}

// The time between the failure of a migration and the next of its cause: doubled with each failure, KubeVirt's values.
const (
	firstBackOff = 20 * time.Second
	lastBackOff  = 5 * time.Minute
)

// backOff is how long to wait before the next migration. It is pure. The pauses between updates of a launcher are in the objects too: another
// virt-controller knows nothing of those that it has not made.
func (c *cause) backOff(failed []*v1.VirtualMachineInstanceMigration, now time.Time) time.Duration {
	if len(failed) == 0 {
		return 0
	}
	first, last := firstBackOff, lastBackOff
	if c.annotation == v1.WorkloadUpdateMigrationAnnotation {
		first, last = againDelay, againDelay<<againDoubled
	}
	wait := min(first<<min(len(failed)-1, kept), last)
	ended := failed[len(failed)-1].Status.Entered(v1.MigrationFailed)
	if ended.After(now) {
		return 0 // by the clock of another virt-controller, which is ahead
	}
	return ended.Add(wait).Sub(now)
}

// migrationFor is the next migration of a cause. Its name depends on the last failure, so that the same migration is not made
// twice.
func migrationFor(vmi *v1.VirtualMachineInstance, why *cause, failed []*v1.VirtualMachineInstanceMigration) *v1.VirtualMachineInstanceMigration {
	of := string(vmi.UID) + "/" + why.value + "/" + vmi.Status.LauncherPod
	if len(failed) > 0 {
		of += "/" + string(failed[len(failed)-1].UID)
	}
	sum := sha256.Sum256([]byte(of))
	m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{
		Namespace: vmi.Namespace, Name: why.prefix + hex.EncodeToString(sum[:5]),
		Annotations:     map[string]string{why.annotation: why.value},
		OwnerReferences: []metav1.OwnerReference{ownedBy(vmi)},
		Finalizers:      []string{v1.MigrationFinalizer},
	}}
	m.Spec = v1.VirtualMachineInstanceMigrationSpec{VMIName: vmi.Name, Priority: ptr.To(why.priority)}
	if why.hostname != "" {
		m.Spec.AddedNodeSelector = map[string]string{corev1.LabelHostname: why.hostname}
	}
	return m
}
