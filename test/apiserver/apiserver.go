// Package apiserver starts a real etcd and kube-apiserver for tests of what
// only they can judge: schemas and their rules, rights, admission policies,
// what a watch shows when. Nothing else of Kubernetes runs: no pod is ever
// scheduled, no garbage is collected.
package apiserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// startTimeout is generous: the machine may be busy.
const startTimeout = 10 * time.Minute

// Server is a running kube-apiserver.
type Server struct {
	// Config is the administrator's.
	Config *rest.Config

	bin        string
	kubeconfig string
	programs   []*program
	client     func() (client.WithWatch, error)
}

// program is etcd or kube-apiserver.
type program struct {
	name string
	cmd  *exec.Cmd
	log  *os.File
}

// Run starts an API server with the programs of the folder bin. All that it writes goes
// into the other folder. The arguments are kube-apiserver's, besides its usual ones.
// Close ends it. Tests have one together: Shared.
func Run(bin, folder string, args ...string) (*Server, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, fmt.Errorf("find free ports: %w", err)
	}
	etcd, peer := url("http", ports[0]), url("http", ports[1])
	tokens, key, token := filepath.Join(folder, "tokens.csv"), filepath.Join(folder, "apiserver.key"), rand.Text()
	certificate, err := writeCertificate(filepath.Join(folder, "apiserver.crt"), key)
	if err := errors.Join(err, os.WriteFile(tokens, []byte(token+",admin,admin,system:masters\n"), 0o600)); err != nil {
		return nil, err
	}
	s := &Server{bin: bin, kubeconfig: filepath.Join(folder, "kubeconfig"), Config: &rest.Config{
		Host: url("https", ports[2]), BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: certificate},
	}}
	s.client = sync.OnceValues(func() (client.WithWatch, error) { return client.NewWithWatch(s.Config, client.Options{}) })
	err = s.run(folder, "etcd",
		"--data-dir="+filepath.Join(folder, "etcd"), "--unsafe-no-fsync", "--log-level=warn", "--name=test",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=test="+peer)
	if err == nil {
		err = s.run(folder, "kube-apiserver", append([]string{
			"--etcd-servers=" + etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[2]),
			"--tls-cert-file=" + filepath.Join(folder, "apiserver.crt"), "--tls-private-key-file=" + key,
			"--token-auth-file=" + tokens, "--authorization-mode=RBAC", "--allow-privileged=true",
			"--service-cluster-ip-range=10.202.0.0/24", "--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + key, "--service-account-signing-key-file=" + key, "--profiling=false"}, args...)...)
	}
	if err == nil {
		if err = s.await(); err != nil {
			text, _ := os.ReadFile(filepath.Join(folder, "kube-apiserver.log"))
			err = fmt.Errorf("start kube-apiserver: %w\n%s", err, text[max(0, len(text)-4000):])
		}
	}
	if err == nil {
		err = s.writeKubeconfig(s.kubeconfig, metav1.NamespaceDefault)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// run starts a program, whose log is in the folder.
func (s *Server) run(folder, name string, args ...string) error {
	log, err := os.Create(filepath.Join(folder, name+".log"))
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Stdout, cmd.Stderr = log, log
	// A fifth of the CPU time, for a quarter more memory: a test's API server does not live long.
	cmd.Env = append(os.Environ(), "GOGC=200")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		log.Close()
		return fmt.Errorf("start %s: %w", name, err)
	}
	s.programs = append(s.programs, &program{name, cmd, log})
	return nil
}

// Close kills etcd and kube-apiserver, and waits until they are gone.
func (s *Server) Close() {
	for _, p := range slices.Backward(s.programs) {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // killed
		p.log.Close()
	}
	s.programs = nil
}

// PID is the process ID of etcd or kube-apiserver; 0 where it does not run.
func (s *Server) PID(name string) int {
	for _, p := range s.programs {
		if p.name == name {
			return p.cmd.Process.Pid
		}
	}
	return 0
}

// kubernetesVariable is the release of Kubernetes whose API server the tests ask, as `cluster build --release` takes
// it; empty for today's.
const kubernetesVariable = "KUBEQEMU_TEST_KUBERNETES"

// binaries finds what `make cluster` builds.
func binaries() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	bin := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "_output", "bin")
	if release := os.Getenv(kubernetesVariable); release != "" {
		bin += "-" + release
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return "", fmt.Errorf("find what the test needs (run `make cluster` first): %w", err)
		}
	}
	return bin, nil
}

func url(scheme string, port int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port) }

// freePorts are ports that nobody listened on a moment ago.
func freePorts(count int) ([]int, error) {
	var ports []int
	for range count {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// writeCertificate makes the API server's key, which also signs service accounts' tokens, and a certificate of
// itself. kube-apiserver's own would be RSA's, which cost more time at every handshake.
func writeCertificate(certificateFile, keyFile string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kube-apiserver"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	return text, errors.Join(os.WriteFile(certificateFile, text, 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}), 0o600))
}

// await waits until the API server is ready.
func (s *Server) await() error {
	deadline := time.Now().Add(startTimeout)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.ready()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-tick.C
	}
}

func (s *Server) ready() error {
	c, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		return err
	}
	response, err := c.Get(s.Config.Host + "/readyz")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New("/readyz: " + response.Status)
	}
	return nil
}

// writeKubeconfig writes the administrator's kubeconfig, for work in a namespace.
func (s *Server) writeKubeconfig(file, namespace string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: s.Config.Host, CertificateAuthorityData: s.Config.CAData}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: s.Config.BearerToken}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "admin", Namespace: namespace}
	config.CurrentContext = "test"
	return clientcmd.WriteToFile(*config, file)
}

// Kubeconfig is the file of the administrator's kubeconfig.
func (s *Server) Kubeconfig() string { return s.kubeconfig }

// As is the configuration of a user, such as
// system:serviceaccount:kubevirt:virt-controller.
func (s *Server) As(user string, groups ...string) *rest.Config {
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	return config
}

// Try runs kubectl as the administrator.
func (s *Server) Try(stdin string, args ...string) (string, error) {
	return s.try(s.kubeconfig, stdin, args...)
}

func (s *Server) try(kubeconfig, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	args = append([]string{"--kubeconfig", kubeconfig}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "kubectl"), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args[2:], " "), err, stderr.String())
	}
	return stdout.String(), nil
}
