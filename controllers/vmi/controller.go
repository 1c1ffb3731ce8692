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
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1.VirtualMachineInstance{}, claimIndex, indexByClaim); err != nil {
		return fmt.Errorf("index VMIs by claim: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1.VirtualMachineInstance{}, macIndex, indexByMAC); err != nil {
		return fmt.Errorf("index VMIs by MAC: %w", err)
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

// Reconcile takes one VMI a step further. It reads the VMI and its pod,
// computes the status in memory, and writes it once if it changed.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	vmi := &v1.VirtualMachineInstance{}
	if err := r.Client.Get(ctx, request.NamespacedName, vmi); err != nil {
		r.writes.Forget(request.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.writes.Behind(vmi) {
		return ctrl.Result{RequeueAfter: kit.WriteDelay}, nil
	}
	before := vmi.DeepCopy()
	vmi.Status.Settle()
	pod, watched, err := r.pod(ctx, vmi)
	if err != nil {
		return ctrl.Result{}, err
	}
	companions, err := r.companions(ctx, vmi)
	if err != nil {
		return ctrl.Result{}, err
	}
	gone, err := r.stateGone(ctx, vmi, pod)
	if err != nil {
		return ctrl.Result{}, err
	}
	var after time.Duration
	var stepErr error
	admitted := true
	switch {
	case vmi.DeletionTimestamp != nil:
		stepErr = errors.Join(kit.IgnoreConflict(r.remove(ctx, vmi, pod)),
			kit.IgnoreConflict(r.removeCompanions(ctx, companions)))
		if stepErr == nil {
			after, stepErr = r.observeRemoval(ctx, vmi, pod)
		}
	case vmi.IsFinal():
		r.ends.forget(vmi.UID)
		after, err := r.label(ctx, vmi)
		return ctrl.Result{RequeueAfter: after}, kit.IgnoreConflict(err)
	case r.between(vmi, pod, companions):
		return ctrl.Result{RequeueAfter: betweenDelay}, nil
	case pod != nil && rejected(pod) && !launched(&vmi.Status):
		after, stepErr = r.replace(ctx, vmi, pod, rejection(pod))
	case pod != nil && gone != "" && !launched(&vmi.Status):
		after, stepErr = r.replace(ctx, vmi, pod, replacement{v1.ReasonPvcNotFound,
			fmt.Sprintf("PVC %s/%s, which had the guest's state, is gone; it is made anew and empty, and the launcher pod too", vmi.Namespace, gone)})
	case pod != nil:
		begin(&vmi.Status, r.now())
		vm, err := r.machine(ctx, r.Client, vmi)
		if err != nil {
			return ctrl.Result{}, err
		}
		if !reported(&before.Status) { // what was noted before the pod was made may not have been written
			cluster, err := r.cluster(ctx)
			if err != nil {
				return ctrl.Result{}, err
			}
			observeBindings(vmi, cluster)
		}
		if _, stepErr = r.observeVolumes(ctx, vmi); stepErr == nil {
			stepErr = r.observeState(ctx, vmi, pod)
		}
		if stepErr == nil {
			after = r.observeMoves(ctx, vmi, vm)
		}
		observeSidecars(vmi, pod, r.now())
		observeMigratable(vmi, r.now())
		observe(&vmi.Status, pod, r.now())
		observeDevices(vmi, pod)
		observeMemory(vmi, pod)
		if stepErr == nil {
			stepErr = r.explainScheduling(ctx, vmi)
		}
		observeReadiness(vmi, pod, r.now())
		if stepErr == nil {
			stepErr = r.observeSharedMAC(ctx, vmi)
		}
		if stepErr == nil {
			var connecting time.Duration
			connecting, stepErr = r.observeSandbox(ctx, vmi, pod)
			after = kit.Sooner(after, connecting)
		}
	default:
		admitted, stepErr = r.admit(ctx, vmi)
		if admitted && !vmi.IsFinal() {
			pod, stepErr = r.create(ctx, vmi)
			watched = true
		}
		after, stepErr = r.patient(vmi, stepErr)
	}
	if pod != nil && !reported(&before.Status) && r.early(pod) && vmi.DeletionTimestamp == nil {
		return ctrl.Result{RequeueAfter: earlyDelay}, nil
	}
	observeCompanions(vmi, companions)
	if err := r.writeStatus(ctx, before, vmi); err != nil {
		return ctrl.Result{}, kit.IgnoreConflict(err)
	}
	r.announce(before, vmi)
	if pod != nil && stepErr == nil {
		var booting time.Duration
		booting, stepErr = r.openGate(ctx, vmi, pod)
		after = kit.Sooner(after, booting)
	}
	if pod != nil && stepErr == nil {
		stepErr = r.follow(ctx, vmi, pod)
	}
	if stepErr == nil && vmi.DeletionTimestamp == nil &&
		vmi.ResourceVersion == before.ResourceVersion { // the event of another write brings us back
		var labelled time.Duration
		labelled, stepErr = r.label(ctx, vmi)
		after = kit.Sooner(after, labelled)
	}
	if vmi.DeletionTimestamp != nil && pod == nil && stepErr == nil && !r.holdUp(vmi, companions) {
		after, stepErr = r.letGo(ctx, vmi)
	}
	if pod != nil && !watched || vmi.DeletionTimestamp != nil && len(companions) > 0 {
		after = kit.Sooner(after, unwatchedDelay)
	}
	return ctrl.Result{RequeueAfter: after}, kit.IgnoreConflict(stepErr)
}

// earlyDelay is how long the scheduler has for a new pod before the VMI's status reports the
// pod. So one write reports the pod and its node, instead of two writes. A bound pod is
// reported at once.
const earlyDelay = time.Second

// early reports whether a pod was just made, and the scheduler has not looked at the pod yet.
func (r *Reconciler) early(pod *corev1.Pod) bool {
	age := r.Clock.Since(pod.CreationTimestamp.Time) // in whole seconds, by the API server's clock
	return pod.Spec.NodeName == "" && len(pod.Status.Conditions) == 0 && age.Abs() < 2*earlyDelay
}

// reported reports whether a VMI's status says that it has, or had, a pod.
func reported(status *v1.VirtualMachineInstanceStatus) bool {
	return status.Phase != "" && status.Phase != v1.Pending
}

// unwatchedDelay is the time between two looks at a VMI whose pod's end makes no event for the
// VMI.
const unwatchedDelay = 2 * time.Second

func (r *Reconciler) now() metav1.Time { return metav1.NewTime(r.Clock.Now()) }

func (r *Reconciler) cluster(ctx context.Context) (*v1.KubeVirtConfiguration, error) {
	if r.Cluster == nil {
		return &v1.KubeVirtConfiguration{}, nil
	}
	return r.Cluster(ctx)
}

func (r *Reconciler) writeStatus(ctx context.Context, before, vmi *v1.VirtualMachineInstance) error {
	if equality.Semantic.DeepEqual(before.Status, vmi.Status) {
		return nil
	}
	if err := kit.PatchStatus(ctx, r.Client, before, vmi); err != nil {
		return err
	}
	r.writes.Note(before, vmi)
	return nil
}
