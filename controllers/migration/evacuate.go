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

// Evacuator makes the migrations of guests that evictions ask to leave their nodes. virt-api writes in a VMI's
// status which node the guest is to leave.
type Evacuator struct {
	Client client.Client
	// Live reads past the cache. It is used only where the cache may be behind.
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.PassiveClock
}

// Setup registers the reconciler with a manager, after Reconciler, whose index it uses.
func (e *Evacuator) Setup(mgr ctrl.Manager) error {
	toLeave := predicate.NewPredicateFuncs(func(o client.Object) bool { return leaves(o.(*v1.VirtualMachineInstance)) })
	return ctrl.NewControllerManagedBy(mgr).Named("evacuation").
		For(&v1.VirtualMachineInstance{}, builder.WithPredicates(toLeave)).
		Watches(&v1.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(itsVMI)).
		WithOptions(kit.Options(1)).
		Complete(e)
}

// itsVMI queues the VMI of a migration: a VMI whose evacuation has failed, or was deleted, gets another.
func itsVMI(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: o.(*v1.VirtualMachineInstanceMigration).Spec.VMIName}}}
}

// leaves says whether a guest is to leave its node by a migration.
func leaves(vmi *v1.VirtualMachineInstance) bool {
	if vmi.Status.Phase != v1.Running || vmi.DeletionTimestamp != nil || vmi.Status.EvacuationNodeName == "" || vmi.Status.EvacuationNodeName != vmi.Status.NodeName {
		return false
	}
	if reason, _ := vmi.NotMigratable(); reason != "" {
		return false
	}
	return vmi.Spec.EvictionStrategy.Moves()
}

// Reconcile makes the next migration of a guest that is to leave its node, unless the guest moves already or has an
// evacuation that waits. A user's migration that waits holds up nothing.
func (e *Evacuator) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	vmi := &v1.VirtualMachineInstance{}
	if err := e.Client.Get(ctx, request.NamespacedName, vmi); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !leaves(vmi) || vmi.Migration() != nil {
		return ctrl.Result{}, nil
	}
	var all v1.VirtualMachineInstanceMigrationList
	if err := e.Client.List(ctx, &all, client.InNamespace(vmi.Namespace), client.MatchingFields{nameIndex: vmi.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("list migrations: %w", err)
	}
	if slices.ContainsFunc(all.Items, func(m v1.VirtualMachineInstanceMigration) bool {
		return !m.IsFinal() && (m.IsUnderway() || m.Annotations[v1.EvacuationMigrationAnnotation] == vmi.Status.NodeName)
	}) {
		return ctrl.Result{}, nil // its end brings us back
	}
	failed := failures(vmi, all.Items)
	if wait := backOff(failed, e.Clock.Now()); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	behind, err := e.create(ctx, vmi, evacuationOf(vmi, failed))
	if err != nil {
		e.Events.Eventf(vmi, nil, corev1.EventTypeWarning, v1.ReasonFailedCreate, "Evacuate", "cannot make a migration off node %s: %s", vmi.Status.NodeName, control.Short(err.Error()))
		return ctrl.Result{}, fmt.Errorf("create migration: %w", err)
	}
	if behind {
		return ctrl.Result{RequeueAfter: kit.WriteDelay}, nil
	}
	return ctrl.Result{}, nil
}

// create makes a migration. It says whether the cache is behind: the migration is there already. A migration of that name
// that has ended, or that is of somebody else, gives way to a name that the API server makes.
func (e *Evacuator) create(ctx context.Context, vmi *v1.VirtualMachineInstance, m *v1.VirtualMachineInstanceMigration) (behind bool, err error) {
	err = e.Client.Create(ctx, m)
	if !apierrors.IsAlreadyExists(err) {
		return false, err
	}
	there := &v1.VirtualMachineInstanceMigration{}
	switch err := e.Live.Get(ctx, client.ObjectKeyFromObject(m), there); {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("get migration %s: %w", m.Name, err)
	case !there.IsFinal() && there.Spec.VMIName == vmi.Name && moot(there, vmi) == "":
		return true, nil
	}
	m.GenerateName, m.Name, m.ResourceVersion = m.Name+"-", "", ""
	return false, e.Client.Create(ctx, m)
}

// failures returns the migrations that were to bring a guest off its present node and have failed, the newest last. The API
// server's clock says which is the newest.
func failures(vmi *v1.VirtualMachineInstance, all []v1.VirtualMachineInstanceMigration) []*v1.VirtualMachineInstanceMigration {
	var out []*v1.VirtualMachineInstanceMigration
	for i := range all {
		m := &all[i]
		own := slices.ContainsFunc(m.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == vmi.UID })
		if own && m.Status.Phase == v1.MigrationFailed && m.Annotations[v1.EvacuationMigrationAnnotation] == vmi.Status.NodeName {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *v1.VirtualMachineInstanceMigration) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return out
}

// The time between the failure of an evacuation and the next: doubled with each failure, KubeVirt's values.
const (
	firstBackOff = 20 * time.Second
	lastBackOff  = 5 * time.Minute
)

// backOff is how long to wait before the next migration. It is pure.
func backOff(failed []*v1.VirtualMachineInstanceMigration, now time.Time) time.Duration {
	if len(failed) == 0 {
		return 0
	}
	wait := min(firstBackOff<<min(len(failed)-1, kept), lastBackOff)
	ended := failed[len(failed)-1].Status.Entered(v1.MigrationFailed)
	if ended.After(now) {
		return 0 // by the clock of another virt-controller, which is ahead
	}
	return ended.Add(wait).Sub(now)
}

// evacuationOf is the next migration of a guest that is to leave its node. Its name depends on the last failure, so
// that the same migration is not made twice.
func evacuationOf(vmi *v1.VirtualMachineInstance, failed []*v1.VirtualMachineInstanceMigration) *v1.VirtualMachineInstanceMigration {
	of := string(vmi.UID) + "/" + vmi.Status.NodeName + "/" + vmi.Status.LauncherPod
	if len(failed) > 0 {
		of += "/" + string(failed[len(failed)-1].UID)
	}
	sum := sha256.Sum256([]byte(of))
	m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{
		Namespace: vmi.Namespace, Name: "kubevirt-evacuation-" + hex.EncodeToString(sum[:5]), // KubeVirt's prefix
		Annotations:     map[string]string{v1.EvacuationMigrationAnnotation: vmi.Status.NodeName},
		OwnerReferences: []metav1.OwnerReference{ownedBy(vmi)},
		Finalizers:      []string{v1.MigrationFinalizer},
	}}
	m.Spec = v1.VirtualMachineInstanceMigrationSpec{VMIName: vmi.Name, Priority: ptr.To(v1.PrioritySystemCritical)}
	return m
}

// moot is why a migration of an evacuation is not needed any more; empty if it is needed.
func moot(m *v1.VirtualMachineInstanceMigration, vmi *v1.VirtualMachineInstance) string {
	node := m.Annotations[v1.EvacuationMigrationAnnotation]
	if node == "" || node == vmi.Status.EvacuationNodeName && node == vmi.Status.NodeName {
		return ""
	}
	return fmt.Sprintf("nobody asks the guest to leave node %q any more", node)
}
