package virtcontroller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kubevirt"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// AwaitAlone waits while KubeVirt itself runs on the cluster. "kubectl apply -k" installs virt-controller there without a question, so virt-controller is idle then: its log, its
// readiness and an event say why. It looks once a period, and returns once KubeVirt is gone, or ctx ends.
func AwaitAlone(ctx context.Context, config *rest.Config, probes string, period time.Duration) error {
	scheme, err := newScheme()
	if err != nil {
		return fmt.Errorf("make scheme: %w", err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	var idle *idleProbes
	for first := true; ; first = false {
		why, err := kubevirt.OperatorIsHere(ctx, c)
		if err != nil {
			return err
		}
		if why == "" {
			return idle.close()
		}
		why = "KubeVirt runs here, and virt-controller does nothing: " + why + ". Remove KubeVirt, or, if it is gone, what is left of it"
		ctrl.Log.Info(why)
		if first {
			if idle, err = serveIdle(probes, why); err != nil {
				return err
			}
			if err := c.Create(ctx, idleEvent(why)); err != nil {
				ctrl.Log.Error(err, "make an event")
			}
		}
		select {
		case <-ctx.Done():
			return idle.close()
		case <-time.After(period):
		}
	}
}

func idleEvent(why string) *corev1.Event {
	now := metav1.Now()
	return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, GenerateName: "virt-controller."}, Type: corev1.EventTypeWarning, Reason: "KubeVirtIsHere", Message: why,
		InvolvedObject: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: v1.KubeVirtNamespace, Name: "virt-controller"},
		Source:         corev1.EventSource{Component: "virt-controller"}, FirstTimestamp: now, LastTimestamp: now, Count: 1}
}

// idleProbes say that virt-controller lives, and is not ready.
type idleProbes struct {
	server *http.Server
	ended  chan error
}

// serveIdle serves the probes until close. An address of "0" serves none.
func serveIdle(address, why string) (*idleProbes, error) {
	if address == "0" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for probes: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, why, http.StatusServiceUnavailable) })
	p := &idleProbes{server: intake.Server(mux, ctrl.Log.WithName("probes")), ended: make(chan error, 1)}
	go func() { p.ended <- p.server.Serve(intake.Listen(listener, maxProbes)) }()
	return p, nil
}

// close ends the probes; nil has none.
func (p *idleProbes) close() error {
	if p == nil {
		return nil
	}
	err := p.server.Close()
	if ended := <-p.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("serve probes: %w", ended))
	}
	return err
}
