// Package admission holds the webhooks of config/api against a real API server.
package admission

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver"
	"github.com/kubeqemu/kubeqemu/apiserver/callers/callerstest"
	"github.com/kubeqemu/kubeqemu/apiserver/serving"
	testserver "github.com/kubeqemu/kubeqemu/test/apiserver"
)

const (
	controllerAccount = "system:serviceaccount:kubevirt:virt-controller"
	handlerAccount    = "system:serviceaccount:kubevirt:virt-handler"
	timeout           = 60 * time.Second
)

// testServer is a real API server with what config/api installs, and virt-api's
// server beside it on the loopback.
type testServer struct {
	t      *testing.T
	config *rest.Config
	scheme *runtime.Scheme
	admin  client.Client
	port   int
	clock  *clocktesting.FakePassiveClock
	plane  *testserver.Server
	// wrap is what users' requests go through; nil for nothing.
	wrap func(http.RoundTripper) http.RoundTripper
	// uploads: virt-api takes uploaded images.
	uploads bool
}

func newTestServer(t *testing.T) *testServer {
	t.Helper()
	plane := testserver.Start(t, frontProxy(t)...)
	plane.Kubectl("apply", "--server-side", "-k", "../../config/crd")
	plane.Kubectl("wait", "--for=condition=established", "--timeout=60s", "crd", "--all")
	plane.Kubectl("create", "serviceaccount", "default") // kube-controller-manager's work
	s := &testServer{t: t, plane: plane, config: plane.Config, scheme: runtime.NewScheme(), clock: clocktesting.NewFakePassiveClock(time.Now())}
	if err := errors.Join(corev1.AddToScheme(s.scheme), rbacv1.AddToScheme(s.scheme), admissionregistrationv1.AddToScheme(s.scheme), v1.AddToScheme(s.scheme)); err != nil {
		t.Fatal(err)
	}
	s.admin = s.as("")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.port = listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	s.install()
	return s
}

// frontProxy returns the arguments of an API server that passes on requests.
func frontProxy(t *testing.T) []string {
	t.Helper()
	ca, folder := callerstest.NewCA(t), t.TempDir()
	certificate, key := ca.Issue(&x509.Certificate{Subject: pkix.Name{CommonName: "front-proxy-client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: time.Unix(0, 0), NotAfter: callerstest.Now})
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	authority, cert, keyFile := filepath.Join(folder, "ca.crt"), filepath.Join(folder, "client.crt"), filepath.Join(folder, "client.key")
	if err := errors.Join(os.WriteFile(authority, []byte(ca.Published("")["requestheader-client-ca-file"]), 0o600),
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}), 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}), 0o600)); err != nil {
		t.Fatal(err)
	}
	return []string{"--requestheader-client-ca-file=" + authority, "--proxy-client-cert-file=" + cert, "--proxy-client-key-file=" + keyFile,
		"--requestheader-allowed-names=front-proxy-client", "--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-"}
}

// as returns a client of a user; without a name, the administrator's.
func (s *testServer) as(user string) client.Client {
	s.t.Helper()
	return s.onNode(user, "")
}

// onNode returns a client of a user whose token is of a pod on a node.
func (s *testServer) onNode(user, node string) client.Client {
	s.t.Helper()
	config := rest.CopyConfig(s.config)
	if user != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	}
	if node != "" {
		config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	return s.client(config)
}

func (s *testServer) client(config *rest.Config) client.Client {
	s.t.Helper()
	if user := config.Impersonate.UserName; s.wrap != nil && user != controllerAccount && user != handlerAccount {
		config.Wrap(s.wrap)
	}
	c, err := client.New(config, client.Options{Scheme: s.scheme})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// install applies what config/api has for the API server, with webhooks that it
// reaches: there is no Service here.
func (s *testServer) install() {
	s.t.Helper()
	if err := s.admin.Create(s.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1.KubeVirtNamespace}}); err != nil {
		s.t.Fatal(err)
	}
	for _, file := range []string{"api/rbac.yaml", "api/webhooks.yaml", "older-versions/rbac.yaml", "api/vmi-update.yaml", "api/kubevirt-anywhere.yaml", "rbac/launcher-pods.yaml", "rbac/handler-own-node.yaml", "rbac/migrations.yaml", "rbac/controller-pod-condition.yaml", "rbac/controller-data-volumes.yaml", "rbac/controller-claims.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../config", file))
		if err != nil {
			s.t.Fatal(err)
		}
		for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
			object := &unstructured.Unstructured{}
			if err := decoder.Decode(object); err != nil {
				break // the end
			}
			hooks, _, _ := unstructured.NestedSlice(object.Object, "webhooks")
			for _, hook := range hooks {
				path, _, _ := unstructured.NestedString(hook.(map[string]any), "clientConfig", "service", "path")
				hook.(map[string]any)["clientConfig"] = map[string]any{"url": fmt.Sprintf("https://localhost:%d%s", s.port, path)}
			}
			if len(hooks) > 0 {
				object.Object["webhooks"] = hooks
			}
			if err := s.admin.Create(s.t.Context(), object); err != nil {
				s.t.Fatalf("%s: %v", file, err)
			}
		}
	}
}

// serve runs virt-api, with its own rights, until stop is called. It is ready
// when serve returns.
func (s *testServer) serve() (stop func()) {
	s.t.Helper()
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:kubevirt:virt-api", Groups: []string{"system:authenticated"}}
	api, err := apiserver.New(config, apiserver.Options{Address: fmt.Sprintf("localhost:%d", s.port), DNSNames: []string{"localhost", serving.ServiceName},
		Clock: s.clock, Log: testr.New(s.t), DataVolumes: s.uploads})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- api.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(stop)
	s.poll("virt-api becomes ready", api.Ready)
	// The API server hears of the CA by a watch of its own.
	s.poll("the API server believes the certificate", func() error {
		return s.admin.Create(context.Background(), tiny("probe"), client.DryRunAll)
	})
	return stop
}

// configure changes the cluster's configuration, until virt-api knows.
func (s *testServer) configure(t *testing.T, config v1.KubeVirtConfiguration) {
	t.Helper()
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Name: "kubevirt"}}
	_, err := controllerutil.CreateOrUpdate(t.Context(), s.admin, kv, func() error {
		kv.Spec.Configuration = config
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.poll("virt-api knows the configuration", func() error {
		vmi := tiny("configured")
		if err := s.admin.Create(t.Context(), vmi, client.DryRunAll); err != nil {
			return err
		}
		if got := vmi.Spec.Domain.CPU.Model; got != cmp.Or(config.CPUModel, "host-model") {
			return fmt.Errorf("the CPU model is %s", got)
		}
		return nil
	})
}

func (s *testServer) poll(what string, ask func() error) {
	s.t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

const agedCA = "an aged CA"

// useAgedCA has virt-api find a CA that was made some time ago.
func (s *testServer) useAgedCA(t *testing.T, made time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: agedCA}, NotBefore: made, NotAfter: made.Add(30 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	secret := s.secret(t)
	secret.Data = map[string][]byte{
		"ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		"ca.key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
	}
	if err := s.admin.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

func (s *testServer) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := s.admin.Get(t.Context(), types.NamespacedName{Namespace: v1.KubeVirtNamespace, Name: serving.SecretName}, secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

// wake sets virt-api's clock and has it look: its timers do not go by that clock.
func (s *testServer) wake(t *testing.T, now time.Time) {
	t.Helper()
	s.clock.SetTime(now)
	secret := s.secret(t)
	secret.Labels = map[string]string{"wake": now.Format("150405")}
	if err := s.admin.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

// peer is the certificate that is served.
func (s *testServer) peer(t *testing.T) *x509.Certificate {
	t.Helper()
	connection, err := tls.Dial("tcp", fmt.Sprintf("localhost:%d", s.port), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	return connection.ConnectionState().PeerCertificates[0]
}
