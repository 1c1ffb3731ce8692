package filler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// useEvery is how long it is believed, while a copy runs, that nobody writes to its source.
	useEvery = 10 * time.Second
	// podsPage is how many pods of a namespace are read at once.
	podsPage = 500
	// livingPages bounds how often that is done for the pods that have not ended, and allPages for all: a cluster
	// keeps 12500 pods that have ended, unless it is told otherwise.
	livingPages = 20
	allPages    = 50
)

// errManyPods is the error of a namespace with more pods than are read.
var errManyPods = errors.New("too many pods to look at each")

// uses remembers when the sources of copies that run were last looked at.
type uses struct {
	mu     sync.Mutex
	looked map[types.NamespacedName]time.Time // by DataVolume
}

// due says whether a DataVolume's source is to be looked at again.
func (u *uses) due(volume types.NamespacedName, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	passed := now.Sub(u.looked[volume])
	return passed < 0 || passed >= useEvery // this clock may have been set back
}

func (u *uses) note(volume types.NamespacedName, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.looked == nil {
		u.looked = map[types.NamespacedName]time.Time{}
	}
	u.looked[volume] = now
}

func (u *uses) forget(volume types.NamespacedName) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.looked, volume)
}

// user returns a pod that may write to the source, or nothing. Only in the middle of a copy an earlier
// answer counts. It is asked anew before any pod is made, and before the copy is declared complete.
func (r *Reconciler) user(ctx context.Context, w world, o *origin) (string, error) {
	key := client.ObjectKeyFromObject(w.volume)
	middle := w.pod != nil && w.pod.Status.Phase == corev1.PodRunning && len(o.pods) > 0
	if middle && !r.uses.due(key, w.now) {
		return "", nil
	}
	name, err := r.writer(ctx, w, o)
	if err != nil || name != "" {
		r.uses.forget(key)
		return name, err
	}
	r.uses.note(key, w.now)
	return "", nil
}

// writer returns the first pod that may write to the source, or nothing. Once the importer pod has ended,
// only a listing that begins now counts. A device has no version, by which the source pod would know that it was
// written to, so that at the end of its copy the pods that have ended meanwhile count too.
func (r *Reconciler) writer(ctx context.Context, w world, o *origin) (string, error) {
	done := w.pod != nil && w.pod.Status.Phase == corev1.PodSucceeded
	if done && isBlock(o.claim) {
		return wrote(ctx, r.Live, o.at, w.pod.CreationTimestamp.Time)
	}
	return r.listings.writer(ctx, r.Live, o.at, w.now, done)
}

// wrote returns the first pod that may write to a claim, or may have written to it since a time.
func wrote(ctx context.Context, live client.Reader, claim types.NamespacedName, since time.Time) (name string, err error) {
	err = eachPod(ctx, live, claim.Namespace, allPages, func(pod *corev1.Pod) bool {
		if slices.Contains(writable(pod), claim.Name) && (!over(pod) || ranSince(pod, since)) {
			name = pod.Name
		}
		return name == ""
	})
	return name, err
}

// ranSince says whether a container of a pod that has ended ran at a time or later.
func ranSince(pod *corev1.Pod, since time.Time) bool {
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses) {
		if end := c.State.Terminated; end != nil && !end.FinishedAt.Time.Before(since) {
			return true
		}
	}
	return false
}

// eachPod calls visit with the pods of a namespace until it returns false.
func eachPod(ctx context.Context, live client.Reader, namespace string, pages int, visit func(*corev1.Pod) bool, options ...client.ListOption) error {
	var next string
	for range pages {
		list := &corev1.PodList{}
		all := append([]client.ListOption{client.InNamespace(namespace), client.Limit(podsPage), client.Continue(next)}, options...)
		if err := live.List(ctx, list, all...); err != nil {
			return fmt.Errorf("list pods of namespace %s: %w", namespace, err)
		}
		for i := range list.Items {
			if !visit(&list.Items[i]) {
				return nil
			}
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
	return fmt.Errorf("namespace %s has %w: %d or more", namespace, errManyPods, podsPage*pages)
}

// writable are the claims that a pod may write to. A container that is added later may mount whatever
// volume the pod has, so that its containers' own mounts do not count.
func writable(pod *corev1.Pod) (claims []string) {
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if pvc := volume.PersistentVolumeClaim; pvc != nil && !pvc.ReadOnly {
			claims = append(claims, pvc.ClaimName)
		}
		if volume.Ephemeral != nil { // Kubernetes gives the claim this name
			claims = append(claims, pod.Name+"-"+volume.Name)
		}
	}
	return claims
}
