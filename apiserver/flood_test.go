package apiserver

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/admission"
	"github.com/kubeqemu/kubeqemu/apiserver/objects"
	"github.com/kubeqemu/kubeqemu/internal/intake"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// flooded is virt-api's server, and those who send it what they like.
type flooded struct {
	t       *testing.T
	address string
	before  uint64
}

func newFlooded(t *testing.T) *flooded {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	bodies := intake.NewBodies(maxReviews)
	bodies.Timeout = time.Hour // who gets on, did not wait for that
	s := &Server{options: Options{Log: logr.Discard(), Clock: clock.RealClock{}}, mux: http.NewServeMux(), frontProxy: &objects.Watched[corev1.ConfigMap, *corev1.ConfigMap]{}}
	admission.Register(s.mux, func(context.Context) (admission.Facts, error) {
		return admission.Facts{Cluster: &v1.KubeVirtConfiguration{}}, nil
	}, func(context.Context, string) (bool, error) { return false, nil }, bodies)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := s.secure(inner, func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
	})
	// It is ended by its listener: the last call is another test's.
	go s.serve(t.Context(), listener, s.mux)
	t.Cleanup(func() { inner.Close() })
	return &flooded{t, inner.Addr().String(), heap()}
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapInuse
}

func (f *flooded) dial(from string) *tls.Conn {
	f.t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", f.address)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
}

// check has virt-api take little memory, and answer reviews soon, whoever asks.
func (f *flooded) check(during string, most uint64, flood func()) {
	f.t.Helper()
	testkit.Soon(f.t, "a review during "+during, 8*time.Second, func() (slowest time.Duration) { // heads may take 10 s
		flood()
		for _, from := range []string{"127.0.0.1", "127.0.0.2"} {
			slowest = max(slowest, f.review(during, from))
		}
		return slowest
	})
	after := heap()
	f.t.Logf("during %s: %d MiB", during, (int64(after)-int64(f.before))>>20)
	if after > f.before+most {
		f.t.Errorf("during %s it takes %d MiB", during, (after-f.before)>>20)
	}
}

// review says how long the answer to a review takes.
func (f *flooded) review(during, from string) time.Duration {
	f.t.Helper()
	began := time.Now()
	conn := f.dial(from)
	defer conn.Close()
	body := `{"apiVersion":"admission.k8s.io/v1","request":{"uid":"1","object":{"spec":{"domain":{"memory":{"guest":"1Gi"}}}}}}`
	fmt.Fprintf(conn, "POST /virtualmachineinstances-mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != http.StatusOK {
		f.t.Fatalf("during %s, a review from %s: %+v, %v", during, from, response, err)
	}
	return time.Since(began)
}

// TestHalfSentRequestsCostLittle: who sends half of something, as much and as often as they like,
// costs virt-api little, and keeps no review waiting.
func TestHalfSentRequestsCostLittle(t *testing.T) {
	f := newFlooded(t)
	// Three quarters of it.
	half := strings.Repeat(" ", admission.MaxReview*3/4)
	var fields strings.Builder
	for i := range 1200 {
		fmt.Fprintf(&fields, "%x:\r\n", i)
	}
	flood := func(conns int, head, body string) func() {
		return func() {
			for range conns {
				conn := f.dial("127.0.0.2")
				_, _ = io.WriteString(conn, head)
				_, _ = io.WriteString(conn, body)
			}
		}
	}
	const mutate = "POST /virtualmachineinstances-mutate HTTP/1.1\r\nHost: x\r\n"
	f.check("half-sent reviews", 64<<20, flood(20, fmt.Sprintf(mutate+"Content-Length: %d\r\n\r\n", admission.MaxReview), half))
	f.check("half-sent chunks", 64<<20, flood(20, fmt.Sprintf(mutate+"Transfer-Encoding: chunked\r\n\r\n%x\r\n", admission.MaxReview), half))
	f.check("silence", 64<<20, func() {
		for range maxStrangers + 40 {
			f.dial("127.0.0.2")
		}
	})
	f.check("half-sent heads", 96<<20, flood(100, "POST / HTTP/1.1\r\nHost: x\r\n", fields.String()))
	f.check("half-sent small reviews", 64<<20,
		flood(maxStrangers+40, "POST /virtualmachineinstances-validate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", ""))
}
