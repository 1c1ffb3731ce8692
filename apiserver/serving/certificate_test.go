package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// start is in the future of the machine that runs the test, so that nothing
// depends on its clock.
var start = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

// stored is an object with the API server's rule for updates; the real one is in
// test/admission.
type stored[P interface {
	metav1.Object
	runtime.Object
}] struct {
	object P
	there  bool
}

func (s *stored[P]) Get() (none P) {
	if !s.there {
		return none
	}
	return s.object.DeepCopyObject().(P)
}

func (s *stored[P]) Update(_ context.Context, object P) error {
	if !s.there || object.GetResourceVersion() != s.object.GetResourceVersion() {
		return apierrors.NewConflict(schema.GroupResource{}, object.GetName(), errors.New("it changed"))
	}
	version, _ := strconv.Atoi(object.GetResourceVersion())
	s.object = object.DeepCopyObject().(P)
	s.object.SetResourceVersion(strconv.Itoa(version + 1))
	return nil
}

// servings are virt-apis on one API server.
type servings struct {
	t          *testing.T
	secret     *stored[*corev1.Secret]
	mutating   *stored[*admissionregistrationv1.MutatingWebhookConfiguration]
	validating *stored[*admissionregistrationv1.ValidatingWebhookConfiguration]
	service    *stored[*apiregistrationv1.APIService]
	published  *stored[*corev1.ConfigMap]
	clock      *clocktesting.FakePassiveClock
}

func newServings(t *testing.T, webhooks bool) *servings {
	t.Helper()
	return &servings{t, &stored[*corev1.Secret]{&corev1.Secret{}, true},
		&stored[*admissionregistrationv1.MutatingWebhookConfiguration]{&admissionregistrationv1.MutatingWebhookConfiguration{
			Webhooks: make([]admissionregistrationv1.MutatingWebhook, 1)}, webhooks},
		&stored[*admissionregistrationv1.ValidatingWebhookConfiguration]{&admissionregistrationv1.ValidatingWebhookConfiguration{
			Webhooks: make([]admissionregistrationv1.ValidatingWebhook, 2)}, webhooks},
		&stored[*apiregistrationv1.APIService]{&apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.served"},
			Spec: apiregistrationv1.APIServiceSpec{Service: &apiregistrationv1.ServiceReference{Namespace: "kubevirt", Name: "virt-api"}}}, webhooks}, &stored[*corev1.ConfigMap]{&corev1.ConfigMap{}, webhooks},
		clocktesting.NewFakePassiveClock(start)}
}

// services are the one that virt-api serves, and another's.
type services struct {
	*servings
	// fails is the error of Update; nil for none.
	fails error
}

func (s services) All() []apiregistrationv1.APIService {
	all := []apiregistrationv1.APIService{{ObjectMeta: metav1.ObjectMeta{Name: "v1.another"}}}
	if served := s.service.Get(); served != nil {
		all = append(all, *served)
	}
	return all
}

func (s services) Update(ctx context.Context, object *apiregistrationv1.APIService) error {
	if object.Name != s.service.object.Name {
		s.t.Errorf("APIService %s is written", object.Name)
	}
	if s.fails != nil {
		return s.fails
	}
	return s.service.Update(ctx, object)
}

func (s *servings) add() *Certificate {
	return &Certificate{CA: s.secret, Mutating: s.mutating, Validating: s.validating, APIServices: services{servings: s}, ServedNames: []string{"v1.served"}, Published: s.published, Clock: s.clock, Log: logr.Discard(), DNSNames: []string{ServiceName}}
}

func step(t *testing.T, c *Certificate) time.Duration {
	t.Helper()
	wait, err := c.step(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return wait
}

// believed says whether every webhook's bundle proves what a virt-api serves.
func (s *servings) believed(from *Certificate) {
	s.t.Helper()
	mutating, validating := s.mutating.object, s.validating.object
	served, err := from.GetCertificate(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, bundle := range [][]byte{mutating.Webhooks[0].ClientConfig.CABundle, validating.Webhooks[0].ClientConfig.CABundle, validating.Webhooks[1].ClientConfig.CABundle, s.service.object.Spec.CABundle} {
		believed, err := authority.Parse(bundle, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		if _, err := served.Leaf.Verify(verifyServing(believed, s.clock.Now())); err != nil {
			s.t.Errorf("%s: %v", s.clock.Now(), err)
		}
	}
}

// letIn says whether virt-handlers let a virt-api in: by the CA that is
// published, as a client and nothing else.
func (s *servings) letIn(from *Certificate) {
	s.t.Helper()
	shown, err := from.GetClientCertificate(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	roots, err := authority.Pool(s.published.object.Data[authority.BundleEntry])
	if err != nil {
		s.t.Fatal(err)
	}
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{shown.Leaf}}
	if name, err := authority.Peer(state, authority.APIClient, roots, s.clock.Now()); err != nil || name != authority.APIName {
		s.t.Errorf("%s: virt-api is %q: %v", s.clock.Now(), name, err)
	}
	for _, other := range []authority.Role{authority.HandlerClient, authority.HandlerServer} {
		if _, err := authority.Peer(state, other, roots, s.clock.Now()); err == nil {
			s.t.Errorf("virt-api's certificate passes for %s", other)
		}
	}
	served, _ := from.GetCertificate(nil)
	state.PeerCertificates[0] = served.Leaf
	if _, err := authority.Peer(state, authority.APIClient, roots, s.clock.Now()); err == nil {
		s.t.Error("what virt-api serves with lets it in")
	}
}

// TestRotatedCertificatesAreBelieved: over two months, whatever two virt-apis serve is believed.
func TestRotatedCertificatesAreBelieved(t *testing.T) { rotate(t, 2*time.Hour) }

// rotate lets two virt-apis serve for two months, and looks at least once in each interval.
func rotate(t *testing.T, interval time.Duration) {
	t.Helper()
	s := newServings(t, true)
	one, two := s.add(), s.add()
	issuers := map[string]bool{}
	var served []string
	for end := start.Add(60 * 24 * time.Hour); s.clock.Now().Before(end); {
		wait := min(step(t, one), step(t, two))
		s.believed(one)
		s.believed(two)
		s.letIn(one)
		if err := errors.Join(one.Ready(), two.Ready()); err != nil {
			t.Fatalf("%s: %v", s.clock.Now(), err)
		}
		if wait <= 0 {
			t.Fatalf("%s: the next look is in %s", s.clock.Now(), wait)
		}
		wait = min(wait, interval)
		leaf := one.current.Load().Leaf
		issuers[leaf.Issuer.CommonName] = true
		if n := leaf.SerialNumber.String(); len(served) == 0 || served[len(served)-1] != n {
			served = append(served, n)
		}
		s.clock.SetTime(s.clock.Now().Add(wait))
	}
	if len(issuers) != 3 || len(served) < 80 || len(served) > 100 {
		t.Errorf("%d CAs, %d certificates; want 3, and three in two days", len(issuers), len(served))
	}
	if one.current.Load().Leaf.Equal(two.current.Load().Leaf) {
		t.Error("two virt-apis share a certificate")
	}
}

// TestWebhooksWorkWithoutRightOnAPIService: virt-api serves its webhooks though it may not write an APIService.
func TestWebhooksWorkWithoutRightOnAPIService(t *testing.T) {
	s := newServings(t, true)
	c, forbidden := s.add(), errors.New("no right to write it")
	c.APIServices = services{s, forbidden}
	if _, err := c.step(t.Context()); !errors.Is(err, forbidden) {
		t.Errorf("%v, want the error, for the log", err)
	}
	if err := c.Ready(); err != nil || len(s.mutating.object.Webhooks[0].ClientConfig.CABundle) == 0 || s.published.object.Data[authority.BundleEntry] == "" {
		t.Errorf("%v, webhooks %+v", err, s.mutating.object.Webhooks)
	}
	c.APIServices = services{servings: s}
	step(t, c)
	s.believed(c)
}

// TestAPIServiceOfAnotherIsLeftAlone: an APIService of virt-api's name that leads to another server is left alone.
func TestAPIServiceOfAnotherIsLeftAlone(t *testing.T) {
	s := newServings(t, true)
	s.service.object.Spec.Service.Name = "cdi-api"
	step(t, s.add())
	if bundle := s.service.object.Spec.CABundle; len(bundle) > 0 {
		t.Errorf("virt-api's CA was written: %s", bundle)
	}
}

func TestReadyOnlyWithAValidCertificate(t *testing.T) {
	s := newServings(t, true)
	serving := s.add()
	if _, err := serving.GetCertificate(nil); err == nil || serving.Ready() == nil {
		t.Error("ready without a certificate")
	}
	step(t, serving)
	if err := serving.Ready(); err != nil {
		t.Error(err)
	}
	s.clock.SetTime(start.Add(authority.CertificateLife))
	if serving.Ready() == nil {
		t.Error("ready with a certificate that has expired")
	}
}

// TestClockThatWasAheadLeavesNothingBad: a clock that was ahead, for a minute or for days, leaves
// nothing behind that is refused once it is right again, and Ready tells until it
// is repaired.
func TestClockThatWasAheadLeavesNothingBad(t *testing.T) {
	const day = 24 * time.Hour
	for name, c := range map[string]struct{ ahead, lasts time.Duration }{
		"two days, for a minute":        {2 * day, time.Minute},
		"until the CA is renewed":       {25 * day, time.Minute},
		"until the CA has expired":      {40 * day, time.Minute},
		"years, for a minute":           {3000 * day, time.Minute},
		"years, until the CA signs":     {3000 * day, 2 * time.Hour},
		"years, until another CA signs": {3000 * day, 50 * day},
		"years behind, for a minute":    {-3000 * day, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServings(t, true)
			one, two := s.add(), s.add()
			step(t, one)
			step(t, two)
			s.clock.SetTime(start.Add(day))
			step(t, one)
			s.clock.SetTime(start.Add(day + c.ahead))
			step(t, one)
			s.believed(one)
			s.letIn(one)
			for end := s.clock.Now().Add(c.lasts); s.clock.Now().Before(end); {
				s.clock.SetTime(s.clock.Now().Add(min(step(t, one), end.Sub(s.clock.Now()))))
			}
			step(t, one)
			s.clock.SetTime(start.Add(day + c.lasts))
			if c.ahead > 0 && one.Ready() == nil {
				t.Error("ready with a certificate of the future")
			}
			for range 3 {
				step(t, one)
				step(t, two)
				for _, c := range []*Certificate{one, two} {
					s.believed(c)
					s.letIn(c)
					if err := c.Ready(); err != nil {
						t.Error(err)
					}
				}
			}
			// And so it stays, until every CA that is there now is gone.
			for end := s.clock.Now().Add(45 * day); s.clock.Now().Before(end); s.clock.SetTime(s.clock.Now().Add(min(step(t, one), day/2))) {
				s.believed(one)
			}
			if text, _ := authority.Parse(s.secret.object.Data[caCertificates], nil); len(text) > 3 {
				t.Errorf("%d CAs are left", len(text))
			}
		})
	}
}

// TestServersWithDifferentClocksAgree: two virt-apis, of which one has a clock that is a year ahead,
// do not undo each other's work in turn, and what the other one serves is believed.
func TestServersWithDifferentClocksAgree(t *testing.T) {
	s := newServings(t, true)
	one, two := s.add(), s.add()
	ahead := clocktesting.NewFakePassiveClock(start)
	two.Clock = ahead
	step(t, one)
	for range 200 {
		ahead.SetTime(s.clock.Now().Add(365 * 24 * time.Hour))
		step(t, two)
		step(t, one)
		s.believed(one)
		s.clock.SetTime(s.clock.Now().Add(time.Minute))
	}
	if version := s.secret.object.GetResourceVersion(); version != "2" {
		t.Errorf("the Secret was written %s times, want once by each", version)
	}
}

// TestServingGoesOnWithoutWebhooks: somebody took them away; what else is served goes on.
func TestServingGoesOnWithoutWebhooks(t *testing.T) {
	serving := newServings(t, false).add()
	step(t, serving)
	if err := serving.Ready(); err != nil {
		t.Error(err)
	}
}

// TestEmptiedSecretGetsANewCA: a new CA is told of, and signs, at once.
func TestEmptiedSecretGetsANewCA(t *testing.T) {
	s := newServings(t, true)
	serving := s.add()
	step(t, serving)
	before := serving.current.Load().Leaf
	s.secret.object.Data = nil
	step(t, serving)
	s.believed(serving)
	if serving.current.Load().Leaf.Equal(before) {
		t.Error("the certificate of the CA that was taken away is still served")
	}
	s.secret.object.Data = map[string][]byte{caCertificates: []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")}
	if _, err := serving.step(context.Background()); err == nil {
		t.Error("garbage is taken for a CA")
	}
	if err := serving.Ready(); err != nil {
		t.Errorf("garbage in the Secret ends what was served: %v", err)
	}
}

// TestStaleRotationLooksAgain: of two that rotate at once, one must look again.
func TestStaleRotationLooksAgain(t *testing.T) {
	s := newServings(t, true)
	one, two := s.add(), s.add()
	two.CA = stale{s.secret, s.secret.Get()}
	step(t, one)
	if _, err := two.step(context.Background()); !apierrors.IsConflict(err) || two.Ready() == nil {
		t.Errorf("%v, ready: %v", err, two.Ready())
	}
	two.CA = s.secret
	step(t, two)
	s.believed(one)
	s.believed(two)
}

// stale is what was seen before.
type stale struct {
	*stored[*corev1.Secret]
	seen *corev1.Secret
}

func (s stale) Get() *corev1.Secret { return s.seen.DeepCopy() }

func verifyServing(believed authority.CAs, now time.Time) x509.VerifyOptions {
	roots := x509.NewCertPool()
	for _, a := range believed {
		roots.AddCert(a.Certificate)
	}
	return x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: ServiceName}
}
