// Package migration is virt-controller's side of a VirtualMachineInstanceMigration. It makes the target pod, tells
// the two virt-handlers of each other by the VMI's status, and follows what they report there.
//
// A migration is in the hands of virt-controller until the virt-handlers move the guest, and again after its end.
// The decision in the VMI's status says where the guest is to run. Until there is one, virt-controller may end the
// migration by deciding for the source.
package migration

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// Reconciler takes migrations to their ends.
type Reconciler struct {
	Client client.Client
	// Live reads past the cache. It is used only where the cache may be behind.
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.PassiveClock
	// Cluster returns the cluster's configuration.
	Cluster func(context.Context) (*v1.KubeVirtConfiguration, error)
	// TargetPod renders the target pod of a migration, and says what it may use.
	TargetPod func(context.Context, *v1.VirtualMachineInstance, *v1.VirtualMachineInstanceMigration) (*corev1.Pod, kit.Room, error)
	// RuledOut says which labels of CPUs keep a target pod off the nodes; empty if none does.
	RuledOut func(context.Context, *corev1.Pod) (string, error)
	// Policies are the cluster's MigrationPolicies.
	Policies *Policies

	migrations, vmis kit.Writes
	// gone are the sources that are gone, and decided are the migrations of which it is decided where their guests run.
	gone, decided sightings
}

const (
	// nameIndex indexes migrations by the names of their VMIs.
	nameIndex = "spec.vmiName"
	// migrationIndex indexes VMIs by the names of their migrations that are under way.
	migrationIndex = "status.migrationState.migrationName"
)

func indexByVMI(o client.Object) []string {
	return []string{o.(*v1.VirtualMachineInstanceMigration).Spec.VMIName}
}

func indexByMigration(o client.Object) []string {
	if m := o.(*v1.VirtualMachineInstance).Migration(); m != nil {
		return []string{m.MigrationName}
	}
	return nil
}

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	index := mgr.GetFieldIndexer()
	err := errors.Join(index.IndexField(context.Background(), &v1.VirtualMachineInstanceMigration{}, nameIndex, indexByVMI),
		index.IndexField(context.Background(), &v1.VirtualMachineInstance{}, migrationIndex, indexByMigration))
	if err != nil {
		return fmt.Errorf("index migrations and VMIs: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1.VirtualMachineInstanceMigration{}).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(r.ofVMI)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.ofPod)).
		Watches(&v1.VirtualMachineInstanceMigration{}, r.afterEnd()).
		WithOptions(kit.Options(4)).
		Complete(kit.Patient(r, r.Clock))
}

// Reconcile takes one migration a step further.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	migration := &v1.VirtualMachineInstanceMigration{}
	err := r.Client.Get(ctx, request.NamespacedName, migration)
	if apierrors.IsNotFound(err) {
		r.migrations.Forget(request.NamespacedName)
		return r.orphan(ctx, request.NamespacedName)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if r.migrations.Behind(migration) {
		return ctrl.Result{RequeueAfter: kit.WriteDelay}, nil
	}
	w, err := r.look(ctx, migration)
	if err != nil {
		return ctrl.Result{}, err
	}
	if w.vmi != nil && r.vmis.Behind(w.vmi) {
		return ctrl.Result{RequeueAfter: kit.WriteDelay}, nil
	}
	if changed, err := r.mark(ctx, w); changed || err != nil {
		return ctrl.Result{}, kit.IgnoreConflict(err)
	}
	if migration.IsFinal() {
		r.decided.forget(migration.UID)
		after, err := r.conclude(ctx, w)
		return ctrl.Result{RequeueAfter: after}, kit.IgnoreConflict(err)
	}
	before := migration.DeepCopy()
	after, err := r.step(ctx, w)
	if w.mine() {
		migration.Status.MigrationState = w.vmi.Status.MigrationState.DeepCopy()
	}
	if writeErr := r.writeStatus(ctx, before, migration); writeErr != nil {
		return ctrl.Result{}, kit.IgnoreConflict(writeErr)
	}
	r.announce(before, w)
	return ctrl.Result{RequeueAfter: after}, kit.IgnoreConflict(err)
}

// orphan ends the migration in a VMI's status whose object is gone. Somebody has removed the object's finalizer.
func (r *Reconciler) orphan(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	var vmis v1.VirtualMachineInstanceList
	if err := r.Client.List(ctx, &vmis, client.InNamespace(key.Namespace), client.MatchingFields{migrationIndex: key.Name}); err != nil {
		return ctrl.Result{}, fmt.Errorf("find the VMI of a migration that is gone: %w", err)
	}
	for i := range vmis.Items {
		vmi := &vmis.Items[i]
		if m := vmi.Migration(); m == nil || m.MigrationName != key.Name || r.vmis.Behind(vmi) {
			continue
		}
		err := r.Live.Get(ctx, key, &v1.VirtualMachineInstanceMigration{})
		if !apierrors.IsNotFound(err) {
			return ctrl.Result{RequeueAfter: kit.WriteDelay}, err // the cache is behind
		}
		gone := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: vmi.Migration().MigrationUID}}
		gone.DeletionTimestamp = &metav1.Time{Time: r.Clock.Now()}
		gone.Spec.VMIName, gone.Status.Phase = vmi.Name, v1.MigrationScheduling
		w, err := r.look(ctx, gone)
		if err != nil || !w.mine() {
			return ctrl.Result{}, err
		}
		w.orphan = true
		after, err := r.step(ctx, w)
		if err == nil && gone.Status.Phase == v1.MigrationFailed {
			err = r.claims().Remove(ctx, gone)
		}
		return ctrl.Result{RequeueAfter: after}, kit.IgnoreConflict(err)
	}
	return ctrl.Result{}, nil
}

// work is what a step looks at.
type work struct {
	migration *v1.VirtualMachineInstanceMigration
	vmi       *v1.VirtualMachineInstance // nil if it is gone
	target    *corev1.Pod                // nil if it is not there
	// orphan: the migration's object is gone.
	orphan bool
	// left is how long the source's pod has been gone, or has ended after it had sent everything. Lost says that it is
	// so.
	left time.Duration
	lost bool
	// drained: the guest's node has the taint by which guests leave it. It is looked at only for a migration by which the guest leaves its node, and for one that
	// keeps the guest there.
	drained bool
	// ruledOut says which labels of CPUs keep a target pod off the nodes that no node has taken.
	ruledOut string
	now      time.Time
}

// mine says whether the VMI's last migration is this one.
func (w *work) mine() bool {
	return w.vmi != nil && w.vmi.Status.MigrationState != nil && w.vmi.Status.MigrationState.MigrationUID == w.migration.UID
}

// state is the VMI's status.migrationState.
func (w *work) state() *v1.VirtualMachineInstanceMigrationState { return w.vmi.Status.MigrationState }

func (w *work) stamp() metav1.Time { return metav1.NewTime(w.now) }

func (r *Reconciler) look(ctx context.Context, migration *v1.VirtualMachineInstanceMigration) (*work, error) {
	w := &work{migration: migration, now: r.Clock.Now()}
	vmi := &v1.VirtualMachineInstance{}
	key := client.ObjectKey{Namespace: migration.Namespace, Name: migration.Spec.VMIName}
	err := r.Client.Get(ctx, key, vmi)
	if apierrors.IsNotFound(err) {
		r.vmis.Forget(key)
		return w, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get VMI %s: %w", key.Name, err)
	}
	w.vmi = vmi
	if migration.Annotations[v1.EvacuationMigrationAnnotation] != "" || migration.StaysOnNode() {
		if w.drained, err = drained(ctx, r.Client, vmi, r.Cluster); err != nil {
			return nil, err
		}
	}
	if w.target, err = r.pod(ctx, vmi, v1.LauncherPodName(vmi.Name, vmi.UID, migration.UID), migration.IsUnderway()); err != nil || !w.mine() || w.state().Decision != "" {
		r.gone.forget(migration.UID)
		if w.mine() && w.state().Decision != "" {
			r.decided.since(migration.UID, w.now)
		}
		return w, err
	}
	source, err := r.pod(ctx, vmi, w.state().SourcePod, true)
	if w.lost = source == nil || leftBehind(source); w.lost {
		w.left = r.gone.since(migration.UID, w.now)
	} else {
		r.gone.forget(migration.UID)
	}
	return w, err
}

// pod returns a launcher pod of the VMI, or nil. If it was there before, the API server says that it is gone, not the
// cache.
func (r *Reconciler) pod(ctx context.Context, vmi *v1.VirtualMachineInstance, name string, before bool) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: vmi.Namespace, Name: name}
	err := r.Client.Get(ctx, key, pod)
	if apierrors.IsNotFound(err) && before {
		err = r.Live.Get(ctx, key, pod)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get launcher pod %s: %w", name, err)
	case !owner.Controls(v1.VirtualMachineInstanceGroupVersionKind.GroupKind(), vmi, pod):
		return nil, nil
	}
	return pod, nil
}

// step takes a migration that has not ended a step further. It returns how long to wait for the next step, if no
// event will bring it.
func (r *Reconciler) step(ctx context.Context, w *work) (time.Duration, error) {
	if !w.mine() {
		return r.wait(ctx, w)
	}
	r.noteCancel(w)
	r.notePostCopy(w)
	noteWaiting(w)
	switch w.state().Decision {
	case v1.DecisionSource:
		return r.fail(ctx, w)
	case v1.DecisionTarget:
		return r.arrive(ctx, w)
	}
	if err := r.explainTarget(ctx, w); err != nil {
		return 0, err
	}
	if why := giveUp(w); why != "" {
		return 0, r.decideForSource(ctx, w, why)
	}
	return r.advance(ctx, w)
}

// mark gives a migration the label by which clients find the migrations of a VMI, the finalizer, and its VMI as owner,
// so that it goes with the VMI.
func (r *Reconciler) mark(ctx context.Context, w *work) (changed bool, err error) {
	migration := w.migration
	if migration.DeletionTimestamp != nil || migration.IsFinal() {
		return false, nil
	}
	marked := migration.DeepCopy()
	if name := migration.Spec.VMIName; len(name) <= 63 { // longer names are no label
		metav1.SetMetaDataLabel(&marked.ObjectMeta, v1.VMINameLabel, name)
	}
	if !hasFinalizer(marked) {
		marked.Finalizers = append(marked.Finalizers, v1.MigrationFinalizer)
	}
	if len(marked.OwnerReferences) == 0 && w.vmi != nil {
		marked.OwnerReferences = []metav1.OwnerReference{ownedBy(w.vmi)}
	}
	if equality.Semantic.DeepEqual(marked.ObjectMeta, migration.ObjectMeta) {
		return false, nil
	}
	patch := client.MergeFromWithOptions(migration, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, marked, patch); err != nil {
		return true, fmt.Errorf("write finalizer: %w", err)
	}
	return true, nil
}

// ownedBy has a migration go with its VMI.
func ownedBy(vmi *v1.VirtualMachineInstance) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: v1.GroupVersion.String(), Kind: v1.VirtualMachineInstanceGroupVersionKind.Kind, Name: vmi.Name, UID: vmi.UID}
}

func (r *Reconciler) writeStatus(ctx context.Context, before, migration *v1.VirtualMachineInstanceMigration) error {
	if equality.Semantic.DeepEqual(before.Status, migration.Status) {
		return nil
	}
	if err := kit.PatchStatus(ctx, r.Client, before, migration); err != nil {
		return err
	}
	r.migrations.Note(before, migration)
	return nil
}

// writeVMI writes what a change makes of the VMI's status. The write fails with a conflict if the VMI has changed
// since it was read: a decision that another program has made meanwhile stands.
func (r *Reconciler) writeVMI(ctx context.Context, w *work, change func(*v1.VirtualMachineInstanceStatus)) error {
	before := w.vmi.DeepCopy()
	change(&w.vmi.Status)
	if equality.Semantic.DeepEqual(before.Status, w.vmi.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, w.vmi, patch); err != nil {
		w.vmi = before
		return fmt.Errorf("write status of VMI %s: %w", before.Name, err)
	}
	r.vmis.Note(before, w.vmi)
	return nil
}
