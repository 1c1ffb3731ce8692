package node

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/nodelabel"
	"github.com/kubeqemu/kubeqemu/internal/handlerlease"
)

const (
	// renewInterval is a fifth of the time after which virt-controller considers virt-handler
	// gone.
	renewInterval = nodelabel.Lifetime / 5
	// renewRetry is the wait after a renewal that failed.
	renewRetry = 5 * time.Second
)

// LeaseWriter renews a Lease while virt-handler lives, and notes in it what virt-handler knows
// of its node. virt-controller makes the node's labels of the Lease: virt-handler has no right
// to write Nodes.
type LeaseWriter struct {
	Client   client.Client
	Clock    clock.WithTicker
	Log      logr.Logger
	NodeName string
	Chooser  *accelerator.Chooser
	Sessions *sessions.Set
	// OwnCPUs, if set, says whether the kubelet gives containers CPUs of their own.
	OwnCPUs func(ctx context.Context) (bool, error)
	// Realtime, if set, says whether the kernel lets real-time threads run without end.
	Realtime func() (bool, error)
	// Passt, if set, says whether passt can run on the node.
	Passt func() (bool, error)
	// CPUs, if set, is what is known of the CPUs that the node can give guests, and a channel that is closed when that
	// changes.
	CPUs func() (text string, changed <-chan struct{}, err error)
	// Host, if set, returns the node's facts (handlerlease.HostKey), or nothing while there are none.
	Host func(ctx context.Context) (string, error)

	told map[string]string // the long annotations that the Lease has, by key
}

// Start implements manager.Runnable.
func (w *LeaseWriter) Start(ctx context.Context) error {
	for {
		choice, changed := w.Chooser.Choice()
		cpus, cpusChanged := w.cpus()
		wait := renewInterval
		long := map[string]string{nodelabel.CPUKey: cpus, handlerlease.HostKey: w.host(ctx)}
		if err := w.renew(ctx, choice, long); err != nil && ctx.Err() == nil {
			w.Log.Error(err, "renew Lease")
			wait = renewRetry
		}
		timer := w.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
		case <-cpusChanged:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// renew patches the Lease, or creates it: neither needs the right to read it. Long annotations, of some kilobytes, are
// in the patch only if they have changed. The Lease keeps those that are empty.
func (w *LeaseWriter) renew(ctx context.Context, choice accelerator.Choice, long map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, renewInterval/2)
	defer cancel()
	lease := w.lease(choice)
	w.noteCPUs(ctx, lease)
	empty := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: lease.Name, Namespace: lease.Namespace}}
	patch := lease.DeepCopy()
	for key, text := range long {
		if text == "" {
			continue
		}
		lease.Annotations[key] = text
		if text != w.told[key] {
			patch.Annotations[key] = text
		}
	}
	err := w.Client.Patch(ctx, patch, client.MergeFrom(empty))
	if apierrors.IsNotFound(err) {
		err = w.Client.Create(ctx, lease)
	}
	if err != nil {
		return fmt.Errorf("write Lease %s: %w", lease.Name, err)
	}
	w.told = long
	return nil
}

func (w *LeaseWriter) host(ctx context.Context) string {
	if w.Host == nil {
		return ""
	}
	// The Lease is renewed without the facts if they cannot be had in time.
	ctx, cancel := context.WithTimeout(ctx, renewInterval/4)
	defer cancel()
	text, err := w.Host(ctx)
	if err != nil {
		w.Log.V(1).Info("the Lease does not say what guests find on the node", "error", err.Error())
	}
	return text
}

func (w *LeaseWriter) cpus() (string, <-chan struct{}) {
	if w.CPUs == nil {
		return "", nil
	}
	text, changed, err := w.CPUs()
	if err != nil {
		w.Log.Error(err, "the Lease does not say which CPUs the node can give guests")
	}
	return text, changed
}

// noteCPUs writes nothing where the kubelet or the kernel does not answer: the Lease then keeps what it says.
func (w *LeaseWriter) noteCPUs(ctx context.Context, lease *coordinationv1.Lease) {
	if w.Realtime != nil {
		if yes, err := w.Realtime(); err != nil {
			w.Log.V(1).Info("the Lease does not say whether guests can have the real-time scheduler", "error", err.Error())
		} else {
			lease.Annotations[nodelabel.RealtimeKey] = strconv.FormatBool(yes)
		}
	}
	if w.Passt != nil {
		if yes, err := w.Passt(); err != nil {
			w.Log.V(1).Info("the Lease does not say whether passt can run on the node", "error", err.Error())
		} else {
			lease.Annotations[nodelabel.PasstKey] = strconv.FormatBool(yes)
		}
	}
	if w.OwnCPUs == nil {
		return
	}
	own, err := w.OwnCPUs(ctx)
	if err != nil {
		w.Log.V(1).Info("the Lease does not say whether pods can have CPUs of their own", "error", err.Error())
		return
	}
	lease.Annotations[nodelabel.CPUManagerKey] = strconv.FormatBool(own)
}

func (w *LeaseWriter) lease(choice accelerator.Choice) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: handlerlease.Name(w.NodeName), Namespace: v1.KubeVirtNamespace,
			Labels: map[string]string{nodelabel.LeaseLabel: nodelabel.LeaseLabelValue},
			Annotations: map[string]string{
				nodelabel.AcceleratorKey: choice.String(),
				nodelabel.ReasonKey:      strings.ToValidUTF8(choice.Reason, ""),
			},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &w.NodeName,
			LeaseDurationSeconds: ptr.To(int32(nodelabel.Lifetime / time.Second)),
			RenewTime:            ptr.To(metav1.NewMicroTime(w.Clock.Now())),
		},
	}
	if versions := w.Sessions.QEMUVersions(); len(versions) > 0 {
		lease.Annotations[nodelabel.QEMUVersionKey] = strings.Join(versions, ",")
	}
	return lease
}
