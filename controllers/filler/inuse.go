package filler

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// useEvery is how long it is believed, while a copy runs, that nobody writes to its source.
	useEvery = 10 * time.Second
	// podsPage is how many pods of a namespace are read at once, and podPages how many times.
	podsPage = 100
	podPages = 100
)

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
	name, err := r.writer(ctx, o.at)
	if err != nil || name != "" {
		r.uses.forget(key)
		return name, err
	}
	r.uses.note(key, w.now)
	return "", nil
}

// writer returns the first pod that may write to a claim, or nothing.
func (r *Reconciler) writer(ctx context.Context, claim types.NamespacedName) (string, error) {
	var next string
	for range podPages {
		list := &corev1.PodList{}
		err := r.Live.List(ctx, list, client.InNamespace(claim.Namespace), client.Limit(podsPage), client.Continue(next))
		if err != nil {
			return "", fmt.Errorf("list pods of namespace %s: %w", claim.Namespace, err)
		}
		for i := range list.Items {
			if writes(&list.Items[i], claim.Name) {
				return list.Items[i].Name, nil
			}
		}
		if next = list.Continue; next == "" {
			return "", nil
		}
	}
	return "", fmt.Errorf("look who uses PersistentVolumeClaim %s: namespace %s has more than %d pods", claim.Name, claim.Namespace, podsPage*podPages)
}

// writes says whether a pod may write to a claim. A container that is added later may mount whatever
// volume the pod has, so that its containers' own mounts do not count.
func writes(pod *corev1.Pod, claim string) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if pvc := volume.PersistentVolumeClaim; pvc != nil && pvc.ClaimName == claim && !pvc.ReadOnly {
			return true
		}
		// Kubernetes gives the claim of an ephemeral volume this name.
		if volume.Ephemeral != nil && pod.Name+"-"+volume.Name == claim {
			return true
		}
	}
	return false
}
