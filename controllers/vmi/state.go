package vmi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/stateclaim"
	"github.com/kubeqemu/kubeqemu/controllers/storageclass"
	"github.com/kubeqemu/kubeqemu/internal/owner"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// errNoState means that there is no claim for the guest's state, and that somebody has to change the cluster first.
var errNoState = errors.New("no claim for the guest's state")

// newStateClaim returns the claim for a VMI's state. It is pure.
func newStateClaim(vmi *v1.VirtualMachineInstance, class *storagev1.StorageClass) *corev1.PersistentVolumeClaim {
	of := stateclaim.Owner(vmi)
	const mode = corev1.PersistentVolumeFilesystem
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: v1.StateClaimName(vmi.Name, of.UID),
			Labels:          map[string]string{v1.StateClaimLabel: v1.LabelOfName(vmi.Name)},
			OwnerReferences: []metav1.OwnerReference{of}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class.Name, VolumeMode: ptr.To(mode),
			AccessModes: []corev1.PersistentVolumeAccessMode{storageclass.AccessMode(class, mode)},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(vmi.Spec.StateClaimBytes(), resource.BinarySI)}}},
	}
}

// makeState makes sure that a VMI whose state outlives it has a claim, and notes the claim in the status. A
// claim that waits for its first pod does not hold up the launcher pod, which is that pod.
func (r *Reconciler) makeState(ctx context.Context, t *turn) (time.Duration, error) {
	vmi := t.vmi
	if t.missing != "" || !vmi.Spec.StateClaim() {
		return 0, nil
	}
	var list corev1.PersistentVolumeClaimList
	of := []client.ListOption{client.InNamespace(vmi.Namespace),
		client.MatchingLabels{v1.StateClaimLabel: v1.LabelOfName(vmi.Name)}}
	err := r.Client.List(ctx, &list, of...)
	if err == nil && slices.ContainsFunc(list.Items, isCopy) { // which of the claims counts, the cache may not know yet
		err = r.Live.List(ctx, &list, of...)
	}
	if err != nil {
		return 0, fmt.Errorf("list the claims with the guest's state: %w", err)
	}
	claim := stateclaim.Find(vmi, list.Items)
	if claim == nil {
		claim, err = r.makeStateClaim(ctx, vmi, leftClaims(vmi, list.Items))
	}
	switch {
	case err == nil && claim.DeletionTimestamp != nil:
		err = fmt.Errorf("%w: the claim %s is being deleted", errNoState, claim.Name)
	case err == nil &&
		ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) != corev1.PersistentVolumeFilesystem:
		err = fmt.Errorf("%w: the claim %s is a block device, and must be a file system; delete the claim", errNoState,
			claim.Name)
	}
	if errors.Is(err, errNoState) || isRefusal(err) { // others are tried again soon
		r.complain(vmi, v1.ReasonStateClaim, err.Error())
		_, _ = r.noteMigratable(ctx, t) // the steps that are left are not taken
	}
	if err != nil {
		return 0, err
	}
	// Of a VMI that had a pod the condition says that the pod is being replaced, until there is another (wasRejected).
	if !reported(&vmi.Status) {
		vmi.Status.EndComplaint(v1.OwnerState)
	}
	setState(vmi, claim)
	return 0, nil
}

// isCopy reports whether a migration made a claim with state.
func isCopy(claim corev1.PersistentVolumeClaim) bool {
	return claim.Annotations[v1.CopyOfAnnotation] != ""
}

// leftClaims returns the names, in order, of the claims that may have the state of an earlier VM of the same
// name. Nothing controls such a claim, or a VM of that name with another UID does. It stays after
// --cascade=orphan, or comes from a backup. leftClaims is pure.
func leftClaims(vmi *v1.VirtualMachineInstance, claims []corev1.PersistentVolumeClaim) (names []string) {
	for i := range claims {
		claim := &claims[i]
		vm := owner.Reference(claim, v1.VirtualMachineGroupVersionKind.GroupKind())
		if free := metav1.GetControllerOfNoCopy(claim) == nil; claim.Labels[v1.StateClaimLabel] == v1.LabelOfName(vmi.Name) && claim.DeletionTimestamp == nil &&
			!stateclaim.IsOwned(vmi, claim) && (free || vm != nil && vm.Name == vmi.Name) {
			names = append(names, claim.Name)
		}
	}
	slices.Sort(names)
	return names
}

// announceLeft makes an event that a guest begins without the state that an earlier guest may have left. The
// user must hear of it before the guest has written much: with the old state the guest would have its keys.
func (r *Reconciler) announceLeft(vmi *v1.VirtualMachineInstance, made string, left []string) {
	if len(left) == 0 {
		return
	}
	of := stateclaim.Owner(vmi)
	r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, v1.ReasonStateLeft, "Create",
		"The guest begins with an empty state on the new claim %s, although the claim %s (%d in all) has the label %s of this VM: the VM does not control that claim. "+
			"To use its state, stop the VM, delete %s, and give %s an ownerReference to the %s %s, UID %s, with controller: true. Otherwise remove the label from it",
		made, left[0], len(left), v1.StateClaimLabel, made, left[0], of.Kind, of.Name, of.UID)
}

// makeStateClaim makes the claim, or returns the one that the cache does not have yet. left are the claims of
// leftClaims.
func (r *Reconciler) makeStateClaim(ctx context.Context, vmi *v1.VirtualMachineInstance,
	left []string) (*corev1.PersistentVolumeClaim, error) {
	class, err := r.stateClass(ctx)
	if err != nil {
		return nil, err
	}
	claim := newStateClaim(vmi, class)
	err = kit.SortedRefusal(r.Client.Create(ctx, claim))
	switch {
	case apierrors.IsAlreadyExists(err):
		there := &corev1.PersistentVolumeClaim{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(claim), there); apierrors.IsNotFound(err) {
			return nil, errSoon
		} else if err != nil {
			return nil, fmt.Errorf("get claim %s: %w", claim.Name, err)
		}
		if !stateclaim.IsOwned(vmi, there) {
			return nil, fmt.Errorf("%w: a claim %s that is not this VMI's is in the way; delete it", errNoState, claim.Name)
		}
		return there, nil
	case apierrors.IsConflict(err):
		return nil, fmt.Errorf("create claim %s: %w: %s", claim.Name, errSoon, err)
	case err != nil:
		return nil, fmt.Errorf("create claim %s for the guest's state: %w", claim.Name, err)
	}
	r.Events.Eventf(vmi, claim, corev1.EventTypeNormal, "SuccessfulCreate", "Create",
		"Created claim %s for the guest's state", claim.Name)
	r.announceLeft(vmi, claim.Name, left)
	return claim, nil
}

// stateClass returns the class of claims with state: the configured one, or else the default.
func (r *Reconciler) stateClass(ctx context.Context) (*storagev1.StorageClass, error) {
	cluster, err := r.cluster(ctx)
	if err != nil {
		return nil, err
	}
	if configured := cluster.VMStateStorageClass; configured != "" {
		class := &storagev1.StorageClass{}
		err := r.Live.Get(ctx, client.ObjectKey{Name: configured}, class)
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("%w: the StorageClass %s, which the KubeVirt names in configuration.vmStateStorageClass, does not exist", errNoState, configured)
		} else if err != nil {
			return nil, fmt.Errorf("get StorageClass %s: %w", configured, err)
		}
		return class, nil
	}
	var list storagev1.StorageClassList
	if err := r.Live.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list StorageClasses: %w", err)
	}
	class := storageclass.Default(list.Items, storageclass.DefaultVirtAnnotation, storageclass.DefaultAnnotation)
	if class == nil {
		return nil, fmt.Errorf("%w: no StorageClass is the cluster's default; name one in the KubeVirt's configuration.vmStateStorageClass", errNoState)
	}
	return class, nil
}

// stateEntry returns the status' entry of the claim with the state, in a slice of one, or nothing.
func stateEntry(vmi *v1.VirtualMachineInstance) []v1.VolumeStatus {
	info := vmi.StateClaimInfo()
	if info == nil {
		return nil
	}
	return []v1.VolumeStatus{{Name: info.ClaimName, PersistentVolumeClaimInfo: info}}
}

// setState writes into the status which claim has the state.
func setState(vmi *v1.VirtualMachineInstance, claim *corev1.PersistentVolumeClaim) {
	if old := vmi.StateClaimInfo(); old != nil {
		vmi.Status.VolumeStatus = slices.DeleteFunc(vmi.Status.VolumeStatus,
			func(s v1.VolumeStatus) bool { return s.PersistentVolumeClaimInfo == old })
	}
	vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus,
		v1.VolumeStatus{Name: claim.Name, PersistentVolumeClaimInfo: v1.InfoOfClaim(claim)})
}

// stateVolume is the name of the pod's volume with the guest's state.
const stateVolume = "state"

// observeState brings what the status says of the claim with the state up to date. The pod says which claim it
// is. The status may have been lost when the pod was made.
func (r *Reconciler) observeState(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error {
	name := mountedState(vmi, pod)
	if name == "" {
		return nil
	}
	claim := &corev1.PersistentVolumeClaim{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: vmi.Namespace, Name: name}, claim)
	if err == nil {
		setState(vmi, claim)
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("get PersistentVolumeClaim %s: %w", name, err)
	}
	return nil
}

// stateGone returns the name of the claim with the state that a launcher pod waits for in vain, or "" if there
// is none. The claim's finalizer kubernetes.io/pvc-protection keeps it only while a pod with a node uses it.
// The scheduler gives a pod without its claim no node.
func (r *Reconciler) stateGone(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (string, error) {
	name := mountedState(vmi, pod)
	if name == "" || pod.Spec.NodeName != "" || pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "" {
		return "", nil
	}
	for _, reader := range []client.Reader{r.Client, r.Live} { // the cache may be behind
		err := reader.Get(ctx, client.ObjectKey{Namespace: vmi.Namespace, Name: name}, &corev1.PersistentVolumeClaim{})
		if err == nil {
			return "", nil
		}
		if !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("get PersistentVolumeClaim %s: %w", name, err)
		}
	}
	return name, nil
}

// mountedState returns the name of the claim with the guest's state that a VMI's pod mounts, or "". The pod may be nil.
func mountedState(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) string {
	if pod == nil || !vmi.Spec.StateClaim() {
		return ""
	}
	for _, v := range onlyState(pod.Spec.Volumes) {
		return v.PersistentVolumeClaim.ClaimName
	}
	return ""
}

// onlyState returns, of a pod's volumes, the one with the guest's state.
func onlyState(volumes []corev1.Volume) []corev1.Volume {
	for _, v := range volumes {
		if v.Name == stateVolume && v.PersistentVolumeClaim != nil {
			return []corev1.Volume{v}
		}
	}
	return nil
}

// addState mounts the volume of the claim with the guest's state.
func addState(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) {
	info := vmi.StateClaimInfo()
	if info == nil {
		return
	}
	c := &pod.Spec.Containers[0]
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: stateVolume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: info.ClaimName}}})
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: stateVolume, MountPath: layout.StateDir})
}

// trimState keeps of a claim with state what this file reads.
func trimState(from, to *corev1.PersistentVolumeClaim) {
	value, ok := from.Labels[v1.StateClaimLabel]
	if !ok {
		return
	}
	to.Labels, to.DeletionTimestamp = map[string]string{v1.StateClaimLabel: value}, from.DeletionTimestamp
	if of, ok := from.Annotations[v1.CopyOfAnnotation]; ok {
		to.Annotations = map[string]string{v1.CopyOfAnnotation: of}
	}
	to.OwnerReferences = slices.Clone(from.OwnerReferences)
}
