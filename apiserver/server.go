// Package apiserver is virt-api. It is a package, so that virt-controller's
// process could hold it too.
package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/admission"
	"github.com/kubeqemu/kubeqemu/apiserver/objects"
	"github.com/kubeqemu/kubeqemu/apiserver/serving"
)

// Options of a Server.
type Options struct {
	// Address serves the API server, with TLS. Probes serves /healthz and
	// /readyz, Metrics /metrics; "0" serves none.
	Address, Probes, Metrics string
	// DNSNames of the certificate.
	DNSNames []string
	// Clock that certificates go by; nil is the real one.
	Clock clock.PassiveClock
	Log   logr.Logger
}

// Server answers the API server.
type Server struct {
	options     Options
	certificate *serving.Certificate
	kubeVirts   *objects.Watched[v1.KubeVirt, *v1.KubeVirt]
	watched     []watched
	mux         *http.ServeMux
}

type watched interface {
	Run(ctx context.Context)
	HasSynced() bool
}

// New makes a Server.
func New(config *rest.Config, o Options) (*Server, error) {
	s := &Server{options: o, mux: http.NewServeMux()}
	if s.options.Clock == nil {
		s.options.Clock = clock.RealClock{}
	}
	if err := s.watch(config); err != nil {
		return nil, err
	}
	// What else virt-api answers, it answers here.
	admission.Register(s.mux, s.facts)
	return s, nil
}

// watch makes what is watched: the very objects that are needed, which is also
// all that the role grants.
func (s *Server) watch(config *rest.Config) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), admissionregistrationv1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("make scheme: %w", err)
	}
	changes := make(chan struct{}, 1)
	changed := func() {
		select {
		case changes <- struct{}{}:
		default: // it is going to be looked at anyway
		}
	}
	secret, err := objects.Watch[corev1.Secret](config, scheme, objects.Resource{
		GroupVersionResource: corev1.SchemeGroupVersion.WithResource("secrets"), Namespace: v1.KubeVirtNamespace, Name: serving.SecretName}, changed)
	if err != nil {
		return err
	}
	mutating, err := objects.Watch[admissionregistrationv1.MutatingWebhookConfiguration](config, scheme, objects.Resource{
		GroupVersionResource: admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations"), Name: serving.WebhooksName}, changed)
	if err != nil {
		return err
	}
	validating, err := objects.Watch[admissionregistrationv1.ValidatingWebhookConfiguration](config, scheme, objects.Resource{
		GroupVersionResource: admissionregistrationv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations"), Name: serving.WebhooksName}, changed)
	if err != nil {
		return err
	}
	s.kubeVirts, err = objects.Watch[v1.KubeVirt](config, scheme, objects.Resource{
		GroupVersionResource: v1.GroupVersion.WithResource("kubevirts"), Namespace: v1.KubeVirtNamespace}, func() {})
	if err != nil {
		return err
	}
	s.watched = []watched{secret, mutating, validating, s.kubeVirts}
	s.certificate = &serving.Certificate{CA: secret, Mutating: mutating, Validating: validating, DNSNames: s.options.DNSNames,
		Clock: s.options.Clock, Log: s.options.Log.WithName("certificate"), Changed: changes}
	return nil
}

// facts are what was last seen of the KubeVirts.
func (s *Server) facts(context.Context) (admission.Facts, error) {
	if !s.kubeVirts.HasSynced() {
		return admission.Facts{}, errors.New("the KubeVirts have not been read yet")
	}
	all := s.kubeVirts.All()
	return admission.Facts{Cluster: v1.ClusterConfiguration(all), KubeVirts: all}, nil
}

// Ready returns an error while it cannot answer.
func (s *Server) Ready() error {
	if !s.kubeVirts.HasSynced() {
		return errors.New("the KubeVirts have not been read yet")
	}
	return s.certificate.Ready()
}

// Run serves until ctx ends; then it answers what was asked before.
func (s *Server) Run(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.options.Address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	listener = tls.NewListener(listener, &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: s.certificate.GetCertificate,
		NextProtos: []string{"h2", "http/1.1"}})
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, w := range s.watched {
		running.Go(func() { w.Run(ctx) })
	}
	running.Go(func() { s.keepCertificate(ctx) })
	failed := make(chan error, 3)
	serve := func(l net.Listener, h http.Handler) {
		running.Go(func() { failed <- s.serve(ctx, l, h) })
	}
	serve(listener, s.mux)
	for _, more := range []struct {
		address string
		handler http.Handler
	}{{s.options.Probes, s.probes()}, {s.options.Metrics, metrics()}} {
		if more.address == "0" || more.address == "" {
			continue
		}
		l, err := net.Listen("tcp", more.address)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		serve(l, more.handler)
	}
	s.options.Log.Info("serving", "address", listener.Addr().String())
	return <-failed
}

// keepCertificate waits for what it is kept by.
func (s *Server) keepCertificate(ctx context.Context) {
	for _, w := range s.watched {
		for !w.HasSynced() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	s.certificate.Run(ctx)
}

const (
	headerTimeout   = 10 * time.Second
	readTimeout     = 30 * time.Second
	idleTimeout     = 2 * time.Minute
	shutdownTimeout = 10 * time.Second
)

// serve serves until ctx ends, which is no error.
func (s *Server) serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, IdleTimeout: idleTimeout,
		ErrorLog: logTo(s.options.Log)}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		stopped <- server.Shutdown(ctx)
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	}
	return <-stopped
}
