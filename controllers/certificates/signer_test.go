package certificates

import (
	"context"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kubeqemu/kubeqemu/authority"
)

// cluster is a Signer on an API server that a test can make fail; the real one
// is in test/e2e.
type cluster struct {
	*Signer
	t      *testing.T
	client client.WithWatch
	clock  *clocktesting.FakeClock
	fault  atomic.Pointer[error] // of every call, if set
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), certificatesv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Namespace: Namespace, Name: CAName}
	c := &cluster{t: t, clock: clocktesting.NewFakeClock(start)}
	failing := func() error {
		if f := c.fault.Load(); f != nil {
			return *f
		}
		return nil
	}
	c.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&certificatesv1.CertificateSigningRequest{}).
		WithObjects(&corev1.Secret{ObjectMeta: meta}, &corev1.ConfigMap{ObjectMeta: meta}).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				return errors.Join(failing(), w.Get(ctx, key, o, opts...))
			},
			Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				if csr, ok := o.(*certificatesv1.CertificateSigningRequest); ok && csr.Spec.Username == "" {
					csr.Spec.Username = Requester
					csr.Spec.Extra = map[string]certificatesv1.ExtraValue{nodeClaim: {"node-1"}}
				}
				return errors.Join(failing(), w.Create(ctx, o, opts...))
			},
			// The fake has no approval; like status, it writes status.
			SubResourceUpdate: func(ctx context.Context, w client.Client, _ string, o client.Object, opts ...client.SubResourceUpdateOption) error {
				return errors.Join(failing(), w.SubResource("status").Update(ctx, o, opts...))
			},
		}).Build()
	c.Signer = &Signer{Client: c.client, Live: c.client, Clock: c.clock, Log: logr.Discard()}
	return c
}

// reconcile takes every request as far as it goes.
func (c *cluster) reconcile() error {
	var list certificatesv1.CertificateSigningRequestList
	if err := c.client.List(context.Background(), &list); err != nil {
		c.t.Error(err)
	}
	var errs []error
	for _, csr := range list.Items {
		for range 3 { // approve, sign, nothing
			_, err := c.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&csr)})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// file files a request and returns what became of it.
func (c *cluster) file(csr *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	c.t.Helper()
	csr.Name = "request"
	status := csr.Status
	if err := c.client.Create(context.Background(), csr); err != nil {
		c.t.Fatal(err)
	}
	if len(status.Conditions) > 0 {
		csr.Status = status
		if err := c.client.Status().Update(context.Background(), csr); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := c.reconcile(); err != nil {
		c.t.Error(err)
	}
	got := &certificatesv1.CertificateSigningRequest{}
	if err := c.client.Get(context.Background(), client.ObjectKeyFromObject(csr), got); err != nil {
		c.t.Fatal(err)
	}
	return got
}

func TestDecisions(t *testing.T) {
	key := newKey(t, elliptic.P256())
	text, err := newRequest(Client, "node-1", key)
	if err != nil {
		t.Fatal(err)
	}
	foreign := filed(Requester, "node-1", Client, text)
	foreign.Spec.SignerName = "kubernetes.io/kube-apiserver-client"
	approvedByHand := filed("somebody", "node-1", Client, text)
	decide(approvedByHand, certificatesv1.CertificateApproved, "ByHand", "")
	deniedByHand := filed(Requester, "node-1", Client, text)
	decide(deniedByHand, certificatesv1.CertificateDenied, "ByHand", "")
	for name, c := range map[string]struct {
		csr    *certificatesv1.CertificateSigningRequest
		want   string // conditions
		issued bool
	}{
		"good":             {filed(Requester, "node-1", Client, text), "Approved VirtHandler", true},
		"another node":     {filed(Requester, "node-2", Client, text), "Denied BadRequest", false},
		"another account":  {filed("somebody", "node-1", Client, text), "Denied NotVirtHandler", false},
		"another signer's": {foreign, "", false},
		"approved by hand": {approvedByHand, "Approved ByHand, Failed NotVirtHandler", false},
		"denied by hand":   {deniedByHand, "Denied ByHand", false},
	} {
		got := newCluster(t).file(c.csr)
		var conditions []string
		for _, c := range got.Status.Conditions {
			conditions = append(conditions, string(c.Type)+" "+c.Reason)
		}
		if have := strings.Join(conditions, ", "); have != c.want {
			t.Errorf("%s: %q, want %q", name, have, c.want)
		}
		if issued := len(got.Status.Certificate) > 0; issued != c.issued {
			t.Errorf("%s: issued: %v", name, issued)
		}
	}
}

func (c *cluster) published() string {
	c.t.Helper()
	m := &corev1.ConfigMap{}
	if err := c.client.Get(context.Background(), caKey(), m); err != nil {
		c.t.Fatal(err)
	}
	return m.Data[BundleEntry]
}

// TestTwoSigners: both sign with the CA of the one that was first.
func TestTwoSigners(t *testing.T) {
	c := newCluster(t)
	second := &Signer{Client: c.client, Live: c.client, Clock: c.clock, Log: logr.Discard()}
	mine, err := c.authorities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := second.authorities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !mine[0].Certificate.Equal(theirs[0].Certificate) || string(mine.Bundle()) != c.published() {
		t.Error("two CAs")
	}
	// Both find it time to rotate, and one is later with its write.
	c.clock.Step(authority.Life * 2 / 3)
	secret := &corev1.Secret{}
	if err := c.client.Get(t.Context(), caKey(), secret); err != nil {
		t.Fatal(err)
	}
	if mine, err = c.authorities(t.Context()); err != nil {
		t.Fatal(err)
	}
	late, _, err := theirs.Rotate(c.clock.Now(), authority.New(component))
	if err != nil {
		t.Fatal(err)
	}
	if err := second.save(t.Context(), secret, late); !apierrors.IsConflict(err) {
		t.Errorf("the later one's write: %v", err)
	}
	if theirs, err = second.authorities(t.Context()); err != nil || string(theirs.Bundle()) != string(mine.Bundle()) || len(mine) != 2 {
		t.Errorf("two CAs, %v", err)
	}
}

// TestCAFaults: nothing is signed while the CA cannot be kept, and the next try
// finds things as they are.
func TestCAFaults(t *testing.T) {
	c := newCluster(t)
	away := error(apierrors.NewServiceUnavailable("away"))
	c.fault.Store(&away)
	if _, err := c.authorities(t.Context()); err == nil {
		t.Error("a CA was made without being saved")
	}
	c.fault.Store(nil)
	first, err := c.authorities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{}
	if err := c.client.Get(t.Context(), caKey(), secret); err != nil {
		t.Fatal(err)
	}
	saved := secret.DeepCopy().Data
	secret.Data[caCertificates] = []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	if err := c.client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if _, err := c.load(t.Context()); err == nil || !strings.Contains(err.Error(), "Secret kubevirt/kubevirt-ca") {
		t.Errorf("a damaged CA: %v", err)
	}
	secret.Data = saved
	if err := c.client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if again, err := c.load(t.Context()); err != nil || !again[0].Certificate.Equal(first[0].Certificate) {
		t.Errorf("the CA was not found again: %v", err)
	}
}

// source runs a Source until the test ends, with a signer beside it that works
// while signing is set.
func (c *cluster) source(signing *atomic.Bool) *Source {
	c.t.Helper()
	s := &Source{Node: "node-1", Writer: c.client, Reader: c.client, Clock: c.clock, Log: logr.Discard()}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Start(ctx)
	}()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for tick := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-tick.C {
			if signing.Load() {
				c.reconcile() // may fail, with the API server
			}
			if c.clock.HasWaiters() {
				c.clock.Step(time.Second)
			}
		}
	}()
	c.t.Cleanup(func() { cancel(); <-done; <-stopped })
	return s
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

// TestSource: it has certificates once there is a signer, and others long before
// those expire; an API server that is away changes nothing of what it holds.
func TestSource(t *testing.T) {
	c := newCluster(t)
	var signing atomic.Bool
	s := c.source(&signing)
	if err := s.Ready(nil); err == nil {
		t.Error("ready without certificates")
	}
	if _, err := s.GetCertificate(nil); err == nil {
		t.Error("a certificate from nowhere")
	}
	signing.Store(true)
	await(t, "ready", func() bool { return s.Ready(nil) == nil })
	server, err := s.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(c.published()))
	first, err := s.GetClientCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	for r, certificate := range map[Role]*tls.Certificate{Server: server, Client: first} {
		if node, err := authority.Peer(handshake(t, *certificate), r, roots, c.clock.Now()); err != nil || node != "node-1" {
			t.Errorf("%s: %q, %v", r, node, err)
		}
	}
	renewed := func() bool {
		now, err := s.GetClientCertificate(nil)
		return err == nil && !now.Leaf.Equal(first.Leaf)
	}
	c.clock.SetTime(first.Leaf.NotBefore.Add(authority.CertificateLife / 2))
	for range 20 {
		time.Sleep(time.Millisecond)
		if renewed() {
			t.Fatal("renewed when half its life was over")
		}
	}
	// From here the API server is away until after the time.
	away := error(apierrors.NewServiceUnavailable("away"))
	c.fault.Store(&away)
	c.clock.SetTime(first.Leaf.NotBefore.Add(authority.CertificateLife * 3 / 4))
	for range 20 {
		time.Sleep(time.Millisecond)
		if err := s.Ready(nil); err != nil {
			t.Fatalf("not ready while the API server is away: %v", err)
		}
	}
	c.fault.Store(nil)
	await(t, "renewal", renewed)
}

// TestSourceAfterTheClockWasSet: the certificates have expired all at once, and
// are replaced within a minute.
func TestSourceAfterTheClockWasSet(t *testing.T) {
	c := newCluster(t)
	var signing atomic.Bool
	signing.Store(true)
	s := c.source(&signing)
	await(t, "ready", func() bool { return s.Ready(nil) == nil })
	signing.Store(false)
	c.clock.SetTime(start.Add(40 * 24 * time.Hour))
	if err := s.Ready(nil); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("expired certificates: %v", err)
	}
	signing.Store(true)
	await(t, "replacement", func() bool { return s.Ready(nil) == nil })
}

// TestSourceDenied: it says why, and asks again.
func TestSourceDenied(t *testing.T) {
	c := newCluster(t)
	s := &Source{Node: "node-2", Writer: c.client, Reader: c.client, Clock: c.clock, Log: logr.Discard()}
	done := make(chan error, 1)
	go func() {
		_, err := s.request(t.Context(), Client)
		done <- err
	}()
	await(t, "answer", func() bool {
		c.reconcile()
		if c.clock.HasWaiters() {
			c.clock.Step(time.Second)
		}
		select {
		case err := <-done:
			if err == nil || !strings.Contains(err.Error(), `denied (BadRequest)`) {
				t.Errorf("a request for another node: %v", err)
			}
			return true
		default:
			return false
		}
	})
}
