package virtcontroller

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// maxProbes bounds the connections for the kubelet's probes. Everybody who can reach the pod
// can reach that port, and the manager's own server would take any number of connections.
const maxProbes = 32

// addProbes has virt-controller answer the kubelet's probes.
func addProbes(mgr ctrl.Manager, address string) error {
	if address == "0" {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen for probes: %w", err)
	}
	mux := http.NewServeMux()
	for _, path := range []string{"/healthz", "/readyz"} {
		mux.Handle(path, http.StripPrefix(path, &healthz.Handler{}))
	}
	server := intake.Server(mux, mgr.GetLogger().WithName("probes"))
	return mgr.Add(&manager.Server{Name: "probes", Server: server, Listener: intake.Listen(listener, maxProbes), ShutdownTimeout: ptr.To(time.Second)})
}
