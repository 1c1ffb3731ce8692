package vmi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// Reconciler makes and follows the launcher pods of VMIs.
type Reconciler struct {
	Client client.Client
	// Live reads past the cache; it is asked only where the cache may be behind.
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.PassiveClock
	Config PodConfig
	// Cluster returns the cluster's configuration; nil where there is none.
	Cluster func(context.Context) (*v1.KubeVirtConfiguration, error)

	ends   ends
	writes kit.Writes
}

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1.VirtualMachineInstance{}, claimIndex, indexByClaim); err != nil {
		return fmt.Errorf("index VMIs by claim: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1.VirtualMachineInstance{}).
		Watches(&corev1.Pod{}, r.podEvents()).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.usersOfClaim)).
		WithOptions(kit.Options(8)).
		Complete(r)
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=pods/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch
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
	pod, watched, err := r.pod(ctx, vmi)
	if err != nil {
		return ctrl.Result{}, err
	}
	before := vmi.DeepCopy()
	var after time.Duration
	var stepErr error
	admitted := true
	switch {
	case vmi.DeletionTimestamp != nil:
		stepErr = r.remove(ctx, vmi, pod)
	case vmi.IsFinal():
		r.ends.forget(vmi.UID)
		return ctrl.Result{}, nil
	case pod != nil && rejected(pod) && !launched(&vmi.Status):
		after, stepErr = r.replace(ctx, vmi, pod)
	case pod != nil:
		begin(&vmi.Status, r.now())
		_, stepErr = r.observeVolumes(ctx, vmi)
		observe(&vmi.Status, pod, r.now())
		observeReadiness(vmi, pod, r.now())
	default:
		admitted, stepErr = r.admit(ctx, vmi)
		if admitted && !vmi.IsFinal() {
			pod, stepErr = r.create(ctx, vmi)
			watched = true
			after, stepErr = r.patient(vmi, stepErr)
		}
	}
	if pod != nil && !reported(&before.Status) && r.early(pod) && vmi.DeletionTimestamp == nil {
		return ctrl.Result{RequeueAfter: earlyDelay}, nil
	}
	if err := r.writeStatus(ctx, before, vmi); err != nil {
		return ctrl.Result{}, ignoreConflict(err)
	}
	r.announce(before, vmi)
	if pod != nil && stepErr == nil {
		var booting time.Duration
		if booting, stepErr = r.openGate(ctx, vmi, pod); booting > 0 && after == 0 {
			after = booting
		}
	}
	if vmi.DeletionTimestamp != nil && pod == nil && stepErr == nil {
		stepErr = r.release(ctx, vmi)
	}
	if pod != nil && !watched && after == 0 {
		after = unwatchedDelay
	}
	return ctrl.Result{RequeueAfter: after}, ignoreConflict(stepErr)
}

// earlyDelay is how long the scheduler has for a new pod before the VMI's status reports
// the pod. So one write reports the pod and its node, where there would be two. A pod
// that is bound is reported at once.
const earlyDelay = time.Second

// early says whether a pod was just made, and the scheduler has not looked at it yet.
func (r *Reconciler) early(pod *corev1.Pod) bool {
	age := r.Clock.Since(pod.CreationTimestamp.Time) // of whole seconds, by another clock
	return pod.Spec.NodeName == "" && len(pod.Status.Conditions) == 0 && age.Abs() < 2*earlyDelay
}

// reported says whether a VMI's status says that it has, or had, a pod.
func reported(status *v1.VirtualMachineInstanceStatus) bool {
	return status.Phase != "" && status.Phase != v1.Pending
}

// unwatchedDelay is how soon a VMI is looked at again whose pod's end is no event
// of the VMI's.
const unwatchedDelay = 2 * time.Second

// errVanished: what was in the launcher pod's way is gone. It was not the VMI's,
// so that no event says so.
var errVanished = errors.New("the pod that was in the way is gone")

// vanishedDelay is when the launcher pod is tried again then.
const vanishedDelay = time.Second

// patient turns an answer of the API server's that says no (a quota, a policy, a
// priority class that is missing) into a later attempt: a VMI that waits for
// somebody to change something is tried again less often the older it is, so
// that many of them do not hold up others'. Only where nobody answered is the
// next attempt due soon.
func (r *Reconciler) patient(vmi *v1.VirtualMachineInstance, err error) (time.Duration, error) {
	const soonest = 5 * time.Second
	switch {
	case errors.Is(err, errFilling):
		return soonest, nil
	case errors.Is(err, errVanished):
		return vanishedDelay, nil
	}
	if err == nil || !(apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err) || apierrors.IsBadRequest(err)) {
		return 0, err
	}
	return r.retryAfter(vmi, soonest), nil
}

// longestDelay is the time between two attempts of an old VMI.
const longestDelay = 5 * time.Minute

// retryAfter is how long a VMI waits between attempts: an older VMI waits longer.
func (r *Reconciler) retryAfter(vmi *v1.VirtualMachineInstance, soonest time.Duration) time.Duration {
	return min(max(r.Clock.Since(vmi.CreationTimestamp.Time)/4, soonest), longestDelay)
}

// ignoreConflict: somebody else wrote; their write comes back as an event.
func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}

func (r *Reconciler) now() metav1.Time { return metav1.NewTime(r.Clock.Now()) }

// admit refuses an invalid VMI. It persists defaults and finalizer of a valid
// one in a single write, before anything else is done with it; admitted says
// that this was done before.
func (r *Reconciler) admit(ctx context.Context, vmi *v1.VirtualMachineInstance) (admitted bool, err error) {
	cluster, err := r.cluster(ctx)
	if err != nil {
		return false, err
	}
	defaulted := vmi.DeepCopy()
	if vmi.Status.Phase == "" {
		v1.ApplyClusterDefaults(defaulted, cluster)
	}
	v1.Default(defaulted)
	errs := v1.Validate(defaulted)
	if vmi.Status.Phase == "" {
		errs = append(errs, v1.ValidateForCluster(defaulted, cluster)...)
	}
	if len(errs) > 0 {
		message := errs.ToAggregate().Error()
		r.unsynchronized(vmi, v1.ReasonInvalidSpec, message)
		finish(&vmi.Status, end{v1.Failed, v1.ReasonInvalidSpec, message}, r.now())
		return true, nil
	}
	// Once it has a phase, the spec cannot be changed any more.
	if vmi.Status.Phase != "" {
		return true, nil
	}
	controllerutil.AddFinalizer(defaulted, v1.VMIFinalizer)
	if equality.Semantic.DeepEqual(defaulted.Spec, vmi.Spec) && slices.Equal(defaulted.Finalizers, vmi.Finalizers) {
		return true, nil
	}
	err = kit.SortedRefusal(r.persist(ctx, vmi, defaulted))
	switch {
	case err == nil:
		return false, nil // its event brings us back
	case apierrors.IsConflict(err):
		return false, err
	}
	r.unsynchronized(vmi, v1.ReasonFailedUpdate, err.Error())
	return false, fmt.Errorf("persist defaults: %w", err)
}

func (r *Reconciler) cluster(ctx context.Context) (*v1.KubeVirtConfiguration, error) {
	if r.Cluster == nil {
		return &v1.KubeVirtConfiguration{}, nil
	}
	return r.Cluster(ctx)
}

func (r *Reconciler) unsynchronized(vmi *v1.VirtualMachineInstance, reason, message string) {
	vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSynchronized, Status: metav1.ConditionFalse,
		Reason: reason, Message: message}, r.now())
}

// create makes the launcher pod of a VMI that has none, unless it had one, and
// returns it.
func (r *Reconciler) create(ctx context.Context, vmi *v1.VirtualMachineInstance) (*corev1.Pod, error) {
	cluster, err := r.cluster(ctx)
	if err != nil {
		return nil, err
	}
	status := &vmi.Status
	if reported(status) && !wasRejected(status) {
		finish(status, r.lastWord(vmi, end{v1.Failed, v1.ReasonPodDeleted, "the launcher pod was deleted"}), r.now())
		return nil, nil
	}
	begin(status, r.now())
	if missing, err := r.observeVolumes(ctx, vmi); err != nil {
		return nil, err
	} else if missing != "" {
		setReady(status, metav1.ConditionFalse, v1.ReasonPodNotExists, "the launcher pod is not created yet", r.now())
		r.unsynchronized(vmi, v1.ReasonPvcNotFound, fmt.Sprintf("PVC %s/%s does not exist, waiting for it to appear", vmi.Namespace, missing))
		return nil, nil
	}
	if filled, err := r.filled(ctx, vmi); err != nil {
		return nil, err
	} else if !filled {
		return nil, errFilling
	}
	defaulted := vmi.DeepCopy()
	v1.Default(defaulted)
	// Once more: what was permitted when the VMI came may not be any more.
	if errs := v1.ValidateHostDisks(vmi, cluster); len(errs) > 0 {
		message := errs.ToAggregate().Error()
		r.unsynchronized(vmi, v1.ReasonInvalidSpec, message)
		finish(status, end{v1.Failed, v1.ReasonInvalidSpec, message}, r.now())
		return nil, nil
	}
	config := r.Config
	config.Cluster = cluster
	config.Emulation = config.Emulation || cluster.EmulationPermitted()
	pod := Pod(defaulted, config)
	err = kit.SortedRefusal(r.Client.Create(ctx, pod))
	if apierrors.IsAlreadyExists(err) {
		existing := &corev1.Pod{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(pod), existing); apierrors.IsNotFound(err) {
			return nil, errVanished
		} else if err != nil {
			return nil, fmt.Errorf("get pod %s: %w", pod.Name, err)
		}
		if !owns(vmi, existing) {
			err = fmt.Errorf("a pod %q that is not this VMI's is in the way; delete it: %w", pod.Name, err)
		} else if rejected(existing) {
			noteRejection(status, existing, r.now())
			return nil, nil
		} else {
			observe(status, existing, r.now())
			return existing, nil
		}
	}
	if err != nil {
		setReady(status, metav1.ConditionFalse, v1.ReasonPodNotExists, "the launcher pod could not be created", r.now())
		r.unsynchronized(vmi, v1.ReasonFailedCreate, err.Error())
		return nil, fmt.Errorf("create launcher pod: %w", err)
	}
	r.Events.Eventf(vmi, pod, corev1.EventTypeNormal, "SuccessfulCreate", "Create", "Created virtual machine pod %s", pod.Name)
	status.RemoveCondition(v1.ConditionSynchronized)
	observe(status, pod, r.now())
	return pod, nil
}

// replaceAfter is how old a rejected pod must be at least before it is replaced: a
// node that rejects every pod must not be asked without pause, nor for ever as often.
const replaceAfter = 3 * time.Second

// replace deletes a rejected pod; once it is gone, create makes another. It
// returns how long to wait where it is too early for that.
func (r *Reconciler) replace(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (time.Duration, error) {
	noted := wasRejected(&vmi.Status)
	noteRejection(&vmi.Status, pod, r.now())
	if pod.DeletionTimestamp != nil || !noted {
		// Without the note, a pod that is gone would end the VMI; its being
		// written brings us back.
		return 0, nil
	}
	waited := r.Clock.Since(pod.CreationTimestamp.Time)
	// This clock may be minutes behind the API server's; what was made later than
	// that was made before the clock was set back.
	if wait := r.retryAfter(vmi, replaceAfter) - waited; wait > 0 && waited > -longestDelay {
		return min(wait, longestDelay), nil
	}
	if err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); err != nil {
		return 0, fmt.Errorf("delete rejected launcher pod: %w", err)
	}
	return 0, nil
}

// remove deletes the launcher pod: that is how the guest is asked to go down,
// and it works with virt-handler down. Once the pod has ended, its last word
// is taken.
func (r *Reconciler) remove(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error {
	if pod == nil {
		if !vmi.IsFinal() && vmi.Status.Phase != "" {
			finish(&vmi.Status, r.lastWord(vmi, end{v1.Succeeded, v1.ReasonPodDeleted, "the launcher pod is gone"}), r.now())
		}
		return nil
	}
	if !vmi.IsFinal() {
		observe(&vmi.Status, pod, r.now())
	}
	if pod.DeletionTimestamp != nil {
		return nil
	}
	if err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); err != nil {
		return fmt.Errorf("delete launcher pod: %w", err)
	}
	r.Events.Eventf(vmi, pod, corev1.EventTypeNormal, "SuccessfulDelete", "Delete", "Deleted virtual machine pod %s", pod.Name)
	return nil
}

// release lets a deleted VMI without pod go.
func (r *Reconciler) release(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	r.ends.forget(vmi.UID)
	freed := vmi.DeepCopy()
	if !controllerutil.RemoveFinalizer(freed, v1.VMIFinalizer) {
		return nil
	}
	patch := client.MergeFromWithOptions(vmi, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, freed, patch); err != nil {
		return fmt.Errorf("remove finalizer: %w", err)
	}
	return nil
}

func (r *Reconciler) writeStatus(ctx context.Context, before, vmi *v1.VirtualMachineInstance) error {
	if equality.Semantic.DeepEqual(before.Status, vmi.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, vmi, patch); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	r.writes.Note(before, vmi)
	return nil
}

// announce tells as events what the status newly says.
func (r *Reconciler) announce(before, vmi *v1.VirtualMachineInstance) {
	if s, old := vmi.Status.Condition(v1.ConditionSynchronized), before.Status.Condition(v1.ConditionSynchronized); s != nil && (old == nil || old.Reason != s.Reason) {
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, s.Reason, "Synchronize", "%s", s.Message)
	}
	if before.IsFinal() || !vmi.IsFinal() {
		return
	}
	ready := vmi.Status.Condition(v1.ConditionReady)
	switch {
	case vmi.Status.Reason == v1.ReasonInvalidSpec: // said above
	case vmi.Status.Phase == v1.Succeeded:
		r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "Stopped", "Stop", "The VirtualMachineInstance was shut down: %s", ready.Message)
	default:
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "Stopped", "Stop", "The VirtualMachineInstance failed (%s): %s", ready.Reason, ready.Message)
	}
}
