package filler

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// DefaultPeriod is how often a Filler looks whether DataVolumes are its to fill.
const DefaultPeriod = 30 * time.Second

// lookTimeout bounds one look.
const lookTimeout = 20 * time.Second

// Filler runs the Reconciler while DataVolumes are its to fill: while their CustomResourceDefinition
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
	// Period is DefaultPeriod, or shorter in a test.
	Period time.Duration
	// Dial connects to importers.
	Dial Dial

	mgr ctrl.Manager
	log logr.Logger
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
		return nil
	}
	var running *session
	defer func() { running.Close() }()
	var known verdict
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
		if ended := running.ended(); ended || !known.open {
			running.Close()
			running = nil
		}
		if known.open && running == nil {
			if running, err = f.newSession(ctx); err != nil {
				f.log.Error(err, "cannot fill DataVolumes")
			}
		}
		if err == nil {
			f.tell(ctx, &known)
		}
		f.pause(ctx)
	}
	return nil
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
