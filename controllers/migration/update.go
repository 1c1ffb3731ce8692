package migration

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// Updater makes the migrations by which guests get launchers of the present image, if the KubeVirt object's
// spec.workloadUpdateStrategy says so.
type Updater struct {
	Client client.Client
	// Live reads past the cache.
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.PassiveClock
	// LauncherImage is the image of new launcher pods.
	LauncherImage string
	// KubeVirt returns the spec of the KubeVirt object.
	KubeVirt func(context.Context) (*v1.KubeVirtSpec, error)
}

// Setup registers the reconciler with a manager, after Reconciler, whose index it uses.
func (u *Updater) Setup(mgr ctrl.Manager) error {
	runs := predicate.NewPredicateFuncs(func(o client.Object) bool { return u.mayBeOld(o.(*v1.VirtualMachineInstance)) })
	return ctrl.NewControllerManagedBy(mgr).Named("workload-update").
		For(&v1.VirtualMachineInstance{}, builder.WithPredicates(runs)).
		Watches(&v1.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(itsVMI)).
		Watches(&v1.KubeVirt{}, handler.EnqueueRequestsFromMapFunc(u.all), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(kit.Options(1)).
		Complete(u)
}

// all queues every VMI that may have an old launcher: the strategy has changed.
func (u *Updater) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var vmis v1.VirtualMachineInstanceList
	if err := u.Client.List(ctx, &vmis, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache's, which has not begun; each VMI comes by itself then
	}
	var out []reconcile.Request
	for i := range vmis.Items {
		if u.mayBeOld(&vmis.Items[i]) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&vmis.Items[i])})
		}
	}
	return out
}

// mayBeOld says whether a guest could move, and has a launcher that is not known to be of the present image. It is cheap.
func (u *Updater) mayBeOld(vmi *v1.VirtualMachineInstance) bool {
	if vmi.Status.Phase != v1.Running || vmi.DeletionTimestamp != nil || leaves(vmi) {
		return false
	}
	if reason, _ := vmi.NotMigratable(); reason != "" {
		return false
	}
	return launcherOf(vmi).Image != u.LauncherImage
}

// launcherOf is what the status says of the launcher pod that has the guest.
func launcherOf(vmi *v1.VirtualMachineInstance) v1.LauncherPod {
	for _, p := range vmi.Status.LauncherPods {
		if p.Name == vmi.LauncherPod() {
			return p
		}
	}
	return v1.LauncherPod{}
}

const (
	// updateDelay is the time between two looks at a guest that waits for others' updates.
	updateDelay = 30 * time.Second
	// aloneDelay is the time between two looks at a guest that has no other node.
	aloneDelay = 5 * time.Minute
)

// Reconcile makes the next migration of a guest whose launcher is of another image, when as many updates are under way as migrations may run
// at a time at most.
func (u *Updater) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	vmi := &v1.VirtualMachineInstance{}
	if err := u.Client.Get(ctx, request.NamespacedName, vmi); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !u.mayBeOld(vmi) || vmi.Migration() != nil {
		return ctrl.Result{}, nil
	}
	spec, err := u.KubeVirt(ctx)
	if err != nil || !spec.WorkloadUpdateStrategy.Moves() {
		return ctrl.Result{}, err
	}
	if old, err := u.isOld(ctx, vmi); err != nil || !old {
		return ctrl.Result{}, err
	}
	wait, failed, err := u.turn(ctx, vmi, spec.Configuration.Migrations().Parallel())
	if wait > 0 || failed == nil || err != nil {
		return ctrl.Result{RequeueAfter: wait}, err
	}
	m := migrationOf(vmi, "kubevirt-workload-update-", vmi.LauncherPod()+"/"+u.LauncherImage, *failed) // KubeVirt's prefix
	m.Annotations = map[string]string{v1.WorkloadUpdateMigrationAnnotation: vmi.LauncherPod()}
	m.Spec.Priority = ptr.To(v1.PrioritySystemMaintenance)
	behind, err := create(ctx, u.Client, u.Live, vmi, m)
	if err != nil {
		u.Events.Eventf(vmi, nil, corev1.EventTypeWarning, v1.ReasonFailedCreate, "UpdateWorkload", "cannot make a migration to a launcher of image %s: %s", u.LauncherImage, control.Short(err.Error()))
		return ctrl.Result{}, fmt.Errorf("create migration: %w", err)
	}
	if behind {
		return ctrl.Result{RequeueAfter: kit.WriteDelay}, nil
	}
	return ctrl.Result{}, nil
}

// isOld says whether the launcher is of another image. Of a pod of an earlier version the pod itself says so.
func (u *Updater) isOld(ctx context.Context, vmi *v1.VirtualMachineInstance) (bool, error) {
	if launcherOf(vmi).Image != "" {
		return true, nil
	}
	pod := &corev1.Pod{}
	err := u.Live.Get(ctx, client.ObjectKey{Namespace: vmi.Namespace, Name: vmi.LauncherPod()}, pod)
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Image == u.LauncherImage }), nil
}

// turn says how long a guest has to wait for its migration, and which of its migrations to a new launcher have failed. Without those the guest has
// a migration already.
func (u *Updater) turn(ctx context.Context, vmi *v1.VirtualMachineInstance, parallel int) (wait time.Duration, failed *[]*v1.VirtualMachineInstanceMigration, err error) {
	var all v1.VirtualMachineInstanceMigrationList
	if err := u.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return 0, nil, fmt.Errorf("list migrations: %w", err)
	}
	var own []v1.VirtualMachineInstanceMigration
	updates := 0
	for _, m := range all.Items {
		if m.Namespace == vmi.Namespace && m.Spec.VMIName == vmi.Name {
			own = append(own, m)
		}
		if !m.IsFinal() && m.Annotations[v1.WorkloadUpdateMigrationAnnotation] != "" {
			updates++
		}
	}
	if slices.ContainsFunc(own, func(m v1.VirtualMachineInstanceMigration) bool { return !m.IsFinal() }) {
		return 0, nil, nil // its end brings us back
	}
	list := failures(vmi, own, v1.WorkloadUpdateMigrationAnnotation, vmi.LauncherPod())
	if wait := backOff(list, u.Clock.Now()); wait > 0 {
		return wait, nil, nil
	}
	if updates >= parallel {
		return updateDelay, nil, nil
	}
	if alone, err := u.alone(ctx, vmi); alone || err != nil {
		return aloneDelay, nil, err
	}
	return 0, &list, nil
}

// alone says whether no other node has a virt-handler.
func (u *Updater) alone(ctx context.Context, vmi *v1.VirtualMachineInstance) (bool, error) {
	nodes := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if err := u.Client.List(ctx, nodes, client.MatchingLabels{v1.SchedulableLabel: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list nodes: %w", err)
	}
	return !slices.ContainsFunc(nodes.Items, func(n metav1.PartialObjectMetadata) bool { return n.Name != vmi.Status.NodeName }), nil
}
