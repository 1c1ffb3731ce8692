package virthandler

import (
	"errors"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kubeqemu/kubeqemu/controllers/certificates"
	"github.com/kubeqemu/kubeqemu/controllers/node"
	"github.com/kubeqemu/kubeqemu/controllers/node/migration"
	"github.com/kubeqemu/kubeqemu/controllers/node/serve"
)

// addServers has virt-handler get its certificates, and answer virt-api and other virt-handlers. Without certificates
// virt-handler is not ready, but does all work that needs none.
func addServers(mgr ctrl.Manager, o options, reconciler *node.Reconciler) (*migration.Arrivals, error) {
	source := &certificates.Source{Node: o.node, Writer: mgr.GetClient(), Reader: mgr.GetAPIReader(), Clock: clock.RealClock{},
		Log: mgr.GetLogger().WithName("certificates")}
	server := &serve.Server{Client: reconciler.Client, Launcher: reconciler.Launcher, Clock: reconciler.Clock, Certificate: source.GetCertificate, Address: o.address, Log: mgr.GetLogger().WithName("server")}
	arrivals, err := addMigrations(mgr, o, reconciler, source)
	return arrivals, errors.Join(err, mgr.Add(source), mgr.AddReadyzCheck("certificates", source.Ready), mgr.Add(server), addMetrics(mgr, o, reconciler, source))
}
