package filler

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/internal/importer"
)

const (
	// sourcePodPrefix begins the name of each source pod. The DataVolume's UID is the rest.
	sourcePodPrefix = importer.PodPrefix + "source-"
	// importerName is the value of v1.AppLabel of importer pods and source pods. The policy
	// kubevirt-importer-pods lets nobody but virt-controller give a pod this label, or take it away.
	importerName = "virt-importer"
	// forLabel of a source pod is the UID of the DataVolume that is filled from it.
	forLabel = "kubeqemu.io/source-for"
	// forAnnotation of a source pod is the DataVolume's namespace and name. No owner reference leads to
	// another namespace.
	forAnnotation = "kubeqemu.io/source-for"
	// sourceAnnotation of a source pod and of an importer pod is the UID of the claim that is copied.
	sourceAnnotation = "kubeqemu.io/source-uid"
	// sourcePodAnnotation of an importer pod is the UID of its source pod.
	sourcePodAnnotation = "kubeqemu.io/source-pod-uid"
)

type quantity = resource.Quantity

func bytesOf(n int64) quantity { return *resource.NewQuantity(n, resource.BinarySI) }

// sourcePodName is the name of a DataVolume's source pod. The DataVolume may be another namespace's: only
// a UID is nobody else's.
func sourcePodName(volume *cdi.DataVolume) string { return sourcePodPrefix + string(volume.UID) }

// isSourcePod says whether a pod of the cache is a source pod.
func isSourcePod(pod *corev1.Pod) bool {
	return pod.Labels[forLabel] != "" && strings.HasPrefix(pod.Name, sourcePodPrefix)
}

// volumeOf is the DataVolume that a source pod is for.
func volumeOf(pod *corev1.Pod) (types.NamespacedName, bool) {
	namespace, name, ok := strings.Cut(pod.Annotations[forAnnotation], "/")
	return types.NamespacedName{Namespace: namespace, Name: name}, ok && namespace != "" && name != "" && !strings.Contains(name, "/")
}

// sourcePodOf renders the pod that serves a claim to a DataVolume's importer pod. It runs on whatever
// node its claim permits, in the claim's namespace, and has nothing but the claim, which it cannot write to.
func sourcePodOf(volume *cdi.DataVolume, claim *corev1.PersistentVolumeClaim, config Config) (*corev1.Pod, error) {
	task, err := json.Marshal(importer.Task{Serve: &importer.Serve{Block: isBlock(claim)}})
	if err != nil {
		return nil, fmt.Errorf("encode the source pod's task: %w", err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: claim.Namespace, Name: sourcePodName(volume),
			Labels: podLabels(),
			Annotations: map[string]string{forAnnotation: client.ObjectKeyFromObject(volume).String(), sourceAnnotation: string(claim.UID),
				"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"},
		},
		Spec: podSpec(config.Image, string(task)),
	}
	pod.Labels[forLabel] = string(volume.UID)
	if volume.Namespace == claim.Namespace { // then it goes even if virt-controller is away
		reference := metav1.NewControllerRef(volume, cdi.DataVolumeGroupVersionKind)
		reference.Controller, reference.BlockOwnerDeletion = nil, nil
		pod.OwnerReferences = []metav1.OwnerReference{*reference}
	}
	c := &pod.Spec.Containers[0]
	c.Ports = []corev1.ContainerPort{{Name: "disk", ContainerPort: importer.PeerPort, Protocol: corev1.ProtocolTCP}}
	const name = "claim"
	pod.Spec.Volumes = []corev1.Volume{{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name, ReadOnly: true}}}}
	c.VolumeMounts = nil
	if isBlock(claim) {
		c.VolumeDevices = []corev1.VolumeDevice{{Name: name, DevicePath: importer.ClaimDevice}}
		pod.Spec.SecurityContext.SupplementalGroups = []int64{groupDisk}
	} else {
		c.VolumeMounts = []corev1.VolumeMount{{Name: name, MountPath: path.Dir(importer.ClaimFile), ReadOnly: true}}
	}
	return pod, nil
}

// bind keeps in an importer pod which claim it copies, and from which source pod.
func (o *origin) bind(importer *corev1.Pod, source *corev1.Pod) {
	importer.Annotations[sourceAnnotation] = string(o.claim.UID)
	importer.Annotations[sourcePodAnnotation] = string(source.UID)
}

// pod is the DataVolume's source pod of the claim that is copied, or nil.
func (o *origin) pod(volume *cdi.DataVolume) *corev1.Pod {
	for _, pod := range o.pods {
		if o.claim != nil && pod.Namespace == o.at.Namespace && pod.Name == sourcePodName(volume) &&
			pod.Labels[forLabel] == string(volume.UID) && pod.Annotations[sourceAnnotation] == string(o.claim.UID) {
			return pod
		}
	}
	return nil
}

// makeSource makes the source pod of a copy, once the importer pod would be let in and there is a place for the copy. Without an importer
// the source pod would only stand in a namespace that may be another one.
func (r *Reconciler) makeSource(ctx context.Context, w world, s *step) error {
	if ready, err := r.importerMayCome(ctx, w, s); err != nil || !ready {
		return err
	}
	pods := &corev1.PodList{}
	if err := r.Client.List(ctx, pods, client.HasLabels{forLabel}, client.UnsafeDisableDeepCopy); err != nil { // of the cache
		return fmt.Errorf("list source pods: %w", err)
	}
	if !r.places.take(w.volume, w.origin.at.Namespace, pods.Items, w.now) {
		s.after = s.pause(w, reasonCloneTurn)
		s.running(corev1.ConditionFalse, reasonCloneTurn, fmt.Sprintf("The copy waits for others from namespace %s to end: at most %d run for a namespace, and %d for all",
			w.origin.at.Namespace, placesFor, placesFrom))
		return nil
	}
	pod, err := sourcePodOf(w.volume, w.origin.claim, r.Config)
	if err != nil {
		return err
	}
	err = kit.CreatePod(ctx, r.Client, r.Live, pod, kit.Room{CPUs: 1})
	if err != nil {
		r.places.give(w.volume)
	}
	switch {
	case err == nil:
		s.running(corev1.ConditionFalse, reasonPending, "")
		return nil
	case apierrors.IsAlreadyExists(err):
		// The cache may only be behind.
		s.after = kit.WriteDelay
		return r.otherSource(ctx, w, s, client.ObjectKeyFromObject(pod))
	case kit.IsRefusal(err):
		s.events = nil
		s.stopped(w, reasonStartingPod, err.Error())
	}
	return fmt.Errorf("create pod %s: %w", pod.Name, err)
}

// importerMayCome reports whether the API server would let in the importer pod that a copy needs besides its source pod. It asks by a dry
// run. A webhook that knows no dry run makes a bad request of it, which says nothing about the importer pod.
func (r *Reconciler) importerMayCome(ctx context.Context, w world, s *step) (bool, error) {
	pod, err := r.importerOf(ctx, w, s, &corev1.Pod{})
	if err != nil {
		return false, err
	}
	err = kit.CreatePod(ctx, client.NewDryRunClient(r.Client), r.Live, pod, kit.Room{CPUs: 1})
	switch {
	case err == nil, apierrors.IsBadRequest(err):
		return true, nil
	case apierrors.IsAlreadyExists(err):
		s.after = kit.WriteDelay
		return false, r.otherPod(ctx, w, s, pod.Name)
	case kit.IsRefusal(err):
		s.events = nil
		s.stopped(w, reasonStartingPod, err.Error())
	}
	return false, fmt.Errorf("create pod %s: %w", pod.Name, err)
}

// otherSource says of a pod that is not the DataVolume's source pod that it is in the way.
func (r *Reconciler) otherSource(ctx context.Context, w world, s *step, key types.NamespacedName) error {
	pod := &corev1.Pod{}
	if err := r.Live.Get(ctx, key, pod); err != nil {
		return client.IgnoreNotFound(err)
	}
	if isSourcePod(pod) && reachesCache(pod) {
		return nil
	}
	s.after = recheck
	s.stopped(w, reasonStartingPod, fmt.Sprintf("a pod %s that is not this DataVolume's is in the way of its source pod: delete it", key))
	return nil
}

// dropSources deletes the source pods of a DataVolume that is gone. A source pod may be in another
// namespace, where no owner reference deletes it.
func (r *Reconciler) dropSources(ctx context.Context, volume types.NamespacedName) error {
	pods, err := r.sourcePods(ctx, volume)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if pod.DeletionTimestamp == nil {
			err = cmp.Or(err, deleteSource(ctx, r.Client, pod))
		}
	}
	return err
}

func deleteSource(ctx context.Context, c client.Writer, pod *corev1.Pod) error {
	if err := c.Delete(ctx, pod, client.Preconditions{UID: ptr.To(pod.UID)}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// sweep deletes all source pods, of all namespaces.
func sweep(ctx context.Context, live client.Reader, c client.Writer) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := live.List(ctx, list, client.MatchingLabelsSelector{Selector: cachedPods()}, client.HasLabels{forLabel}); err != nil {
		return fmt.Errorf("list source pods: %w", err)
	}
	for i := range list.Items {
		pod := &corev1.Pod{ObjectMeta: list.Items[i].ObjectMeta}
		if isSourcePod(pod) && pod.DeletionTimestamp == nil {
			if err := deleteSource(ctx, c, pod); err != nil {
				return err
			}
		}
	}
	return nil
}
