package filler

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

const (
	// workers is how many DataVolumes are reconciled at once. The workers are this controller's own: no
	// VM waits for them.
	workers = 4
	// syncTimeout bounds the first reading of all DataVolumes, claims and importer pods.
	syncTimeout = time.Minute
	// wakeups is how many DataVolumes may wait for the reconciler because of their progress. More than
	// these are looked at when their progress changes again.
	wakeups = 256
)

// session is a cache and a controller of DataVolumes, which can end before the process: an informer
// of the manager's cache would stay when the kind goes.
type session struct {
	cancel  context.CancelFunc
	watcher *Watcher
	objects client.Reader
	done    chan struct{}
}

// ended says whether the session ended by itself.
func (s *session) ended() bool {
	if s == nil {
		return false
	}
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// Close ends the session, and waits for its end. Closing nil does nothing.
func (s *session) Close() {
	if s == nil {
		return
	}
	s.cancel()
	<-s.done
	s.watcher.Close()
}

// newSession begins to reconcile.
func (f *Filler) newSession(parent context.Context) (*session, error) {
	objects, err := cache.New(f.mgr.GetConfig(), cacheOptions(f))
	if err != nil {
		return nil, fmt.Errorf("make a cache: %w", err)
	}
	claims, err := cache.New(f.mgr.GetConfig(), cache.Options{HTTPClient: f.mgr.GetHTTPClient(), Scheme: f.mgr.GetScheme(), Mapper: f.mgr.GetRESTMapper(),
		DefaultTransform: trimClaim})
	if err != nil {
		return nil, fmt.Errorf("make a cache of claims: %w", err)
	}
	cached, err := client.New(f.mgr.GetConfig(), client.Options{HTTPClient: f.mgr.GetHTTPClient(), Scheme: f.mgr.GetScheme(), Mapper: f.mgr.GetRESTMapper(),
		Cache: &client.CacheOptions{Reader: objects}})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	wake := make(chan event.GenericEvent, wakeups)
	watcher := NewWatcher(f.Dial, f.Clock, func(volume types.NamespacedName) {
		select {
		case wake <- event.GenericEvent{Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: volume.Namespace, Name: volume.Name}}}:
		default:
		}
	})
	r := &Reconciler{Client: cached, Claims: claims, Live: f.Live, Clock: f.Clock, Events: f.Events, Config: f.Config,
		Images: f.Images, Progresses: watcher, Ours: f.ours}
	c, err := f.newController(r, objects, claims, wake)
	if err != nil {
		watcher.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(parent)
	s := &session{cancel: cancel, watcher: watcher, objects: objects, done: make(chan struct{})}
	go f.run(ctx, s, []cache.Cache{objects, claims}, c)
	return s, nil
}

// run runs a session's caches and controller until the controller ends, and then ends the caches.
func (f *Filler) run(ctx context.Context, s *session, caches []cache.Cache, c controller.Controller) {
	defer close(s.done)
	var caching sync.WaitGroup
	for _, objects := range caches {
		caching.Go(func() {
			if err := objects.Start(ctx); err != nil {
				f.log.Error(err, "a cache of DataVolumes or claims ended")
			}
		})
	}
	if err := c.Start(ctx); err != nil {
		f.log.Error(err, "the controller of DataVolumes ended")
	}
	s.cancel()
	caching.Wait()
}

// newController makes the controller, with all that brings a DataVolume back.
func (f *Filler) newController(r *Reconciler, objects, claims cache.Cache, wake <-chan event.GenericEvent) (controller.Controller, error) {
	options := kit.Options(workers)
	options.Reconciler = kit.Patient(r, r.Clock)
	options.SkipNameValidation = ptr.To(true) // the next session has the same name
	options.CacheSyncTimeout = syncTimeout
	options.Logger = f.log
	c, err := controller.NewUnmanaged("data-volumes", options)
	if err != nil {
		return nil, fmt.Errorf("make a controller: %w", err)
	}
	owned := handler.EnqueueRequestsFromMapFunc(byOwner)
	pods := wakesNext{handler.EnqueueRequestsFromMapFunc(byPod), &r.places}
	for _, s := range []source.Source{
		source.Kind[client.Object](objects, &cdi.DataVolume{}, &handler.EnqueueRequestForObject{}),
		source.Kind[client.Object](objects, &corev1.PersistentVolumeClaim{}, owned),
		source.Kind[client.Object](objects, &corev1.Pod{}, pods),
		source.Kind[client.Object](claims, claimKind(), &handler.EnqueueRequestForObject{}, forUploads()),
		source.Channel(wake, &handler.EnqueueRequestForObject{}),
	} {
		if err := c.Watch(s); err != nil {
			return nil, fmt.Errorf("watch DataVolumes: %w", err)
		}
	}
	return c, nil
}

// forUploads lets through what happens to claims that are made for an upload, or were until now.
func forUploads() predicate.Predicate {
	p := predicate.NewPredicateFuncs(func(claim client.Object) bool { return made(claim) })
	p.UpdateFunc = func(e event.UpdateEvent) bool { return made(e.ObjectOld) || made(e.ObjectNew) }
	return p
}

// byOwner is the DataVolume that controls an object.
func byOwner(_ context.Context, object client.Object) []reconcile.Request {
	reference := owner.Reference(object, cdi.DataVolumeGroupVersionKind.GroupKind())
	if reference == nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: reference.Name}}}
}

// byPod is the DataVolume of an importer pod or a source pod.
func byPod(ctx context.Context, object client.Object) []reconcile.Request {
	if pod, ok := object.(*corev1.Pod); ok && isSourcePod(pod) {
		if volume, ok := volumeOf(pod); ok {
			return []reconcile.Request{{NamespacedName: volume}}
		}
	}
	return byOwner(ctx, object)
}

// wakesNext brings back the DataVolume of a pod and, when a source pod is gone, those that wait for its place: by
// themselves they ask again after longestPause.
type wakesNext struct {
	handler.EventHandler
	places *places
}

func (h wakesNext) Delete(ctx context.Context, e event.DeleteEvent, queue requests) {
	h.EventHandler.Delete(ctx, e, queue)
	if pod, ok := e.Object.(*corev1.Pod); ok && isSourcePod(pod) {
		for _, volume := range h.places.next(pod.Namespace) {
			queue.Add(reconcile.Request{NamespacedName: volume})
		}
	}
}

// requests is a controller's queue.
type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

// cacheOptions keep few objects in the cache, with few fields.
func cacheOptions(f *Filler) cache.Options {
	ours := labels.SelectorFromSet(labels.Set{cdi.ManagedByLabel: cdi.ManagedByKubeqemu})
	return cache.Options{
		HTTPClient: f.mgr.GetHTTPClient(), Scheme: f.mgr.GetScheme(), Mapper: f.mgr.GetRESTMapper(),
		DefaultTransform: trim,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.PersistentVolumeClaim{}: {Label: ours},
			&corev1.Pod{}:                   {Label: cachedPods()},
		},
	}
}

// cachedPods selects the pods that the cache holds: importer pods and source pods.
func cachedPods() labels.Selector {
	return labels.SelectorFromSet(labels.Set{v1.AppLabel: importerName})
}

// reachesCache says whether the cache holds a live pod, or soon will.
func reachesCache(pod metav1.Object) bool {
	return cachedPods().Matches(labels.Set(pod.GetLabels()))
}

// trim drops what the reconciler does not read. The spec of a DataVolume stays: its pod is made of it.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		of := o.Labels[forLabel]
		if o.ManagedFields, o.Labels = nil, nil; of != "" {
			o.Labels = map[string]string{forLabel: of}
		}
		o.Spec = corev1.PodSpec{}
	case *corev1.PersistentVolumeClaim:
		o.ManagedFields = nil
	case *cdi.DataVolume:
		o.ManagedFields = nil
	}
	return object, nil
}
