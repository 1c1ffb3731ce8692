// Package apiserver is virt-api: the webhooks, the API group subresources.kubevirt.io, the older
// versions of the other groups, and uploads of disk images. It
// is a package, so that virt-controller's process could run virt-api too.
package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/clock"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/api/instancetype/choice"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/admission"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/apiserver/evacuation"
	"github.com/kubeqemu/kubeqemu/apiserver/objects"
	"github.com/kubeqemu/kubeqemu/apiserver/older"
	"github.com/kubeqemu/kubeqemu/apiserver/serving"
	"github.com/kubeqemu/kubeqemu/apiserver/subresources"
	"github.com/kubeqemu/kubeqemu/apiserver/upload"
	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/intake"
	"github.com/kubeqemu/kubeqemu/internal/listing"
	"github.com/kubeqemu/kubeqemu/internal/monitoring"
	"github.com/kubeqemu/kubeqemu/internal/portforward"
)

// Options of a Server.
type Options struct {
	// Address (host:port) serves the API server and /metrics, with TLS. Probes serves /healthz
	// and /readyz; with "0" or "", nothing does.
	Address, Probes string
	// DNSNames of the certificate.
	DNSNames []string
	// Clock for certificates; nil is the real one.
	Clock clock.PassiveClock
	Log   logr.Logger
	// SetVerbosity is called with the log's verbosity after every change of a KubeVirt; nil for
	// none. Node is the node that virt-api runs on.
	SetVerbosity func(int)
	Node         string
	// DataVolumes: virt-api takes the images of DataVolumes that virt-controller fills.
	DataVolumes bool
}

// Server answers the API server.
type Server struct {
	options     Options
	certificate *serving.Certificate
	kubeVirts   *objects.Watched[v1.KubeVirt, *v1.KubeVirt]
	frontProxy  *objects.Watched[corev1.ConfigMap, *corev1.ConfigMap]
	handlerCA   *objects.Watched[corev1.ConfigMap, *corev1.ConfigMap]
	// watched must have been read before virt-api can serve; others need not.
	watched, others []watched
	mux             *http.ServeMux
	group           http.Handler
	older           *older.Server
	uploads         *upload.Server // or nil
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
	// The mux serves everything but the API groups.
	presets, err := listing.New[v1.VirtualMachineInstancePreset](config, v1.VirtualMachineInstancePresetResource, v1.MaxPresets, v1.MaxPresetBytes, s.options.Clock)
	if err != nil {
		return nil, err
	}
	admission.Register(s.mux, s.facts, presets.Any, intake.NewBodies(maxReviews))
	guard, err := evacuation.New(config, func() *v1.KubeVirtConfiguration { return v1.ClusterConfiguration(s.kubeVirts.All()) })
	if err != nil {
		return nil, err
	}
	admission.RegisterEvictions(s.mux, &admission.Evictions{Evict: guard.Evict, Keys: func() ([][]byte, error) {
		return s.certificate.HiddenKeys(admission.EvictionPath)
	}})
	access, err := monitoring.NewAccess(config, s.options.Clock.Now, s.options.Log.WithName("metrics"))
	if err != nil {
		return nil, err
	}
	s.mux.Handle(monitoring.Path, access.Guard(metrics()))
	rights, err := callers.NewRights(config)
	if err != nil {
		return nil, err
	}
	s.older, err = older.New(config, older.Options{FrontProxy: s.proxy, Rights: rights, Now: s.options.Clock.Now, Log: s.options.Log.WithName("older")})
	if err != nil {
		return nil, err
	}
	if o.DataVolumes {
		if err := s.takeUploads(config, rights); err != nil {
			return nil, err
		}
	}
	group, err := subresources.New(config, subresources.Options{FrontProxy: s.proxy, Rights: rights, Uploads: s.uploads, Evacuations: guard, Now: s.options.Clock.Now, Log: s.options.Log.WithName("subresources"),
		Handlers: &handlerapi.Client{Certificate: s.certificate.GetClientCertificate, Roots: s.handlerRoots, Now: s.options.Clock.Now}})
	if err != nil {
		return nil, err
	}
	s.group = group
	admission.RegisterChoices(s.mux, &admission.Choices{Read: func(user authenticationv1.UserInfo) choice.Get {
		if older.IsAccount(user.Username) {
			return readsNothing
		}
		return group.ReadFor(user)
	}, Keys: func(path serving.Hidden) ([][]byte, error) {
		return s.certificate.HiddenKeys(path)
	}})
	admission.RegisterDeletions(s.mux, &admission.Deletions{Shorten: group.ShortenGrace, Keys: func() ([][]byte, error) {
		return s.certificate.HiddenKeys(admission.DeletionPath)
	}})
	return s, nil
}

// readsNothing refuses to read for the accounts of requests at older versions: it is not known what the user behind one of them may read.
func readsNothing(_ context.Context, key types.NamespacedName, _ choice.Object) error {
	return apierrors.NewForbidden(schema.GroupResource{}, key.Name, errors.New("the request came at an older version"))
}

// takeUploads makes what takes images from clients.
func (s *Server) takeUploads(config *rest.Config, rights *callers.Rights) error {
	dialer, err := portforward.New(config)
	if err != nil {
		return err
	}
	keys := func() (keys upload.Keys, err error) {
		keys.Sign, keys.Valid, err = s.certificate.Keys(upload.Purpose)
		return keys, err
	}
	s.uploads, err = upload.New(config, upload.Options{FrontProxy: s.proxy, Rights: rights, Keys: keys, Dial: upload.Forward(dialer),
		Now: s.options.Clock.Now, Log: s.options.Log.WithName("upload")})
	return err
}

// ServeHTTP answers the API server. The groups' paths bypass the mux, which would clean them:
// virt-api must serve the very path that was authorized.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if older.Serves(r.URL.EscapedPath()) {
		s.older.ServeHTTP(w, r)
		return
	}
	if upload.Serves(r.URL.EscapedPath()) {
		if s.uploads == nil {
			upload.ServeNone(w, r)
			return
		}
		s.uploads.ServeHTTP(w, r)
		return
	}
	for _, below := range []string{"/apis", "/openapi"} {
		if r.URL.Path == below || strings.HasPrefix(r.URL.Path, below+"/") {
			s.group.ServeHTTP(w, r)
			return
		}
	}
	s.mux.ServeHTTP(w, r)
}

// proxy returns what verifies the API server, as its ConfigMap says now.
func (s *Server) proxy() (*callers.FrontProxy, error) {
	published := s.frontProxy.Get()
	if published == nil {
		return nil, errors.New("how the API server proves to be itself has not been read yet")
	}
	return callers.ParseFrontProxy(published.Data)
}

// handlerRoots returns the CAs of virt-handlers.
func (s *Server) handlerRoots() (*x509.CertPool, error) {
	published := s.handlerCA.Get()
	if published == nil {
		return nil, errors.New("the CA of virt-handlers has not been read yet")
	}
	return authority.Pool(published.Data[authority.BundleEntry])
}

// watch makes the watches: exactly the objects that virt-api needs, which are also all that its
// role grants.
func (s *Server) watch(config *rest.Config) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), admissionregistrationv1.AddToScheme(scheme), apiregistrationv1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("make scheme: %w", err)
	}
	changes := make(chan struct{}, 1)
	changed := func() {
		select {
		case changes <- struct{}{}:
		default: // a signal is pending already
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
		GroupVersionResource: v1.GroupVersion.WithResource("kubevirts")}, s.configured)
	if err != nil {
		return err
	}
	services, err := objects.Watch[apiregistrationv1.APIService](config, scheme, objects.Resource{
		GroupVersionResource: apiregistrationv1.SchemeGroupVersion.WithResource("apiservices"), Labels: "kubevirt.io=virt-api-aggregator"}, changed)
	if err != nil {
		return err
	}
	configMap := func(namespace, name string, changed func()) (*objects.Watched[corev1.ConfigMap, *corev1.ConfigMap], error) {
		return objects.Watch[corev1.ConfigMap](config, scheme, objects.Resource{
			GroupVersionResource: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: namespace, Name: name}, changed)
	}
	published, err := configMap(v1.KubeVirtNamespace, authority.APICA, changed)
	if err != nil {
		return err
	}
	if s.handlerCA, err = configMap(v1.KubeVirtNamespace, authority.HandlerCA, func() {}); err != nil {
		return err
	}
	if s.frontProxy, err = configMap("kube-system", "extension-apiserver-authentication", func() {}); err != nil {
		return err
	}
	s.watched, s.others = []watched{secret, mutating, validating, published, services, s.kubeVirts}, []watched{s.handlerCA, s.frontProxy}
	s.certificate = &serving.Certificate{CA: secret, Mutating: mutating, Validating: validating, APIServices: services, ServedNames: servedNames(s.options.DataVolumes), Published: published, DNSNames: s.options.DNSNames,
		Hidden: map[string]serving.Hidden{admission.EvictionsEverywhere: admission.EvictionPath, admission.GracefulDeletions: admission.DeletionPath,
			admission.Inference: admission.InferencePath, admission.Agreement: admission.AgreementPath},
		Clock: s.options.Clock, Log: s.options.Log.WithName("certificate"), Changed: changes}
	return nil
}

// servedNames are the names of virt-api's APIServices.
func servedNames(dataVolumes bool) []string {
	names := []string{subresources.Version + "." + subresources.Group, subresources.OlderVersion + "." + subresources.Group}
	for _, v := range older.Versions() {
		names = append(names, v.APIService())
	}
	if dataVolumes {
		names = append(names, cdi.UploadService)
	}
	return names
}

// configured takes over what concerns virt-api itself of a changed configuration.
func (s *Server) configured() {
	if s.options.SetVerbosity != nil {
		s.options.SetVerbosity(v1.ClusterConfiguration(s.kubeVirts.All()).Verbosity(v1.VirtAPI, s.options.Node))
	}
}

// facts returns the KubeVirts as last seen, and their configuration.
func (s *Server) facts(context.Context) (admission.Facts, error) {
	if !s.kubeVirts.HasSynced() {
		return admission.Facts{}, errors.New("the KubeVirts have not been read yet")
	}
	all := s.kubeVirts.All()
	return admission.Facts{Cluster: v1.ClusterConfiguration(all), KubeVirts: all}, nil
}

// Ready returns an error while virt-api cannot answer.
func (s *Server) Ready() error {
	if !s.kubeVirts.HasSynced() {
		return errors.New("the KubeVirts have not been read yet")
	}
	return s.certificate.Ready()
}

// Run serves until ctx ends; then it finishes the requests that have begun.
func (s *Server) Run(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.options.Address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	listener = s.secure(listener, s.certificate.GetCertificate)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, w := range slices.Concat(s.watched, s.others) {
		running.Go(func() { w.Run(ctx) })
	}
	running.Go(func() { s.renewCertificate(ctx) })
	running.Go(func() { <-ctx.Done(); s.older.Close() })
	failed := make(chan error, 3)
	serve := func(l net.Listener, h http.Handler) {
		running.Go(func() { failed <- s.serve(ctx, l, h) })
	}
	serve(listener, s)
	if s.options.Probes != "0" && s.options.Probes != "" {
		l, err := net.Listen("tcp", s.options.Probes)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		serve(intake.Listen(l, maxProbes), s.probes())
	}
	s.options.Log.Info("serving", "address", listener.Addr().String())
	return <-failed
}

// renewCertificate waits until the objects have been read, and then keeps the certificate.
func (s *Server) renewCertificate(ctx context.Context) {
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

func (s *Server) secure(listener net.Listener, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) net.Listener {
	config := &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: certificate, NextProtos: []string{"http/1.1"},
		// The API server shows a certificate when it passes on users' requests, and none when
		// it asks webhooks. Package subresources verifies the certificate, by a CA that may
		// change.
		ClientAuth: tls.RequestClientCert}
	return tls.NewListener(intake.Listen(listener, maxStrangers), intake.Known(config, s.isFrontProxy))
}

// isFrontProxy says whether a peer's certificate is the API server's. Before the CA has been
// read, every peer is a stranger.
func (s *Server) isFrontProxy(state tls.ConnectionState) bool {
	if len(state.PeerCertificates) == 0 {
		return false
	}
	proxy, err := s.proxy()
	return err == nil && proxy.Verify(state, s.options.Clock.Now()) == nil
}

// Limits of all strangers together on virt-api's ports. The API server is a stranger too when
// it asks webhooks: it shows no certificate then.
const (
	// maxStrangers, in connections, is more than the 200 changes that an API server makes at
	// once.
	maxStrangers = 256
	maxProbes    = 32
	// maxReviews bounds the reviews in memory, in bytes: three of the largest.
	maxReviews = 3 * admission.MaxReview
)

const (
	shutdownTimeout = 10 * time.Second
	// lastCall is how long virt-api still takes requests after it was told to end. Each answer
	// asks the client to close the connection then: if virt-api closed it while a request was
	// on its way, that request would be lost.
	lastCall = 3 * time.Second
)

// serve serves until ctx ends, which is no error.
func (s *Server) serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	var ending atomic.Bool
	lastly := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ending.Load() {
			w.Header().Set("Connection", "close")
		}
		handler.ServeHTTP(w, r)
	})
	server := intake.Server(lastly, s.options.Log)
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		ending.Store(true)
		<-time.After(lastCall)
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
