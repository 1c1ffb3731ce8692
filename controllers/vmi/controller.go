package vmi

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/kubeqemu/kubeqemu/api/migrations/v1alpha1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/follow"
	"github.com/kubeqemu/kubeqemu/controllers/images"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// Reconciler makes and follows the launcher pods of VMIs.
type Reconciler struct {
	Client client.Client
	// Live reads past the cache. It is used only where the cache may be behind.
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.PassiveClock
	Config PodConfig
	// Images returns how images come to new pods. A nil function means images.Volumes.
	Images func(context.Context) (images.Way, error)
	// Cluster returns the cluster's configuration. A nil function means an empty
	// configuration.
	Cluster func(context.Context) (*v1.KubeVirtConfiguration, error)
	// Follow are the keys of the VMI's metadata that its launcher pod follows.
	Follow follow.Keys
	// Presets reads the presets of a namespace.
	Presets kit.Presets
	// Policy returns the MigrationPolicy of a VMI, or nil. It may be some seconds old.
	Policy func(context.Context, *v1.VirtualMachineInstance) (*v1alpha1.MigrationPolicy, error)

	ends   ends
	writes kit.Writes
}

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	for key, by := range map[string]client.IndexerFunc{claimIndex: indexByClaim, macIndex: indexByMAC} {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1.VirtualMachineInstance{}, key, by); err != nil {
			return fmt.Errorf("index VMIs by %s: %w", key, err)
		}
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1.VirtualMachineInstance{}).
		Watches(&corev1.Pod{}, r.podEvents()).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(r.sharersOfMAC),
			builder.WithPredicates(comesOrEnds())).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.usersOfClaim)).
		// A VM's VMI has the VM's name.
		Watches(&v1.VirtualMachine{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(updatesVolumes())).
		WithOptions(kit.Options(8)).
		Complete(kit.Patient(r, r.Clock))
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=pods/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile takes one VMI a step further: it looks, decides in which phase the VMI is, takes the phase's steps, and
// writes the status once if it changed.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	vmi := &v1.VirtualMachineInstance{}
	if err := r.Client.Get(ctx, request.NamespacedName, vmi); err != nil {
		r.writes.Forget(request.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.writes.Behind(vmi) {
		return ctrl.Result{RequeueAfter: kit.WriteDelay}, nil
	}
	t := &turn{before: vmi.DeepCopy()}
	vmi.Status.Settle()
	var err error
	if t.world, err = r.look(ctx, vmi); err != nil {
		return ctrl.Result{}, err
	}
	steps := r.course(decide(t.world))
	wait, failure := take(ctx, t, steps.before)
	if errors.Is(failure, errSkipAll) {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	if err := r.write(ctx, t); err != nil {
		return ctrl.Result{}, kit.IgnoreConflict(err)
	}
	if failure == nil {
		var again time.Duration
		again, failure = take(ctx, t, steps.after)
		wait = kit.Sooner(wait, again)
	}
	return ctrl.Result{RequeueAfter: wait}, kit.IgnoreConflict(failure)
}

// look reads what the VMI's phase depends on.
func (r *Reconciler) look(ctx context.Context, vmi *v1.VirtualMachineInstance) (w world, err error) {
	w = world{vmi: vmi, now: r.Clock.Now()}
	if w.pod, w.watched, err = r.pod(ctx, vmi); err != nil {
		return w, err
	}
	if w.companions, err = r.companions(ctx, vmi); err != nil {
		return w, err
	}
	if w.stateGone, err = r.stateGone(ctx, vmi, w.pod); err != nil {
		return w, err
	}
	w.stranded = r.stranded(ctx, vmi, w.pod)
	w.last = r.ends.of(vmi)
	return w, nil
}

// write writes the status if it changed, and makes events of what is new in it.
func (r *Reconciler) write(ctx context.Context, t *turn) error {
	if equality.Semantic.DeepEqual(t.before.Status, t.vmi.Status) {
		return nil
	}
	if err := kit.PatchStatus(ctx, r.Client, t.before, t.vmi); err != nil {
		return err
	}
	r.writes.Note(t.before, t.vmi)
	r.announce(t.before, t.vmi)
	return nil
}

func (r *Reconciler) now() metav1.Time { return metav1.NewTime(r.Clock.Now()) }

func (r *Reconciler) cluster(ctx context.Context) (*v1.KubeVirtConfiguration, error) {
	if r.Cluster == nil {
		return &v1.KubeVirtConfiguration{}, nil
	}
	return r.Cluster(ctx)
}
