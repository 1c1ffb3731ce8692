package virthandler

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/certificates"
	"github.com/kubeqemu/kubeqemu/controllers/node"
	"github.com/kubeqemu/kubeqemu/controllers/node/migration"
	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
)

// addMigrations lets guests go to other nodes, and come from them.
func addMigrations(mgr ctrl.Manager, o options, reconciler *node.Reconciler,
	source *certificates.Source) (*migration.Arrivals, error) {
	roots := func(ctx context.Context) (*x509.CertPool, error) { return handlerRoots(ctx, mgr.GetAPIReader()) }
	to := &peers.Client{Client: handlerapi.Client{Certificate: source.GetClientCertificate, Now: reconciler.Clock.Now, Port: peers.Port,
		Roots: func() (*x509.CertPool, error) { return roots(context.Background()) }}}
	here := &migration.Node{Name: o.node, Client: reconciler.Client, Live: reconciler.Live, Clock: reconciler.Clock,
		Sessions: reconciler.Sessions, CPU: readCPU(mgr)}
	reconciler.Departures = migration.NewDepartures(here, to)
	coming, err := comingVMIs(mgr, o)
	if err != nil {
		return nil, err
	}
	arrivals := &migration.Arrivals{Node: here, Starter: reconciler.Starter, Coming: coming, Address: o.nodeAddress}
	if err := arrivals.Setup(mgr, coming); err != nil {
		return nil, fmt.Errorf("set up arrivals controller: %w", err)
	}
	server := &peers.Server{Target: arrivals, Certificate: source.GetCertificate, Roots: roots, Clock: reconciler.Clock, Address: o.migrations,
		Log: mgr.GetLogger().WithName("migrations")}
	close := manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		reconciler.Departures.Close()
		return nil
	})
	return arrivals, errors.Join(mgr.Add(coming), mgr.Add(server), mgr.Add(close))
}

// comingVMIs is a cache of the VMIs whose last migration names this node as its target. The API server selects them, by
// the selectable field status.migrationState.targetNode.
func comingVMIs(mgr ctrl.Manager, o options) (cache.Cache, error) {
	coming, err := cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(), DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1.VirtualMachineInstance{}: {Field: fields.OneTermEqualSelector("status.migrationState.targetNode", o.node)},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make cache of VMIs that come: %w", err)
	}
	return coming, nil
}

// rootsTimeout bounds the question for the CAs.
const rootsTimeout = 10 * time.Second

// handlerRoots are the CAs that certify virt-handlers. They are read anew for each connection: few are made.
func handlerRoots(ctx context.Context, reader client.Reader) (*x509.CertPool, error) {
	ctx, cancel := context.WithTimeout(ctx, rootsTimeout)
	defer cancel()
	published := &corev1.ConfigMap{}
	if err := reader.Get(ctx, types.NamespacedName{Namespace: v1.KubeVirtNamespace, Name: authority.HandlerCA}, published); err != nil {
		return nil, fmt.Errorf("read virt-handlers' CA: %w", err)
	}
	return authority.Pool(published.Data[authority.BundleEntry])
}

// readCPU reads the node's processor. Without it, no guest comes to the node under KVM.
func readCPU(mgr ctrl.Manager) peers.CPU {
	file, err := os.Open("/proc/cpuinfo")
	if err == nil {
		defer file.Close()
		var cpu peers.CPU
		if cpu, err = peers.ReadCPU(file); err == nil {
			return cpu
		}
	}
	mgr.GetLogger().Error(err, "read the node's processor")
	return peers.CPU{}
}
