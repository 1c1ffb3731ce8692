package filler

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// listingFor is how long a listing of a namespace's pods counts. Whoever makes DataVolumes and pods says how many
// there are of both: all DataVolumes that copy from a namespace share its listing.
const listingFor = 5 * time.Second

// living leaves out pods that have ended. Nobody changes it.
var living = client.MatchingFieldsSelector{Selector: fields.ParseSelectorOrDie("status.phase!=Succeeded,status.phase!=Failed")}

// listings are the last listings of the pods of namespaces. Those that count no more are forgotten.
type listings struct {
	mu sync.Mutex
	of map[string]*listing // by namespace
}

// listing is what the pods of one namespace may write to.
type listing struct {
	// users is how many hold the listing. listings.mu guards it.
	users int
	// mu is held while the pods are listed, and guards what follows.
	mu    sync.Mutex
	began time.Time
	// writers are the first pods that may write to each claim, or nil if nothing is known.
	writers map[string]string
	// many is errManyPods, if not all pods were read.
	many error
}

// writer returns the first pod that may write to a claim, or nothing. If anew is set, no earlier listing counts.
func (l *listings) writer(ctx context.Context, live client.Reader, claim types.NamespacedName, now time.Time, anew bool) (string, error) {
	of := l.hold(claim.Namespace, now)
	defer l.drop(of)
	of.mu.Lock()
	defer of.mu.Unlock()
	if anew || !of.counts(now) {
		if err := of.list(ctx, live, claim.Namespace, now); err != nil {
			return "", err
		}
	}
	if name := of.writers[claim.Name]; name != "" {
		return name, nil
	}
	return "", of.many
}

// hold returns the listing of a namespace, and forgets those that count no more.
func (l *listings) hold(namespace string, now time.Time) *listing {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, other := range l.of {
		if other.users == 0 && !other.counts(now) {
			delete(l.of, name)
		}
	}
	of := l.of[namespace]
	if of == nil {
		of = &listing{}
		if l.of == nil {
			l.of = map[string]*listing{}
		}
		l.of[namespace] = of
	}
	of.users++
	return of
}

func (l *listings) drop(of *listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.users--
}

// counts says whether the listing still counts. Who waited for it has an earlier time, and the clock may have been set
// back since.
func (of *listing) counts(now time.Time) bool {
	passed := now.Sub(of.began)
	return of.writers != nil && passed > -listingFor && passed < listingFor
}

// list lists the pods.
func (of *listing) list(ctx context.Context, live client.Reader, namespace string, now time.Time) error {
	of.writers, of.many = nil, nil
	writers := map[string]string{}
	err := eachPod(ctx, live, namespace, livingPages, func(pod *corev1.Pod) bool {
		if over(pod) {
			return true
		}
		for _, claim := range writable(pod) {
			if writers[claim] == "" {
				writers[claim] = pod.Name
			}
		}
		return true
	}, living)
	if err != nil && !errors.Is(err, errManyPods) {
		return err
	}
	of.began, of.writers, of.many = now, writers, err
	return nil
}
