package accelerator

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/kubevirt"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Follower brings the cluster's configuration of emulation to the Chooser. Its client's cache
// holds the KubeVirt objects.
type Follower struct {
	Client   client.Client
	Events   events.EventRecorder
	Log      logr.Logger
	NodeName string
	Chooser  *Chooser
	// Changed is called after every change, so that VMIs that wait for an accelerator go on.
	Changed func(context.Context)

	mu        sync.Mutex
	announced Choice
}

// Setup registers the follower with a manager.
func (f *Follower) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("configuration").
		Watches(&v1.KubeVirt{}, &handler.EnqueueRequestForObject{}).
		WithOptions(kit.Options(1)).
		Complete(f)
}

// Reconcile calls Follow, whichever object changed.
func (f *Follower) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	return ctrl.Result{}, f.Follow(ctx)
}

// Follow reads the configuration, and reports a choice that is new.
func (f *Follower) Follow(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	config, err := kubevirt.Configuration(ctx, f.Client)
	if err != nil {
		return err
	}
	f.Chooser.PermitEmulation(config.EmulationPermitted())
	f.Chooser.LimitSlots(config.InstancesPerNode())
	choice, _ := f.Chooser.Choice()
	if choice == f.announced {
		return nil
	}
	f.announced = choice
	switch choice.Accelerator {
	case qemuargs.KVM:
		f.Log.Info("guests run under KVM", "reason", choice.Reason)
	case qemuargs.TCG:
		f.Log.Info("guests are emulated by TCG", "reason", choice.Reason)
	default:
		select {
		case <-f.Chooser.Judged():
		default:
			return nil // KVM is still being checked: too early for a warning
		}
		f.Log.Info("the node offers no slots", "reason", choice.Reason)
		f.Events.Eventf(f.node(), nil, corev1.EventTypeWarning, "NoAccelerator", "ChooseAccelerator", "%s", choice.Reason)
	}
	f.Changed(ctx)
	return nil
}

// node returns the object of events about the node. The UID is the node's name, as in the kubelet's own events:
// virt-handler does not know the real UID.
func (f *Follower) node() *corev1.Node {
	return &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: f.NodeName, UID: types.UID(f.NodeName)}}
}
