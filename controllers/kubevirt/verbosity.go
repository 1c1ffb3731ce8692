package kubevirt

import (
	"context"

	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// Verbosity has a component log as much as the KubeVirt in force says. Its client's cache holds
// all KubeVirts.
type Verbosity struct {
	Client client.Client
	// Component is v1.VirtController or v1.VirtHandler, and Node the node that it runs on.
	Component, Node string
	// Set is called with the verbosity after every change of a KubeVirt.
	Set func(int)
}

// Setup registers the reconciler with a manager. It also works where another virt-controller is
// elected.
func (v *Verbosity) Setup(mgr ctrl.Manager) error {
	options := kit.Options(1)
	options.NeedLeaderElection = ptr.To(false)
	return ctrl.NewControllerManagedBy(mgr).
		Named("log-verbosity").
		Watches(&v1.KubeVirt{}, &handler.EnqueueRequestForObject{}).
		WithOptions(options).
		Complete(v)
}

// Reconcile takes the verbosity over, whichever object changed.
func (v *Verbosity) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	config, err := Configuration(ctx, v.Client)
	if err != nil {
		return ctrl.Result{}, err
	}
	v.Set(config.Verbosity(v.Component, v.Node))
	return ctrl.Result{}, nil
}
