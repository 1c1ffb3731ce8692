package main

import (
	"errors"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kubeqemu/kubeqemu/controllers/certificates"
)

// addCertificates has virt-handler hold its certificates. It is not ready
// without them, but does all that it can do without.
func addCertificates(mgr ctrl.Manager, node string) error {
	source := &certificates.Source{Node: node, Writer: mgr.GetClient(), Reader: mgr.GetAPIReader(), Clock: clock.RealClock{},
		Log: mgr.GetLogger().WithName("certificates")}
	return errors.Join(mgr.Add(source), mgr.AddReadyzCheck("certificates", source.Ready))
}
