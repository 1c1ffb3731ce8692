package vm

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/kubeqemu/kubeqemu/api/instancetype/choice"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
	"github.com/kubeqemu/kubeqemu/controllers/follow"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Reconciler starts and stops VMs by making and deleting their VMIs.
type Reconciler struct {
	Client client.Client
	// Live reads past the cache. It is read before a VMI is created or deleted, and before a
	// VM's finalizer is removed.
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.PassiveClock
	// Jitter returns a number from 0 to 1 by which a back-off is lengthened.
	Jitter func() float64
	// Cluster returns the cluster's configuration.
	Cluster func(context.Context) (*v1.KubeVirtConfiguration, error)
	// Follow are the keys of the template's metadata that a running VMI follows.
	Follow follow.Keys
	// Presets reads the presets of a namespace.
	Presets kit.Presets
}

func (r *Reconciler) cloner() *datavolume.Cloner {
	return &datavolume.Cloner{Live: r.Live, Client: r.Client}
}

// workers is how many VMs are reconciled at once.
const workers = 4

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1.VirtualMachine{}).
		// A VM's VMI has the VM's name. So does a foreign VMI that is in the VM's way.
		Watches(&v1.VirtualMachineInstance{}, &handler.EnqueueRequestForObject{}).
		// The roll-out strategy says which VMs need a restart.
		Watches(&v1.KubeVirt{}, handler.EnqueueRequestsFromMapFunc(r.all),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(kit.Options(workers)).
		Complete(kit.Patient(r, r.Clock))
}

// all returns a request for each VM that the cache has.
func (r *Reconciler) all(ctx context.Context, _ client.Object) []ctrl.Request {
	var vms v1.VirtualMachineList
	if err := r.Client.List(ctx, &vms, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list VirtualMachines")
		return nil
	}
	requests := make([]ctrl.Request, len(vms.Items))
	for i := range vms.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&vms.Items[i])
	}
	return requests
}

// Trim drops from a VM, before the VM is cached, the fields that this controller does not read.
func Trim(object any) (any, error) {
	if vm, ok := object.(*v1.VirtualMachine); ok {
		vm.ManagedFields = nil
		delete(vm.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	return object, nil
}

// Reconcile takes one VM a step further. It decides what to do, does it, and writes the status once if it
// changed.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	vm := &v1.VirtualMachine{}
	if err := r.Client.Get(ctx, request.NamespacedName, vm); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	vmi, err := r.instance(ctx, vm)
	if err != nil {
		return ctrl.Result{}, err
	}
	if vm.DeletionTimestamp == nil {
		if err := r.mark(ctx, vm, vmi); err != nil {
			return ctrl.Result{}, kit.IgnoreConflict(err)
		}
	}
	cluster, err := r.Cluster(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	p := decide(vm, vmi, r.Clock.Now(), r.Jitter())
	if p.action == enable {
		return ctrl.Result{}, kit.IgnoreConflict(r.enable(ctx, vm))
	}
	p.volumes = r.findVolumeUpdate(ctx, vm, vmi, cluster.Rollout(), p.action == wait)
	now, failed, stepErr := r.carryOut(ctx, vm, vmi, &p)
	if errors.Is(stepErr, errBehind) {
		return ctrl.Result{RequeueAfter: behindDelay}, nil
	}
	if errors.Is(stepErr, errUnread) {
		return ctrl.Result{}, stepErr
	}
	if p.moved, err = r.movedNow(ctx, vm, now, p.disks.lost); err != nil {
		return ctrl.Result{}, err
	}
	p.live = vm.Live(now, cluster)
	if err := r.writeStatus(ctx, vm,
		observe(vm, now, p, failed, metav1.NewTime(r.Clock.Now())), p.disks.lost...); err != nil {
		return ctrl.Result{}, kit.IgnoreConflict(err)
	}
	// A guest that runs follows its VM, whatever the VM names for the next start.
	sound := failed == nil || p.unchosen != nil
	if p.action == release && stepErr == nil {
		stepErr = r.release(ctx, vm)
	}
	if p.action == wait && stepErr == nil {
		stepErr = r.follow(ctx, vm, now)
	}
	if p.action == wait && stepErr == nil && sound {
		stepErr = r.takeOver(ctx, vm, now, p.live)
	}
	if stepErr == nil {
		stepErr = r.dropLeft(ctx, vm, now)
	}
	if stepErr == nil {
		stepErr = p.unchosen
	}
	after, stepErr := r.patient(vm, stepErr)
	if p.after == 0 {
		p.after = p.volumes.after
	}
	return ctrl.Result{RequeueAfter: max(after, p.after)}, kit.IgnoreConflict(stepErr)
}

var (
	// errBehind means that the cache was behind the API server when the plan was made.
	errBehind = errors.New("cache is behind")
	// errRefused means that the VM with its instancetype and preference is not valid.
	errRefused = errors.New("refused")
	// errTaken means that a VMI that is not the VM's has the VM's name.
	errTaken = errors.New("a VirtualMachineInstance of this name is there that this VirtualMachine does not control; delete it, or rename one of them")
)

// behindDelay is the wait after errBehind, unless the cache's event comes earlier.
const behindDelay = time.Second

// patient turns a refusal into a later attempt, because somebody has to change something first. The longer the
// VM has been failing, the longer the wait.
func (r *Reconciler) patient(vm *v1.VirtualMachine, err error) (time.Duration, error) {
	refusals := []error{errTaken, choice.ErrMissing, errDisks, errRefused, errOtherRevision, kit.ErrPresets}
	waits := slices.ContainsFunc(refusals, func(one error) bool { return errors.Is(err, one) })
	if err == nil || !waits && !kit.IsRefusal(err) {
		return 0, err
	}
	since := time.Duration(0)
	if c := vm.Status.Condition(v1.ConditionFailure); c != nil {
		since = r.Clock.Since(c.LastTransitionTime.Time)
	}
	return kit.Wait(since), nil
}

// instance returns the VM's VMI, or nil.
func (r *Reconciler) instance(ctx context.Context, vm *v1.VirtualMachine) (*v1.VirtualMachineInstance, error) {
	vmi, err := own(ctx, r.Client, vm)
	requests := vm.Status.StateChangeRequests
	if err == nil && vmi == nil && len(requests) > 0 && requests[0].Action == v1.StopRequest {
		// A Stop is done once its VMI is gone. virt-api read past the cache when it wrote the
		// Stop, so the cache may not have the VMI yet.
		return own(ctx, r.Live, vm)
	}
	return vmi, err
}

// own reads the VM's VMI, and returns nil if there is none. A VMI of the VM's name that the VM does not control
// is not the VM's own.
func own(ctx context.Context, from client.Reader, vm *v1.VirtualMachine) (*v1.VirtualMachineInstance, error) {
	vmi := &v1.VirtualMachineInstance{}
	err := from.Get(ctx, client.ObjectKeyFromObject(vm), vmi)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get VirtualMachineInstance: %w", err)
	case !controls(vm, vmi):
		return nil, nil
	}
	return vmi, nil
}

// mark writes the VM's finalizer. It also writes the annotation with the machine type of the VM's first run, if
// the template names none.
func (r *Reconciler) mark(ctx context.Context, vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) error {
	marked := vm.DeepCopy()
	changed := controllerutil.AddFinalizer(marked, v1.VMFinalizer)
	if machine := pinned(vm, vmi); machine != "" {
		metav1.SetMetaDataAnnotation(&marked.ObjectMeta, v1.MachineTypeAnnotation, machine)
		changed = true
	}
	if !changed {
		return nil
	}
	if err := r.Client.Patch(ctx, marked,
		client.MergeFromWithOptions(vm, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write finalizer and machine type: %w", err)
	}
	*vm = *marked
	return nil
}

// pinned returns the machine type that a VM is to keep from now on, or "" if there is none to note. A node
// reports the type of a running guest. An intruder on the node may report anything: see v1.KnownMachineType.
func pinned(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) string {
	if vmi == nil || vmi.Status.Machine == nil || vm.Annotations[v1.MachineTypeAnnotation] != "" || vm.NamesMachine() ||
		!vm.IsOfTemplate(vmi) {
		return ""
	}
	if machine := vmi.Status.Machine.Type; v1.KnownMachineType(machine, vmi.Spec.Architecture) {
		return machine
	}
	return ""
}

// carryOut carries out a plan. It returns the VM's VMI after that, or nil, and the failure of a step, or nil.
func (r *Reconciler) carryOut(ctx context.Context, vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance,
	p *plan) (*v1.VirtualMachineInstance, *failure, error) {
	switch p.action {
	case stop:
		err := r.stop(ctx, vm, vmi)
		if err != nil && !errors.Is(err, errBehind) {
			return vmi, &failure{v1.ReasonFailedDelete, err.Error()}, err
		}
		return vmi, nil, err
	case release:
		return vmi, nil, r.gone(ctx, vm)
	}
	if vm.DeletionTimestamp != nil {
		return vmi, nil, nil
	}
	if errs := validate(vm); len(errs) > 0 {
		return vmi, &failure{v1.ReasonInvalidSpec, errs.ToAggregate().Error()}, nil
	}
	if wantsDisks(vm, vmi, p) {
		if failed, err := r.fill(ctx, vm, vmi, p); failed != nil || err != nil {
			return vmi, failed, err
		}
	}
	if p.action == start && len(p.volumes.pending) > 0 {
		p.action = wait
	}
	if p.action != start && !wantsChoice(vm, vmi) {
		return vmi, nil, nil
	}
	var err error
	if p.chosen, err = r.choose(ctx, vm); errors.Is(err, errBehind) {
		return vmi, nil, err
	}
	if err != nil {
		failed := &failure{findReason(err, v1.ReasonFailedCreate), err.Error()}
		if p.action != start {
			p.unchosen, err = err, nil
		}
		return vmi, failed, err
	}
	if p.action != start || !remembered(p.chosen, &vm.Status) {
		// The choice is written into the status before the start: a later start must not
		// choose anew.
		return vmi, nil, nil
	}
	return r.begin(ctx, vm, p)
}

// release removes the finalizer of a deleted VM.
func (r *Reconciler) release(ctx context.Context, vm *v1.VirtualMachine) error {
	freed := vm.DeepCopy()
	if !controllerutil.RemoveFinalizer(freed, v1.VMFinalizer) {
		return nil
	}
	if err := r.Client.Patch(ctx, freed,
		client.MergeFromWithOptions(vm, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("remove finalizer: %w", err)
	}
	return nil
}

// enable sets the run strategy of a halted VM with a Start request to Always, as KubeVirt
// does. "virtctl start --paused" makes such a request.
func (r *Reconciler) enable(ctx context.Context, vm *v1.VirtualMachine) error {
	enabled := vm.DeepCopy()
	if enabled.Spec.RunStrategy != nil {
		enabled.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
	} else {
		enabled.Spec.Running = ptr.To(true)
	}
	if err := r.Client.Patch(ctx, enabled,
		client.MergeFromWithOptions(vm, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("set run strategy: %w", err)
	}
	return nil
}

func templateMetadata(vm *v1.VirtualMachine) follow.Metadata {
	return follow.Metadata{Labels: vm.Spec.Template.ObjectMeta.Labels,
		Annotations: vm.Spec.Template.ObjectMeta.Annotations}
}

// follow brings the chosen labels and annotations of a running VMI up to date with the template.
func (r *Reconciler) follow(ctx context.Context, vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) error {
	if vmi == nil || vmi.IsFinal() || vmi.DeletionTimestamp != nil || vm.DeletionTimestamp != nil {
		return nil
	}
	patch, err := r.Follow.Patch(templateMetadata(vm), vmi)
	if patch == nil || err != nil {
		return err
	}
	err = kit.SortedRefusal(r.Client.Patch(ctx, vmi.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))
	if err == nil {
		return nil
	}
	err = fmt.Errorf("write labels and annotations of VirtualMachineInstance %s: %w", vmi.Name, err)
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		r.Events.Eventf(vm, vmi, corev1.EventTypeWarning, v1.ReasonFailedUpdate, "Follow", "%s", err)
	}
	return err
}

// writeStatus writes the status if it has changed, and makes events of the change. lost are claims that are
// gone.
func (r *Reconciler) writeStatus(ctx context.Context, vm *v1.VirtualMachine, status v1.VirtualMachineStatus,
	lost ...string) error {
	if equality.Semantic.DeepEqual(vm.Status, status) {
		return nil
	}
	before := vm.DeepCopy()
	vm.Status = status
	if err := kit.PatchStatus(ctx, r.Client, before, vm); err != nil {
		return err
	}
	r.announce(before, vm, lost)
	return nil
}

// announce makes events of a new failure, of a guest that needs a restart, of disks that are made anew, and of disks
// that are to be copied or were not copied.
func (r *Reconciler) announce(before, vm *v1.VirtualMachine, lost []string) {
	for _, claim := range lost {
		if before.Status.Holds(claim) {
			r.Events.Eventf(vm, nil, corev1.EventTypeWarning, "ClaimLost", "Provision", "claim %s, to which a migration copied a disk, is gone: the VM starts with the disk of its template, which is made anew if it is gone, too", claim)
		}
	}
	for _, kind := range []v1.ConditionType{v1.ConditionManualRecoveryRequired, v1.ConditionVolumesChange} {
		if c, old := vm.Status.Condition(kind), before.Status.Condition(kind); c != nil &&
			(old == nil || old.Reason != c.Reason) {
			how := corev1.EventTypeWarning
			if c.Reason == v1.ReasonVolumesToCopy {
				how = corev1.EventTypeNormal
			}
			r.Events.Eventf(vm, nil, how, c.Reason, "UpdateVolumes", "%s", control.Short(c.Message))
		}
	}
	if c := vm.Status.Condition(v1.ConditionRestartRequired); c != nil &&
		before.Status.Condition(v1.ConditionRestartRequired) == nil {
		const longest = 1000 // of an event's note, in Kubernetes 1024
		r.Events.Eventf(vm, nil, corev1.EventTypeNormal, string(c.Type), "Update", "%s", control.Cut(c.Message, longest))
	}
	c, old := vm.Status.Condition(v1.ConditionFailure), before.Status.Condition(v1.ConditionFailure)
	// CDI's text about a failure may change at every attempt of CDI's.
	again := c != nil && old != nil && old.Reason == c.Reason &&
		(old.Message == c.Message || c.Reason == v1.ReasonDataVolumeFailed)
	if c != nil && !again {
		r.Events.Eventf(vm, nil, corev1.EventTypeWarning, c.Reason, "Reconcile", "%s", c.Message)
	}
}
