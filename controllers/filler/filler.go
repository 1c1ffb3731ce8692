package filler

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/images"
)

// DefaultPeriod is how often a Filler looks whether it fills DataVolumes.
const DefaultPeriod = 30 * time.Second

// lookTimeout bounds one look.
const lookTimeout = 20 * time.Second

// Filler runs the Reconciler while it, and not CDI, fills DataVolumes: while their CustomResourceDefinition
// is Kubeqemu's, and no CDI is installed. At any other time it touches no DataVolume, and watches
// nothing. The KubeVirt object's condition DataVolumesFilled says which holds.
type Filler struct {
	// Enabled: virt-controller was told to fill DataVolumes. Otherwise only the condition is removed.
	Enabled bool
	// Client's cache holds all KubeVirts.
	Client client.Client
	// Live reads past the cache.
	Live   client.Reader
	Clock  clock.Clock
	Events events.EventRecorder
	Config Config
	// Images returns how images come to new pods. A nil function means images.Volumes.
	Images func(context.Context) (images.Way, error)
	// Period is DefaultPeriod, or shorter in a test.
	Period time.Duration
	// Dial connects to importers.
	Dial Dial

	mgr ctrl.Manager
	log logr.Logger
	// running is the session, or nil.
	running atomic.Pointer[session]
}

// Setup registers the Filler with a manager.
func (f *Filler) Setup(mgr ctrl.Manager) error {
	f.mgr, f.log = mgr, mgr.GetLogger().WithName("data-volumes")
	return mgr.Add(f)
}

// Start works until its context ends.
func (f *Filler) Start(ctx context.Context) error {
	if !f.Enabled {
		f.tell(ctx, nil)
		f.sweep(ctx)
		return nil
	}
	defer func() { f.running.Swap(nil).Close() }()
	var known verdict
	var swept bool
	for ctx.Err() == nil {
		now, err := f.look(ctx)
		if err != nil { // as before, until it is known
			f.log.Error(err, "cannot look whether CDI is installed")
			now = known
		}
		if now != known && err == nil {
			f.log.Info("who fills DataVolumes", "virt-controller", now.open, "why", now.message)
		}
		known = now
		if known.reason == v1.ReasonCDIInstalled {
			f.handOver(ctx)
		}
		if f.running.Load().ended() || !known.open {
			f.running.Swap(nil).Close()
		}
		swept = !known.open && (swept || err == nil && f.sweep(ctx))
		if known.open && f.running.Load() == nil {
			begun, err := f.newSession(ctx)
			if err != nil {
				f.log.Error(err, "cannot fill DataVolumes")
			}
			f.running.Store(begun)
		}
		if err == nil {
			f.tell(ctx, &known)
		}
		f.pause(ctx)
	}
	return nil
}

// List returns the cache's own DataVolumes, which the caller must not change. There are none while DataVolumes are
// not the Filler's to fill.
func (f *Filler) List(ctx context.Context) ([]cdi.DataVolume, error) {
	s := f.running.Load()
	if s == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second) // the cache may not be filled yet
	defer cancel()
	var list cdi.DataVolumeList
	if err := s.objects.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil && ctx.Err() == nil {
		return nil, err
	}
	return list.Items, nil
}

// sweep deletes the source pods of all copies, once no copy is the Filler's to make any more: nobody else
// deletes those that are in other namespaces than their DataVolumes.
func (f *Filler) sweep(ctx context.Context) (done bool) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if err := sweep(ctx, f.Live, f.Client); err != nil {
		f.log.Error(err, "cannot delete the source pods of copies")
		return false
	}
	return true
}

func (f *Filler) look(ctx context.Context) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return look(ctx, f.Live)
}

// ours says whether DataVolumes are the Filler's to fill now.
func (f *Filler) ours(ctx context.Context) (bool, error) {
	now, err := f.look(ctx)
	return now.open, err
}

func (f *Filler) pause(ctx context.Context) {
	period := f.Period
	if period <= 0 {
		period = DefaultPeriod
	}
	timer := f.Clock.NewTimer(period)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

// tell writes the condition. It is tried again with the next look.
func (f *Filler) tell(ctx context.Context, known *verdict) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var list v1.KubeVirtList
	err := f.Client.List(ctx, &list)
	if kv := v1.KubeVirtInForce(list.Items); err == nil && kv != nil {
		err = report(ctx, f.Client, kv, known, f.Clock.Now())
	}
	if err != nil {
		f.log.Error(err, "cannot say in the KubeVirt object who fills DataVolumes")
	}
}
