package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// Source holds the certificates of this node's virt-handler, one for each role. It renews them
// when two thirds of their life are over. The keys exist only in memory; a virt-handler that
// starts asks for new certificates.
//
// client-go's certificate manager would do the same, but it needs the rights to list and watch
// requests. This one creates and gets them: an intruder on a node can read less.
type Source struct {
	Node   string
	Writer client.Writer
	// Reader must read past any cache, because a cache lists and watches.
	Reader client.Reader
	Clock  clock.Clock
	Log    logr.Logger

	client, server atomic.Pointer[tls.Certificate]
}

func (s *Source) held(r Role) *atomic.Pointer[tls.Certificate] {
	if r == Server {
		return &s.server
	}
	return &s.client
}

// GetCertificate is for tls.Config: it returns the present server certificate.
func (s *Source) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return s.get(Server)
}

// GetClientCertificate is for tls.Config: it returns the present client certificate.
func (s *Source) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return s.get(Client)
}

func (s *Source) get(r Role) (*tls.Certificate, error) {
	held := s.held(r).Load()
	if held == nil {
		return nil, fmt.Errorf("certificate %s has not been issued yet", r)
	}
	switch now := s.Clock.Now(); {
	case !now.Before(held.Leaf.NotAfter):
		return nil, fmt.Errorf("certificate %s expired at %s", r, held.Leaf.NotAfter.Format(time.RFC3339))
	case now.Before(held.Leaf.NotBefore):
		return nil, early(r, held.Leaf)
	}
	return held, nil
}

func early(r Role, c *x509.Certificate) error {
	return fmt.Errorf("certificate %s is not valid before %s; the clock of this node or of virt-controller's is wrong, or was", r, c.NotBefore.Format(time.RFC3339))
}

// Ready is a healthz.Checker. It returns nil if all certificates are there and valid.
func (s *Source) Ready(*http.Request) error {
	var errs []error
	for _, r := range roles {
		_, err := s.get(r)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Start keeps the certificates until ctx ends. It is a manager.Runnable.
func (s *Source) Start(ctx context.Context) error {
	var wait sync.WaitGroup
	for _, r := range roles {
		wait.Go(func() { s.renew(ctx, r) })
	}
	wait.Wait()
	return nil
}

const (
	// answerTimeout is how long to wait for the answer to a request. kube-controller-manager
	// removes a pending request after a day.
	answerTimeout = 15 * time.Minute
	firstDelay    = 250 * time.Millisecond // between looks at a request
	longestDelay  = 5 * time.Second
	// retryDelay is the wait after a request that failed or was denied. The next one may fail,
	// too, and kube-controller-manager keeps each for an hour.
	retryDelay = time.Minute
)

// renew gets the certificate of one role, and another before the first expires, until ctx ends.
func (s *Source) renew(ctx context.Context, r Role) {
	log := s.Log.WithValues("role", r)
	for ctx.Err() == nil {
		next := s.Clock.Now().Add(retryDelay)
		issued, err := s.request(ctx, r)
		if err == nil && s.Clock.Now().Before(issued.Leaf.NotBefore) {
			// A certificate that is not valid yet must not replace a valid one.
			err = early(r, issued.Leaf)
		}
		if err == nil {
			s.held(r).Store(issued)
			next = renewal(issued.Leaf)
			log.Info("certificate issued", "notAfter", issued.Leaf.NotAfter, "renewAt", next)
		} else if ctx.Err() == nil {
			log.Error(err, "get certificate", "retryIn", retryDelay.String())
		}
		// Waits in steps: a timer does not notice that the clock was set, or that the machine
		// slept.
		for ok := s.waited(ctx, retryDelay); ok && s.Clock.Now().Before(next) && s.believed(r); ok = s.waited(ctx, retryDelay) {
		}
	}
}

// believed says whether the held certificate is valid already, or there is none. A certificate
// can be from the future if the clock was set back.
func (s *Source) believed(r Role) bool {
	held := s.held(r).Load()
	return held == nil || !s.Clock.Now().Before(held.Leaf.NotBefore)
}

// renewal is when a certificate is to be replaced: when two thirds of its life are over, or up
// to a tenth of its life earlier, at random, so that the nodes of a cluster do not renew at
// once.
func renewal(c *x509.Certificate) time.Time {
	early := time.Duration(mathrand.Int64N(int64(c.NotAfter.Sub(c.NotBefore) / 10)))
	return authority.RenewAt(c).Add(-early)
}

// waited waits, and returns false if ctx ended meanwhile.
func (s *Source) waited(ctx context.Context, d time.Duration) bool {
	timer := s.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// request makes a key, and gets a certificate for it.
func (s *Source) request(ctx context.Context, r Role) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	text, err := newRequest(r, s.Node, key)
	if err != nil {
		return nil, err
	}
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: strings.ReplaceAll(strings.TrimPrefix(string(r), "kubevirt.io:"), ":", "-") + "-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{Request: text, SignerName: SignerName, Usages: usages(r),
			ExpirationSeconds: ptr.To(int32(authority.CertificateLife / time.Second))},
	}
	if err := s.Writer.Create(ctx, csr); err != nil {
		return nil, fmt.Errorf("file certificate request: %w", err)
	}
	answer, err := s.answer(ctx, csr)
	if err != nil {
		return nil, fmt.Errorf("certificate request %s: %w", csr.Name, err)
	}
	return issuedFor(answer, key)
}

// answer waits until a request is answered, and returns the certificate.
func (s *Source) answer(ctx context.Context, filed *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	deadline := s.Clock.Now().Add(answerTimeout)
	var lastErr error
	for delay := firstDelay; s.Clock.Now().Before(deadline); delay = min(2*delay, longestDelay) {
		if !s.waited(ctx, delay) {
			return nil, ctx.Err()
		}
		now := &certificatesv1.CertificateSigningRequest{}
		if lastErr = s.Reader.Get(ctx, client.ObjectKeyFromObject(filed), now); lastErr != nil {
			if client.IgnoreNotFound(lastErr) == nil {
				return nil, lastErr
			}
			continue // the API server may be away for a while
		}
		if len(now.Status.Certificate) > 0 && now.UID == filed.UID {
			return now.Status.Certificate, nil
		}
		for _, c := range now.Status.Conditions {
			if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
				return nil, fmt.Errorf("it was %s (%s): %s", strings.ToLower(string(c.Type)), c.Reason, c.Message)
			}
		}
	}
	return nil, errors.Join(fmt.Errorf("virt-controller did not answer within %s", answerTimeout), lastErr)
}

// issuedFor joins a certificate with its key.
func issuedFor(text []byte, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != authority.CertificateBlock {
		return nil, errors.New("what was issued is not a certificate in PEM")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read issued certificate: %w", err)
	}
	if !key.PublicKey.Equal(leaf.PublicKey) {
		return nil, errors.New("the issued certificate is for another key")
	}
	return &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key, Leaf: leaf}, nil
}
