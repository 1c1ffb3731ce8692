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
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/authority"
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
	meta := metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Name: CAName}
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

func TestWhichRequestsTheSignerApproves(t *testing.T) {
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

// TestTwoSignersUseOneCA: both sign with the CA of the one that was first.
func TestTwoSignersUseOneCA(t *testing.T) {
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

// TestNothingIsSignedWithoutAKeptCA: nothing is signed while the CA cannot be kept, and the next try
// finds things as they are.
func TestNothingIsSignedWithoutAKeptCA(t *testing.T) {
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

// served is a Source in a bubble of package synctest, and the signer that answers it.
type served struct {
	*Source
	c       *cluster
	timers  *clocktesting.FakeClock
	signing bool
}

// source runs a Source until the test ends.
func (c *cluster) source() *served { return c.sourceWith(c.clock, c.clock) }

// sourceWith is source on a node with a clock of its own, and timers that go by
// another.
func (c *cluster) sourceWith(wall clock.Clock, timers *clocktesting.FakeClock) *served {
	c.t.Helper()
	s := &served{c: c, timers: timers, Source: &Source{Node: "node-1", Writer: c.client, Reader: c.client, Clock: wall, Log: logr.Discard()}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Start(ctx)
	}()
	c.t.Cleanup(func() { cancel(); <-done })
	return s
}

// turn lets the signer answer, and a second pass. The Source then runs until it waits again.
func (s *served) turn() {
	synctest.Wait()
	if s.signing {
		s.c.reconcile() // may fail, with the API server
	}
	if s.timers.HasWaiters() {
		s.timers.Step(time.Second)
	}
	synctest.Wait()
}

// await takes turns for an hour.
func (s *served) await(what string, is func() bool) {
	s.c.t.Helper()
	for range 3600 {
		if s.turn(); is() {
			return
		}
	}
	s.c.t.Fatalf("%s: not within an hour", what)
}

func (s *served) ready() bool { return s.Ready(nil) == nil }

// TestSourceRenewsCertificatesInTime: it has certificates once there is a signer, and others long before
// those expire; an API server that is away changes nothing of what it holds.
func TestSourceRenewsCertificatesInTime(t *testing.T) { synctest.Test(t, testSource) }

func testSource(t *testing.T) {
	c := newCluster(t)
	s := c.source()
	if err := s.Ready(nil); err == nil {
		t.Error("ready without certificates")
	}
	if _, err := s.GetCertificate(nil); err == nil {
		t.Error("a certificate from nowhere")
	}
	s.signing = true
	s.await("ready", s.ready)
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
		if s.turn(); renewed() {
			t.Fatal("renewed when half its life was over")
		}
	}
	// From here the API server is away until after the time.
	away := error(apierrors.NewServiceUnavailable("away"))
	c.fault.Store(&away)
	c.clock.SetTime(first.Leaf.NotBefore.Add(authority.CertificateLife * 3 / 4))
	for range 20 {
		s.turn()
		if err := s.Ready(nil); err != nil {
			t.Fatalf("not ready while the API server is away: %v", err)
		}
	}
	c.fault.Store(nil)
	s.await("renewal", renewed)
}

// TestSourceAfterTheClockWasSet: the certificates have expired all at once, and
// are replaced within a minute.
func TestSourceAfterTheClockWasSet(t *testing.T) { synctest.Test(t, testSourceAfterTheClockWasSet) }

func testSourceAfterTheClockWasSet(t *testing.T) {
	c := newCluster(t)
	s := c.source()
	s.signing = true
	s.await("ready", s.ready)
	s.signing = false
	c.clock.SetTime(start.Add(40 * 24 * time.Hour))
	if err := s.Ready(nil); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("expired certificates: %v", err)
	}
	s.signing = true
	s.await("replacement", s.ready)
}

// TestSignerClockWasAhead: virt-controller's clock was ahead, for a minute or for
// longer. What it signs then is believed again at once, by those who have read
// the CA since.
func TestSignerClockWasAhead(t *testing.T) {
	const day = 24 * time.Hour
	key := newKey(t, elliptic.P256())
	for name, c := range map[string]struct {
		ahead, lasts time.Duration
		oldStays     bool
	}{
		"a few days":            {3 * day, time.Minute, true},
		"until it is renewed":   {25 * day, time.Minute, true},
		"years":                 {3000 * day, time.Minute, true},
		"years, and for a day":  {3000 * day, day, true},
		"years, and for months": {3000 * day, 60 * day, false},
		"years behind":          {-3000 * day, time.Minute, true},
	} {
		cluster := newCluster(t)
		first, err := cluster.authorities(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		believed := func(when string, cas authority.CAs) {
			t.Helper()
			text, err := sign(cas, wanted{role: Client, node: "node-1", key: &key.PublicKey}, 0, cluster.clock.Now())
			if err != nil {
				t.Fatalf("%s, %s: %v", name, when, err)
			}
			issued, err := issuedFor(text, key)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM([]byte(cluster.published()))
			if _, err := authority.Peer(handshake(t, *issued), Client, roots, cluster.clock.Now()); err != nil {
				t.Errorf("%s, %s: %v", name, when, err)
			}
			if own, err := cluster.GetCertificate(&tls.ClientHelloInfo{}); err != nil {
				t.Errorf("%s, %s: %v", name, when, err)
			} else if _, err := own.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: cluster.clock.Now(), DNSName: authority.MetricsName}); err != nil {
				t.Errorf("%s, %s, own: %v", name, when, err)
			}
		}
		for passed := time.Duration(0); passed <= c.lasts; passed += max(c.lasts/10, time.Minute) {
			cluster.clock.SetTime(start.Add(c.ahead + passed))
			cas, err := cluster.authorities(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			believed("with the wrong clock", cas)
		}
		cluster.clock.SetTime(start.Add(c.lasts))
		cas, err := cluster.authorities(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		believed("with the right clock", cas)
		if by := cas[cas.Signing(cluster.clock.Now())]; c.oldStays && !by.Certificate.Equal(first[0].Certificate) {
			t.Errorf("%s: %s signs, and those who have read nothing since know only %s", name, by.Certificate.Subject.CommonName, first[0].Certificate.Subject.CommonName)
		}
	}
}

// TestSourceOfAClockAhead: virt-controller's clock was ahead when it signed. Such a
// certificate takes the place of none that is good; where it is the only one, or
// this node's clock was ahead too, Ready tells, and another is asked for.
func TestSourceOfAClockAhead(t *testing.T) { synctest.Test(t, testSourceOfAClockAhead) }

func testSourceOfAClockAhead(t *testing.T) {
	c := newCluster(t)
	const year = 365 * 24 * time.Hour
	node := &wrongClock{FakeClock: clocktesting.NewFakeClock(start)}
	c.clock.SetTime(start.Add(year))
	s := c.sourceWith(node, node.FakeClock)
	s.signing = true
	signed := func() (n int) {
		var list certificatesv1.CertificateSigningRequestList
		if err := c.client.List(context.Background(), &list); err != nil {
			t.Fatal(err)
		}
		for _, csr := range list.Items {
			if len(csr.Status.Certificate) > 0 {
				n++
			}
		}
		return n
	}
	// asked waits until each role was given two certificates more.
	asked := func() {
		t.Helper()
		before := signed()
		s.await("more certificates", func() bool { return signed() >= before+2*len(roles) })
	}
	asked()
	if err := s.Ready(nil); err == nil || !strings.Contains(err.Error(), "has not been issued yet") {
		t.Errorf("with certificates of the future alone: %v", err)
	}
	c.clock.SetTime(start)
	s.await("ready", s.ready)

	// Both clocks are ahead, and then right again.
	c.clock.SetTime(start.Add(year))
	node.ahead.Store(int64(year))
	s.await("ready in a year", s.ready)
	node.ahead.Store(0)
	if err := s.Ready(nil); err == nil || !strings.Contains(err.Error(), "is not valid before") {
		t.Errorf("with certificates of the future: %v", err)
	}
	c.clock.SetTime(start)
	s.await("repair", s.ready)

	// virt-controller's alone is, as a good certificate is to be renewed.
	c.clock.SetTime(start.Add(year))
	node.ahead.Store(int64(authority.CertificateLife * 3 / 4))
	asked()
	if err := s.Ready(nil); err != nil {
		t.Errorf("a good certificate was given away for one of the future: %v", err)
	}
}

// wrongClock is a clock that was set, which its timers do not see.
type wrongClock struct {
	*clocktesting.FakeClock
	ahead atomic.Int64
}

func (c *wrongClock) Now() time.Time { return c.FakeClock.Now().Add(time.Duration(c.ahead.Load())) }

// TestDeniedSourceSaysWhyAndAsksAgain: it says why, and asks again.
func TestDeniedSourceSaysWhyAndAsksAgain(t *testing.T) { synctest.Test(t, testSourceDenied) }

func testSourceDenied(t *testing.T) {
	c := newCluster(t)
	s := &served{c: c, timers: c.clock, signing: true, Source: &Source{Node: "node-2", Writer: c.client, Reader: c.client, Clock: c.clock, Log: logr.Discard()}}
	done := make(chan error, 1)
	go func() {
		_, err := s.request(t.Context(), Client)
		done <- err
	}()
	s.await("answer", func() bool { return len(done) == 1 })
	if err := <-done; err == nil || !strings.Contains(err.Error(), `denied (BadRequest)`) {
		t.Errorf("a request for another node: %v", err)
	}
}
