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
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/kubeqemu/kubeqemu/api/migrations/v1alpha1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
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
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1.VirtualMachineInstance{}).
		Watches(&corev1.Pod{}, r.podEvents()).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.usersOfClaim)).
		// A VM's VMI has the VM's name.
		Watches(&v1.VirtualMachine{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(updatesVolumes())).
		WithOptions(kit.Options(8)).
		Complete(r)
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
		stepErr = errors.Join(ignoreConflict(r.remove(ctx, vmi, pod)), ignoreConflict(r.removeCompanions(ctx, companions)))
	case vmi.IsFinal():
		r.ends.forget(vmi.UID)
		return ctrl.Result{}, nil
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
		if _, stepErr = r.observeVolumes(ctx, vmi); stepErr == nil {
			stepErr = r.observeState(ctx, vmi, pod)
		}
		if stepErr == nil {
			after = r.observeMoves(ctx, vmi, vm)
		}
		observeFilesystems(&vmi.Status, pod, r.now())
		observeMigratable(vmi, r.now())
		observe(&vmi.Status, pod, r.now())
		observeMemory(vmi, pod)
		if stepErr == nil {
			stepErr = r.explainScheduling(ctx, vmi)
		}
		observeReadiness(vmi, pod, r.now())
		if stepErr == nil {
			var connecting time.Duration
			connecting, stepErr = r.observeSandbox(ctx, vmi, pod)
			after = sooner(after, connecting)
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
		return ctrl.Result{}, ignoreConflict(err)
	}
	r.announce(before, vmi)
	if pod != nil && stepErr == nil {
		var booting time.Duration
		booting, stepErr = r.openGate(ctx, vmi, pod)
		after = sooner(after, booting)
	}
	if pod != nil && stepErr == nil {
		stepErr = r.follow(ctx, vmi, pod)
	}
	if vmi.DeletionTimestamp != nil && pod == nil && stepErr == nil && !r.holdUp(vmi, companions) {
		after, stepErr = r.letGo(ctx, vmi)
	}
	if pod != nil && !watched || vmi.DeletionTimestamp != nil && len(companions) > 0 {
		after = sooner(after, unwatchedDelay)
	}
	return ctrl.Result{RequeueAfter: after}, ignoreConflict(stepErr)
}

// sooner is the shorter of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// earlyDelay is how long the scheduler has for a new pod before the VMI's status reports the
// pod. So one write reports the pod and its node, instead of two writes. A bound pod is
// reported at once.
const earlyDelay = time.Second

// early says whether a pod was just made, and the scheduler has not looked at the pod yet.
func (r *Reconciler) early(pod *corev1.Pod) bool {
	age := r.Clock.Since(pod.CreationTimestamp.Time) // in whole seconds, by the API server's clock
	return pod.Spec.NodeName == "" && len(pod.Status.Conditions) == 0 && age.Abs() < 2*earlyDelay
}

// reported says whether a VMI's status says that it has, or had, a pod.
func reported(status *v1.VirtualMachineInstanceStatus) bool {
	return status.Phase != "" && status.Phase != v1.Pending
}

// unwatchedDelay is the time between two looks at a VMI whose pod's end makes no event for the
// VMI.
const unwatchedDelay = 2 * time.Second

// errVanished means that the pod that held the launcher pod's name is gone. It was not the
// VMI's, so its end made no event for the VMI.
var errVanished = errors.New("the pod that was in the way is gone")

// errContended means that a quota could not count a pod, because others used the quota at the same
// time. The API server calls it a conflict, but no object has changed whose event would come. So the
// API server's error is quoted and not wrapped: see ignoreConflict.
var errContended = errors.New("the quota is in use")

// vanishedDelay is the wait after errVanished and errContended, until the pod is created again.
const vanishedDelay = time.Second

// patient turns a refusal of the API server (a quota, a policy, a missing priority class), or
// presets that cannot be read, into a later attempt. The VMI waits for somebody to change the cluster. An older VMI is tried
// less often, so that many such VMIs do not hold up others. An error that is no refusal stays
// an error, and is tried again soon.
func (r *Reconciler) patient(vmi *v1.VirtualMachineInstance, err error) (time.Duration, error) {
	const soonest = 5 * time.Second
	switch {
	case errors.Is(err, errFilling):
		waited := time.Duration(0)
		if c := vmi.Status.Condition(v1.ConditionProvisioning); c != nil {
			waited = r.Clock.Since(c.LastTransitionTime.Time)
		}
		return datavolume.Pause(waited), nil
	case errors.Is(err, errVanished), errors.Is(err, errContended):
		return vanishedDelay, nil
	case errors.Is(err, errNoState):
		return r.retryAfter(vmi, soonest), nil
	}
	if err == nil || !(isRefusal(err) || kit.PresetsUnread(err)) {
		return 0, err
	}
	return r.retryAfter(vmi, soonest), nil
}

// isRefusal says whether the API server will not do something until somebody changes the cluster.
func isRefusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err) || apierrors.IsBadRequest(err)
}

// longestDelay bounds the time between two attempts.
const longestDelay = 5 * time.Minute

// retryAfter is how long a VMI waits between two attempts: a quarter of its age, within
// bounds.
func (r *Reconciler) retryAfter(vmi *v1.VirtualMachineInstance, soonest time.Duration) time.Duration {
	return min(max(r.Clock.Since(vmi.CreationTimestamp.Time)/4, soonest), longestDelay)
}

// ignoreConflict drops the error of a write that came second: the first write makes an event.
func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}

func (r *Reconciler) now() metav1.Time { return metav1.NewTime(r.Clock.Now()) }

// admit ends an invalid VMI. Of a valid VMI it persists presets, defaults and the finalizer in a
// single write, before any other step. admitted says that there was nothing to persist any
// more.
func (r *Reconciler) admit(ctx context.Context, vmi *v1.VirtualMachineInstance) (admitted bool, err error) {
	cluster, err := r.cluster(ctx)
	if err != nil {
		return false, err
	}
	defaulted := vmi.DeepCopy()
	var overridden []string
	if vmi.Status.Phase == "" {
		// virt-api, or the controller that made the VMI, has applied the presets and added the
		// finalizer, unless the API server has not asked virt-api.
		if !controllerutil.ContainsFinalizer(vmi, v1.VMIFinalizer) {
			if overridden, err = r.Presets.Apply(ctx, defaulted); kit.PresetsUnread(err) {
				r.unsynchronized(vmi, v1.ReasonPresetFailed, err.Error())
				return false, err
			} else if errors.Is(err, kit.ErrPresets) {
				r.refuse(vmi, v1.ReasonPresetFailed, err.Error())
				return true, nil
			} else if err != nil {
				return false, err
			}
		}
		v1.ApplyClusterDefaults(defaulted, cluster)
	}
	v1.Default(defaulted)
	errs := v1.Validate(defaulted)
	if vmi.Status.Phase == "" {
		errs = append(errs, v1.ValidateForCluster(defaulted, cluster)...)
	}
	if len(errs) > 0 {
		r.refuse(vmi, v1.ReasonInvalidSpec, errs.ToAggregate().Error())
		return true, nil
	}
	// Once the VMI has a phase, its spec cannot change any more.
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
		kit.AnnounceOverridden(r.Events, vmi, nil, overridden)
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

// refuse ends a VMI that must not start.
func (r *Reconciler) refuse(vmi *v1.VirtualMachineInstance, reason, message string) {
	r.unsynchronized(vmi, reason, message)
	finish(&vmi.Status, end{v1.Failed, reason, message}, r.now())
}

func (r *Reconciler) unsynchronized(vmi *v1.VirtualMachineInstance, reason, message string) {
	vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSynchronized, Status: metav1.ConditionFalse,
		Reason: reason, Message: message}, r.now())
}

// create makes the launcher pod of a VMI that has none, and returns the pod. A VMI that had a
// pod, and lost it other than by a rejection, ends.
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
	missing, err := r.observeVolumes(ctx, vmi)
	if err != nil {
		return nil, err
	}
	if missing == "" {
		if err := r.keepState(ctx, vmi, cluster); err != nil {
			return nil, err
		}
	}
	hinted, err := r.hint(ctx, vmi)
	if err != nil {
		return nil, err
	}
	observeMigratable(vmi, r.now())
	if missing != "" {
		setReady(status, metav1.ConditionFalse, v1.ReasonPodNotExists, "the launcher pod is not created yet", r.now())
		r.unsynchronized(vmi, v1.ReasonPvcNotFound, fmt.Sprintf("PVC %s/%s does not exist, waiting for it to appear", vmi.Namespace, missing))
		return nil, nil
	}
	if filled, err := r.filled(ctx, vmi); err != nil {
		return nil, err
	} else if !filled {
		return nil, errFilling
	}
	if hinted {
		// The status must have the hint before a pod selects nodes by it: the hint cannot be found again. The event of the status
		// write brings us back.
		return nil, nil
	}
	defaulted := vmi.DeepCopy()
	v1.Default(defaulted)
	// Checked again: a host disk may have been permitted when the VMI came, and not be so any
	// more.
	if errs := append(v1.ValidateHostDisks(vmi, cluster), v1.ValidateFilesystemClaims(defaulted)...); len(errs) > 0 {
		r.refuse(vmi, v1.ReasonInvalidSpec, errs.ToAggregate().Error())
		return nil, nil
	}
	config, err := r.podConfig(ctx)
	if err != nil {
		return nil, err
	}
	pod := Pod(defaulted, config)
	r.Follow.Note(metadataOf(vmi), pod)
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
			rejection(existing).note(status, r.now())
			return nil, nil
		} else {
			observe(status, existing, r.now())
			return existing, nil
		}
	}
	if apierrors.IsConflict(err) {
		return nil, fmt.Errorf("create launcher pod: %w: %s", errContended, err)
	}
	if err != nil {
		setReady(status, metav1.ConditionFalse, v1.ReasonPodNotExists, "the launcher pod could not be created", r.now())
		r.unsynchronized(vmi, v1.ReasonFailedCreate, err.Error())
		return nil, fmt.Errorf("create launcher pod: %w", err)
	}
	r.Events.Eventf(vmi, pod, corev1.EventTypeNormal, "SuccessfulCreate", "Create", "Created virtual machine pod %s", pod.Name)
	status.RemoveCondition(v1.ConditionSynchronized)
	status.RemoveCondition(v1.ConditionReady) // of a pod before
	observe(status, pod, r.now())
	return pod, nil
}

// podConfig is what the VMI's pods are rendered with.
func (r *Reconciler) podConfig(ctx context.Context) (PodConfig, error) {
	cluster, err := r.cluster(ctx)
	if err != nil {
		return PodConfig{}, err
	}
	config := r.Config
	config.Cluster = cluster
	config.Emulation = config.Emulation || cluster.EmulationPermitted()
	config.Unlabelled, err = r.unlabelled(ctx)
	return config, err
}

// replaceAfter is the least age at which a rejected pod is replaced. A node may reject every
// pod: the wait keeps the attempts apart, and grows with the VMI's age (retryAfter).
const replaceAfter = 3 * time.Second

// replace deletes a pod in which no guest can start; once the pod is gone, create makes another. It returns how
// long to wait if it is too early to delete the pod.
func (r *Reconciler) replace(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod, why replacement) (time.Duration, error) {
	noted := wasRejected(&vmi.Status)
	why.note(&vmi.Status, r.now())
	if pod.DeletionTimestamp != nil || !noted {
		// The status must say first that the pod is replaced: without that, a pod that is
		// gone would end the VMI. The event of the status write brings us back.
		return 0, nil
	}
	waited := r.Clock.Since(pod.CreationTimestamp.Time)
	// This clock may be minutes behind the API server's. A pod from further in the future was
	// made before this clock was set back, and need not wait.
	if wait := r.retryAfter(vmi, replaceAfter) - waited; wait > 0 && waited > -longestDelay {
		return min(wait, longestDelay), nil
	}
	if err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); err != nil {
		return 0, fmt.Errorf("delete launcher pod that cannot start: %w", err)
	}
	return 0, nil
}

// remove deletes the launcher pod. The deletion asks the guest to shut down, and works also
// while virt-handler is down. When the pod has ended, its status says how the VM ended.
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

// release removes the finalizer of a deleted VMI whose pod is gone.
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

// announce makes events of what is new in the status.
func (r *Reconciler) announce(before, vmi *v1.VirtualMachineInstance) {
	if s, old := vmi.Status.Condition(v1.ConditionSynchronized), before.Status.Condition(v1.ConditionSynchronized); s != nil && (old == nil || old.Reason != s.Reason) {
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, s.Reason, "Synchronize", "%s", s.Message)
	}
	if c := vmi.Status.Condition(v1.ConditionEvictionRequested); c != nil && before.Status.Condition(v1.ConditionEvictionRequested) == nil {
		r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, c.Reason, "Evict", "%s", c.Message)
	}
	if c := vmi.Status.Condition(v1.ConditionFilesystemFailed); c != nil && before.Status.Condition(v1.ConditionFilesystemFailed) == nil {
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, string(c.Type), "Watch", "%s", c.Message)
	}
	if before.IsFinal() || !vmi.IsFinal() {
		return
	}
	ready := vmi.Status.Condition(v1.ConditionReady)
	switch {
	case vmi.Status.Reason == v1.ReasonInvalidSpec, vmi.Status.Reason == v1.ReasonPresetFailed: // announced above
	case vmi.Status.Phase == v1.Succeeded:
		r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "Stopped", "Stop", "The VirtualMachineInstance was shut down: %s", ready.Message)
	default:
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "Stopped", "Stop", "The VirtualMachineInstance failed (%s): %s", ready.Reason, ready.Message)
	}
}
