// Package admission holds the webhooks of config/api against a real API server.
package admission

import (
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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver"
	"github.com/kubeqemu/kubeqemu/apiserver/callers/callerstest"
	"github.com/kubeqemu/kubeqemu/apiserver/serving"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	testserver "github.com/kubeqemu/kubeqemu/test/apiserver"
)

const (
	controllerAccount = "system:serviceaccount:kubevirt:virt-controller"
	handlerAccount    = "system:serviceaccount:kubevirt:virt-handler"
)

// shared is a real API server with what config/default installs, but for the components. Its webhooks ask at the
// port.
var (
	shared = testserver.Shared{Arguments: frontProxy, Install: install}
	port   int
)

func TestMain(m *testing.M) { os.Exit(shared.Tests(m).Run()) }

// testServer is the API server in the hands of one test, and virt-api's server beside it on the loopback. The tests
// come one after the other: each has its own virt-api, and the cluster's configuration.
type testServer struct {
	t      *testing.T
	config *rest.Config
	scheme *runtime.Scheme
	admin  client.Client
	mapper meta.RESTMapper
	port   int
	clock  *clocktesting.FakePassiveClock
	plane  *testserver.Space
	// wrap is what users' requests go through; nil for nothing.
	wrap func(http.RoundTripper) http.RoundTripper
	// uploads: virt-api takes uploaded images.
	uploads bool
}

func newTestServer(t *testing.T) *testServer {
	t.Helper()
	plane := shared.Server(t).In(t, metav1.NamespaceDefault)
	s := &testServer{t: t, plane: plane, config: plane.Config, scheme: runtime.NewScheme(), port: port,
		clock: clocktesting.NewFakePassiveClock(time.Now())}
	if err := errors.Join(scheme.AddToScheme(s.scheme), v1.AddToScheme(s.scheme)); err != nil {
		t.Fatal(err)
	}
	s.admin = s.as("")
	s.mapper = s.admin.RESTMapper()
	t.Cleanup(s.clear)
	return s
}

// clear deletes what a test left in the namespaces, and virt-api's CA.
func (s *testServer) clear() {
	s.wrap = nil
	s.admin = s.as("")
	ctx, controller := context.Background(), s.as(controllerAccount)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Name: serving.SecretName}}
	if err := s.admin.Patch(ctx, secret, client.RawPatch(types.MergePatchType, []byte(`{"data":null}`))); err != nil {
		s.t.Error(err)
	}
	for _, kind := range []schema.GroupVersionKind{
		{Version: "v1", Kind: "Pod"}, {Version: "v1", Kind: "PersistentVolumeClaim"}, {Version: "v1", Kind: "Node"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
		v1.GroupVersion.WithKind("KubeVirt"), v1.GroupVersion.WithKind("VirtualMachine"), v1.GroupVersion.WithKind("VirtualMachineInstance"),
		v1.GroupVersion.WithKind("VirtualMachineInstanceMigration"), v1.GroupVersion.WithKind("VirtualMachineInstancePreset"),
		v1.GroupVersion.WithKind("VirtualMachineInstanceReplicaSet"), {Group: "pool.kubevirt.io", Version: "v1beta1", Kind: "VirtualMachinePool"},
	} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		if err := s.admin.List(ctx, list); err != nil {
			s.t.Error(err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			if strings.HasPrefix(o.Namespace, "kube-") || strings.HasPrefix(o.Name, "kubevirt-") {
				continue // the API server's, and what was installed
			}
			o.SetGroupVersionKind(kind)
			deleter := s.admin
			if kind.Kind == "VirtualMachineInstanceMigration" {
				deleter = controller // in post-copy too
			}
			err := deleter.Delete(ctx, o, client.GracePeriodSeconds(0))
			if err == nil && len(o.Finalizers) > 0 {
				err = s.admin.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
			}
			if client.IgnoreNotFound(err) != nil {
				s.t.Error(err)
			}
		}
	}
}

// frontProxy returns the arguments of an API server that passes on requests.
func frontProxy(t *testing.T, folder string) []string {
	t.Helper()
	ca := callerstest.NewCA(t)
	certificate, key := ca.Issue(&x509.Certificate{Subject: pkix.Name{CommonName: "front-proxy-client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: time.Unix(0, 0), NotAfter: callerstest.Now})
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	authority, cert, keyFile := filepath.Join(folder, "front-proxy-ca.crt"), filepath.Join(folder, "front-proxy.crt"), filepath.Join(folder, "front-proxy.key")
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
	c, err := client.New(config, client.Options{Scheme: s.scheme, Mapper: s.mapper})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// install applies what config/default has, but for the components, with webhooks that the API server reaches: there
// is no network of Services here.
func install(server *testserver.Server) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port = listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	objects, err := testserver.Read("../../config/default/namespace.yaml", "../../config/crd", "../../config/rbac",
		"../../config/api/rbac.yaml", "../../config/api/vmi-update.yaml", "../../config/api/kubevirt-anywhere.yaml",
		"../../config/older-versions/rbac.yaml", webhooks)
	if err != nil {
		return err
	}
	service, err := testserver.Parse(`
apiVersion: v1
kind: Service
metadata: {name: virt-api, namespace: kubevirt}
spec: {type: ExternalName, externalName: localhost}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: default}} # kube-controller-manager's work
`)
	if err != nil {
		return err
	}
	return server.Apply(context.Background(), append(reached(objects), service...)...)
}

const webhooks = "../../config/api/webhooks.yaml"

// reached makes the webhooks among objects ask at the port, and wait as long for the answer as the API server allows:
// beside other tests virt-api may not run for the seconds that it has in a cluster.
func reached(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	for _, object := range objects {
		hooks, _, _ := unstructured.NestedSlice(object.Object, "webhooks")
		for _, hook := range hooks {
			path, _, _ := unstructured.NestedString(hook.(map[string]any), "clientConfig", "service", "path")
			hook.(map[string]any)["clientConfig"] = map[string]any{"url": fmt.Sprintf("https://localhost:%d%s", port, path)}
			hook.(map[string]any)["timeoutSeconds"] = int64(30)
		}
		if len(hooks) > 0 {
			object.Object["webhooks"] = hooks
		}
	}
	return objects
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
	testkit.Eventually(s.t, what, ask)
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
